"""Losses against learned proxies of the training classes, on the unit sphere."""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
from jax import Array

from dml_jax.config.fields import NonNegative, Positive
from dml_jax.losses.classification import cross_entropy
from dml_jax.losses.pairwise import class_cosine, class_mask, weighted_mean
from dml_jax.losses.signature import Centers, Learned, Proxies, loss
from dml_jax.numerics import log1p_sum_exp, unit


def _class_cosines(embeddings: Array, labels: Array, proxies: Array) -> tuple[Array, Array]:
    """Cosines [B, C] with the proxies, NaN for labels outside 0..C-1; and the `class_mask`."""
    same = class_mask(labels, len(proxies))
    cosines = class_cosine(embeddings, proxies)
    return jnp.where(same.any(axis=1, keepdims=True), cosines, jnp.nan), same


@loss
def proxy_nca(
    embeddings: Array,
    labels: Array,
    proxies: Proxies,
    *,
    scale: Positive = 3.0,
    weights: Array | None = None,
) -> Array:
    """Proxy-NCA (Movshovitz-Attias et al., ICCV 2017, Eq. 4) -> scalar, not bounded below.

    The mean of -log exp(-d(x, p_y)) / sum_{c != y} exp(-d(x, p_c)) over the samples, where d is the
    squared Euclidean distance of vectors scaled to length `scale`. The denominator lacks class y,
    so C must be at least 2.

    Args:
      scale: Length of embeddings and proxies; greater than 0.
    """
    cosines, same = _class_cosines(embeddings, labels, proxies)
    distances = 2 * scale**2 * (1 - cosines)
    push = jax.nn.logsumexp(jnp.where(same, -jnp.inf, -distances), axis=1)
    return weighted_mean(jnp.sum(distances, axis=1, where=same) + push, weights=weights)


@loss
def proxy_nca_pp(
    embeddings: Array,
    labels: Array,
    proxies: Proxies,
    *,
    temperature: Positive = 1 / 9,
    weights: Array | None = None,
) -> Array:
    """ProxyNCA++ (Teh, DeVries, Taylor, ECCV 2020) -> scalar.

    The mean of -log softmax(-d(x, p_1..C) / temperature)_y, where d is the squared distance of unit
    vectors.

    Args:
      temperature: Divides the squared distances; greater than 0.
    """
    losses = cross_entropy(2 * (class_cosine(embeddings, proxies) - 1) / temperature, labels)
    return weighted_mean(losses, weights=weights)


@loss
def proxy_anchor(
    embeddings: Array,
    labels: Array,
    proxies: Proxies,
    *,
    margin: NonNegative = 0.1,
    alpha: Positive = 32.0,
    weights: Array | None = None,
) -> Array:
    """Proxy-Anchor loss (Kim, Kim, Cho, Kwak, CVPR 2020, Eq. 4) -> scalar; proxies are anchors.

        mean over classes c of the batch: log(1 + sum_{y = c} exp(-alpha (cos(x, p_c) - margin)))
        + mean over all classes c: log(1 + sum_{y != c} exp(alpha (cos(x, p_c) + margin)))

    `weights` multiply the exponentials: a sample with weight 2 counts as two samples.

    Args:
      margin: delta, in cosine; at least 0.
      alpha: Steepness; greater than 0.
    """
    cosines, same = _class_cosines(embeddings, labels, proxies)
    near, far = -alpha * (cosines - margin), alpha * (cosines + margin)
    different = ~same
    if weights is not None:
        counted = (weights != 0)[:, None]
        same, different = same & counted, different & counted
        shift = jnp.log(jnp.where(counted, weights[:, None], 1)).astype(near.dtype)
        near, far = near + shift, far + shift
    pull, push = log1p_sum_exp(near, same, axis=0), log1p_sum_exp(far, different, axis=0)
    return pull.sum() / jnp.maximum(jnp.any(same, axis=0).sum(), 1) + push.mean()


@loss
def soft_triple(
    embeddings: Array,
    labels: Array,
    proxies: Annotated[Array, Learned("CKD", options=Centers(centers=10))],
    *,
    scale: Positive = 20.0,
    gamma: Positive = 0.1,
    margin: NonNegative = 0.01,
    spread: NonNegative = 0.2,
    weights: Array | None = None,
) -> Array:
    """SoftTriple loss (Qian et al., ICCV 2019, Eq. 7, 8 and 10) -> scalar.

    The similarity to a class is the mean over its K centers, weighted by softmax_k(cos / gamma).

    Args:
      scale: lambda, multiplies the similarities; greater than 0.
      gamma: Temperature of the weights of a class's centers; greater than 0.
      margin: delta, subtracted from the similarity to a sample's own class; at least 0.
      spread: tau, weight of the regulariser (Eq. 10), `center_spread`; at least 0.
    """
    classes, count, dim = proxies.shape
    # The softmax is fastest with the classes along the last axis.
    rows = proxies.swapaxes(0, 1).reshape(-1, dim)
    cosines = class_cosine(embeddings, rows).reshape(-1, count, classes)
    similarity = jnp.sum(jax.nn.softmax(cosines / gamma, axis=1) * cosines, axis=1)
    losses = cross_entropy(scale * (similarity - margin * class_mask(labels, classes)), labels)
    return weighted_mean(losses, weights=weights) + spread * center_spread(proxies)


def center_spread(centers: Array) -> Array:
    """SoftTriple's regulariser (Eq. 10): half the mean distance between two centers of a class.

    Distances of unit vectors, with 1e-5 under the root as in the authors' code (idstcv/SoftTriple).
    """
    classes, count, _ = centers.shape
    w = unit(centers)
    # XLA fuses this, so that [C, K, K, D] is never stored.
    squares = jnp.sum((w[:, :, None] - w[:, None, :]) ** 2, axis=-1)
    distances = jnp.sqrt(squares + 1e-5)
    upper = jnp.triu(jnp.ones((count, count), bool), 1)
    return jnp.sum(jnp.where(upper[None], distances, 0)) / (classes * max(count * (count - 1), 1))
