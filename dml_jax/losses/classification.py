"""Losses that classify: the rows of the last layer stand for the training classes.

References, in the order of the functions: label smoothing is Szegedy et al. (CVPR 2016); normalised softmax is Zhai &
Wu, "Classification is a strong baseline for deep metric learning" (BMVC 2019); ArcFace is Deng et al. (CVPR 2019);
CosFace is Wang et al. (CVPR 2018).
"""

import jax
import jax.numpy as jnp

from dml_jax.losses.norms import at_least_float32, root
from dml_jax.losses.pairs import cosine


def _chosen(values: jax.Array, labels: jax.Array) -> jax.Array:
    """The column of each row [B, C] that its label [B] names -> [B]."""
    return jnp.take_along_axis(values, labels[:, None], axis=1)[:, 0]


def cross_entropy(logits: jax.Array, labels: jax.Array, *, smoothing: float = 0.0) -> jax.Array:
    """Cross-entropy of each sample with the target (1 - smoothing) one-hot + smoothing / C.

    Args:
      logits: float [B, C].
      labels: int [B], in 0..C-1.
      smoothing: epsilon of the label smoothing.

    Returns:
      float [B].
    """
    logits = at_least_float32(logits)
    normalizer = jax.nn.logsumexp(logits, axis=1)
    losses = normalizer - _chosen(logits, labels)
    if smoothing:
        losses = (1 - smoothing) * losses + smoothing * (normalizer - logits.mean(axis=1))
    return losses


def normalized_softmax(
    proxies: jax.Array,
    embeddings: jax.Array,
    labels: jax.Array,
    *,
    temperature: float,
    smoothing: float = 0.0,
) -> jax.Array:
    """-log softmax(cos(x, p_1..C) / temperature)_y of each sample.

    Args:
      proxies: float [C, D], one per training class, any norm.
      embeddings: float [B, D], any norm.
      labels: int [B], in 0..C-1.
      temperature: sigma, divides the cosine; 0.05 in the paper.
      smoothing: epsilon of the label smoothing; the paper has none.

    Returns:
      float [B].
    """
    return cross_entropy(cosine(embeddings, proxies) / temperature, labels, smoothing=smoothing)


def _with_target(cosines: jax.Array, labels: jax.Array, target: jax.Array) -> jax.Array:
    """cosines [B, C] with the entry of each sample's own class replaced by target [B]."""
    own = labels[:, None] == jnp.arange(cosines.shape[1])[None, :]
    return jnp.where(own, target[:, None], cosines)


def angular_margin(cosines: jax.Array, labels: jax.Array, *, margin: float) -> jax.Array:
    """ArcFace's logits before scaling: cos(theta + margin) for the own class (equation 3).

    Beyond theta = pi - margin, where that would rise again, it goes on falling in a straight line, as in the authors'
    code (deepinsight/insightface).

    Args:
      cosines: float [B, C].
      labels: int [B].
      margin: angle in radians.
    """
    own = _chosen(cosines, labels)
    shifted = own * jnp.cos(margin) - root(1 - own * own) * jnp.sin(margin)
    falling = own - margin * jnp.sin(margin)
    return _with_target(cosines, labels, jnp.where(own > -jnp.cos(margin), shifted, falling))


def arcface(proxies: jax.Array, embeddings: jax.Array, labels: jax.Array, *, margin: float, scale: float) -> jax.Array:
    """Additive angular margin softmax of each sample.

    Args:
      proxies: float [C, D], any norm.
      embeddings: float [B, D], any norm.
      labels: int [B], in 0..C-1.
      margin: added to the angle to the own proxy, in radians.
      scale: multiplies the cosines.

    Returns:
      float [B].
    """
    return cross_entropy(scale * angular_margin(cosine(embeddings, proxies), labels, margin=margin), labels)


def cosface(proxies: jax.Array, embeddings: jax.Array, labels: jax.Array, *, margin: float, scale: float) -> jax.Array:
    """Additive cosine margin softmax of each sample; as `arcface`, with the margin taken off the cosine."""
    cosines = cosine(embeddings, proxies)
    own = _chosen(cosines, labels) - margin
    return cross_entropy(scale * _with_target(cosines, labels, own), labels)
