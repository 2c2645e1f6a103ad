"""Losses against learned proxies of the training classes, on the unit sphere."""

import jax
import jax.numpy as jnp

from dml_jax.losses.classification import cross_entropy
from dml_jax.losses.norms import unit
from dml_jax.losses.pairs import cosine


def _own(labels: jax.Array, classes: int) -> jax.Array:
    """labels [B] -> bool [B, C], the class of each sample."""
    return labels[:, None] == jnp.arange(classes)[None, :]


def proxy_nca(proxies: jax.Array, embeddings: jax.Array, labels: jax.Array, *, scale: float = 3.0) -> jax.Array:
    """-log exp(-d(x, p_y)) / sum_{c != y} exp(-d(x, p_c)) of each sample (Movshovitz-Attias et al., ICCV 2017, Eq. 4).

    d is the squared Euclidean distance between vectors of length `scale`; the own proxy is not in the denominator.

    Args:
      proxies: float [C, D], C >= 2, any norm.
      embeddings: float [B, D], any norm.
      labels: int [B], in 0..C-1.
      scale: length both are given.

    Returns:
      float [B]; not bounded below.
    """
    distances = 2 * scale**2 * (1 - cosine(embeddings, proxies))
    own = _own(labels, len(proxies))
    others = jax.nn.logsumexp(jnp.where(own, -jnp.inf, -distances), axis=1)
    return jnp.sum(distances, axis=1, where=own) + others


def proxy_nca_pp(
    proxies: jax.Array, embeddings: jax.Array, labels: jax.Array, *, temperature: float = 1 / 9
) -> jax.Array:
    """-log softmax(-d(x, p_1..C) / temperature)_y of each sample (ProxyNCA++, Teh, DeVries, Taylor, ECCV 2020).

    Args:
      proxies: float [C, D], any norm.
      embeddings: float [B, D], any norm.
      labels: int [B], in 0..C-1.
      temperature: divides the squared distances of unit vectors.

    Returns:
      float [B].
    """
    return cross_entropy(2 * (cosine(embeddings, proxies) - 1) / temperature, labels)


def proxy_anchor(
    proxies: jax.Array, embeddings: jax.Array, labels: jax.Array, *, margin: float = 0.1, alpha: float = 32.0
) -> jax.Array:
    """Proxy-Anchor loss (Kim, Kim, Cho, Kwak, CVPR 2020, Eq. 4), every proxy being an anchor:

        mean over proxies with positives of log(1 + sum_{x of class c} exp(-alpha (cos(x, p_c) - margin)))
        + mean over all proxies of log(1 + sum_{x of other classes} exp(alpha (cos(x, p_c) + margin)))

    Args:
      proxies: float [C, D], any norm.
      embeddings: float [B, D], any norm.
      labels: int [B], in 0..C-1.
      margin: delta, in cosine.
      alpha: steepness.

    Returns:
      scalar.
    """
    classes = len(proxies)
    cosines = cosine(embeddings, proxies)
    own = _own(labels, classes)
    present = jnp.any(own, axis=0)
    pull = _log1p_sum_exp(-alpha * (cosines - margin), own)
    push = _log1p_sum_exp(alpha * (cosines + margin), ~own)
    return pull.sum() / present.sum() + push.mean()


def _log1p_sum_exp(exponents: jax.Array, where: jax.Array) -> jax.Array:
    """log(1 + sum of exp over the chosen entries of each column) [C], without overflow."""
    exponents = jnp.where(where, exponents, -jnp.inf)
    shift = jax.lax.stop_gradient(jnp.max(exponents, axis=0, initial=0.0))
    return shift + jnp.log(jnp.exp(-shift) + jnp.sum(jnp.exp(exponents - shift[None, :]), axis=0))


def soft_triple(
    centers: jax.Array,
    embeddings: jax.Array,
    labels: jax.Array,
    *,
    scale: float = 20.0,
    gamma: float = 0.1,
    margin: float = 0.01,
) -> jax.Array:
    """SoftTriple loss of each sample (Qian et al., ICCV 2019, Eq. 7 and 8), without its regularizer.

    The similarity to a class is the mean of those to its K centers, weighted by softmax_k(cos / gamma).

    Args:
      centers: float [C, K, D], any norm.
      embeddings: float [B, D], any norm.
      labels: int [B], in 0..C-1.
      scale: lambda, multiplies the similarities.
      gamma: entropy of the weights over the centers of a class.
      margin: delta, by which the own class must win.

    Returns:
      float [B].
    """
    classes, count, dim = centers.shape
    rows = centers.swapaxes(0, 1).reshape(-1, dim)  # classes along the last axis, where the softmax runs fast
    cosines = cosine(embeddings, rows).reshape(-1, count, classes)
    similarity = jnp.sum(jax.nn.softmax(cosines / gamma, axis=1) * cosines, axis=1)
    return cross_entropy(scale * (similarity - margin * _own(labels, classes)), labels)


def center_spread(centers: jax.Array) -> jax.Array:
    """SoftTriple's regularizer (Eq. 10): mean over classes of the mean distance between centers, halved -> scalar.

    Distances are Euclidean, with 1e-5 under the root as in the authors' code (idstcv/SoftTriple).

    Args:
      centers: float [C, K, D], any norm.
    """
    classes, count, _ = centers.shape
    w = unit(centers)
    products = jnp.einsum("ckd,cld->ckl", w, w, precision=jax.lax.Precision.HIGHEST)
    distances = jnp.sqrt(jnp.maximum(2 - 2 * products, 0) + 1e-5)
    upper = jnp.triu(jnp.ones((count, count), bool), 1)
    return jnp.sum(jnp.where(upper[None], distances, 0)) / (classes * max(count * (count - 1), 1))
