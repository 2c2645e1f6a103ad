"""Losses of classifiers over the training classes.

Sources, in the order of the functions: label smoothing, Szegedy et al. (CVPR 2016); normalised
softmax, Zhai & Wu (BMVC 2019); ArcFace, Deng et al. (CVPR 2019); CosFace, Wang et al. (CVPR 2018);
sub-center ArcFace, Deng et al. (ECCV 2020).
"""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax import Array

from dml_jax.config.fields import Fraction, NonNegative, Positive
from dml_jax.losses.pairwise import class_cosine, class_indices, class_mask, weighted_mean
from dml_jax.losses.signature import Bias, Centers, Kernel, Learned, Proxies, classifier, loss
from dml_jax.numerics import at_least_float32, product, root


def _at_labels(values: Array, labels: Array) -> Array:
    """values [B, C] -> [B], the entry of each sample's class; NaN for labels outside 0..C-1."""
    indices = class_indices(labels, values.shape[1])
    return jnp.take_along_axis(values, indices[:, None], axis=1, mode="fill")[:, 0]


def cross_entropy(logits: Array, labels: Array, *, smoothing: float = 0.0) -> Array:
    """Cross-entropy of logits [B, C] with (1 - smoothing) one-hot + smoothing / C, float [B]."""
    logits = at_least_float32(logits)
    normalizer = jax.nn.logsumexp(logits, axis=1)
    losses = normalizer - _at_labels(logits, labels)
    if smoothing:
        losses = (1 - smoothing) * losses + smoothing * (normalizer - logits.mean(axis=1))
    return losses


def linear_logits(embeddings: Array, kernel: Array, bias: Array, **_: Any) -> Array:
    """Embeddings [B, D], kernel [D, C], bias [C] -> logits [B, C]."""
    x, w = at_least_float32(embeddings), at_least_float32(kernel)
    return product("nd,dc->nc", x, w) + bias[None]


@classifier(linear_logits)
@loss
def softmax(
    embeddings: Array,
    labels: Array,
    kernel: Kernel,
    bias: Bias,
    *,
    smoothing: Fraction = 0.0,
    weights: Array | None = None,
) -> Array:
    """Mean cross-entropy of a linear classifier, softmax(x kernel + bias) -> scalar.

    Args:
      smoothing: Label smoothing, in [0, 1).
    """
    losses = cross_entropy(linear_logits(embeddings, kernel, bias), labels, smoothing=smoothing)
    return weighted_mean(losses, weights=weights)


@classifier(lambda x, proxies, *, temperature, **_: class_cosine(x, proxies) / temperature)
@loss
def normalized_softmax(
    embeddings: Array,
    labels: Array,
    proxies: Proxies,
    *,
    temperature: Positive = 0.05,
    smoothing: Fraction = 0.0,
    weights: Array | None = None,
) -> Array:
    """Normalised softmax (Zhai & Wu, BMVC 2019) -> scalar.

    The mean of -log softmax(cos(x, p_1..C) / temperature)_y over the samples.

    Args:
      temperature: sigma, divides the cosines; greater than 0.
      smoothing: Label smoothing, in [0, 1); none in the paper.
    """
    logits = class_cosine(embeddings, proxies) / temperature
    return weighted_mean(cross_entropy(logits, labels, smoothing=smoothing), weights=weights)


def _with_target(cosines: Array, labels: Array, target: Array) -> Array:
    """Replaces the entry of each sample's class in cosines [B, C] by target [B]."""
    return jnp.where(class_mask(labels, cosines.shape[1]), target[:, None], cosines)


def angular_margin(cosines: Array, labels: Array, *, margin: float) -> Array:
    """ArcFace's unscaled logits [B, C]: cosines, but cos(theta_y + margin) for class y (Eq. 3).

    Beyond theta_y = pi - margin, where cos(theta_y + margin) would rise again, the logit decreases
    linearly with the cosine, as in the authors' code (deepinsight/insightface).
    """
    cos = _at_labels(cosines, labels)
    shifted = cos * jnp.cos(margin) - root(1 - cos * cos) * jnp.sin(margin)
    linear = cos - margin * jnp.sin(margin)
    return _with_target(cosines, labels, jnp.where(cos > -jnp.cos(margin), shifted, linear))


@classifier(lambda x, proxies, *, scale, **_: scale * class_cosine(x, proxies))
@loss
def arcface(
    embeddings: Array,
    labels: Array,
    proxies: Proxies,
    *,
    margin: NonNegative = 0.5,
    scale: Positive = 64.0,
    weights: Array | None = None,
) -> Array:
    """ArcFace (Deng et al., CVPR 2019, Eq. 3) -> scalar.

    The mean cross-entropy of a softmax with an additive angular margin.

    Args:
      margin: Angle in radians, added to the angle with the proxy of the sample's class; at least 0.
      scale: Multiplies the cosines; greater than 0.
    """
    logits = scale * angular_margin(class_cosine(embeddings, proxies), labels, margin=margin)
    return weighted_mean(cross_entropy(logits, labels), weights=weights)


@classifier(lambda x, proxies, *, scale, **_: scale * class_cosine(x, proxies))
@loss
def cosface(
    embeddings: Array,
    labels: Array,
    proxies: Proxies,
    *,
    margin: NonNegative = 0.35,
    scale: Positive = 64.0,
    weights: Array | None = None,
) -> Array:
    """CosFace (Wang et al., CVPR 2018) -> scalar.

    The mean cross-entropy of a softmax with an additive cosine margin.

    Args:
      margin: Subtracted from the cosine with the proxy of the sample's class; at least 0.
      scale: Multiplies the cosines; greater than 0.
    """
    cosines = class_cosine(embeddings, proxies)
    logits = scale * _with_target(cosines, labels, _at_labels(cosines, labels) - margin)
    return weighted_mean(cross_entropy(logits, labels), weights=weights)


@classifier(lambda x, proxies, *, scale, **_: scale * nearest_center(x, proxies))
@loss
def subcenter_arcface(
    embeddings: Array,
    labels: Array,
    proxies: Annotated[Array, Learned("CKD", options=Centers(centers=3))],
    *,
    margin: NonNegative = 0.5,
    scale: Positive = 64.0,
    weights: Array | None = None,
) -> Array:
    """Sub-center ArcFace (Deng et al., ECCV 2020) -> scalar.

    `arcface` on the cosine to the nearest center of each class.

    Args:
      margin: Angle in radians, added to the angle with the nearest center of the sample's class; at
        least 0.
      scale: Multiplies the cosines; greater than 0.
    """
    logits = scale * angular_margin(nearest_center(embeddings, proxies), labels, margin=margin)
    return weighted_mean(cross_entropy(logits, labels), weights=weights)


def nearest_center(embeddings: Array, centers: Array) -> Array:
    """Cosines [B, C] of embeddings [B, D] to the nearest of the centers [C, K, D] of each class."""
    classes, count, dim = centers.shape
    cosines = class_cosine(embeddings, centers.reshape(-1, dim)).reshape(-1, classes, count)
    # By index, because the gradient of a maximum, divided among equal entries, can be 0 / 0.
    nearest = jnp.argmax(cosines, axis=2, keepdims=True)
    return jnp.take_along_axis(cosines, nearest, axis=2)[..., 0]
