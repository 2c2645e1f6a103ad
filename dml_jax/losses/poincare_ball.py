"""Hyp-ViT's loss in hyperbolic space (Ermolov, Mirvakhabova, Khrulkov, Sebe, Oseledets, CVPR 2022).

Embeddings x, clipped to the length r, are mapped to the Poincaré ball of curvature -c:

    p = tanh(sqrt(c) |x|) x / (sqrt(c) |x|),    d(p, q) = 2 / sqrt(c) artanh(sqrt(c) |-p (+) q|) with Möbius addition,

where sqrt(c) |p| is at most 0.999. The distance equals

    d(p, q) = 2 / sqrt(c) arsinh(sqrt(c) |p - q| / sqrt((1 - c |p|^2) (1 - c |q|^2))).

The loss of a positive pair (i, j) with temperature t is -log(exp(-d_ij / t) / sum_{k != i} exp(-d_ik / t)). The
authors' code (htdt/hyp_metric) sums the means of both directions of two images per class, which is twice the mean over
the anchors used here.
"""

import jax
import jax.numpy as jnp

from dml_jax.losses import pairwise
from dml_jax.losses.check_batch import check_batch
from dml_jax.losses.pairwise import Candidates
from dml_jax.losses.similarity_losses import sup_con_loss
from dml_jax.numerics import at_least_float32, root, unit

EDGE = 1 - 1e-3  # largest length of points in the unit ball, as in the authors' code


def hyperbolic(
    embeddings: jax.Array,
    labels: jax.Array,
    *,
    curvature: float = 0.1,
    clip: float = 2.3,
    temperature: float = 0.2,
    candidates: Candidates | None = None,
    weights: jax.Array | None = None,
) -> jax.Array:
    """Hyp-ViT's loss: the mean over the anchors with positives of the mean over these -> scalar; 0 if there are none.

    Args:
      curvature: c.
      clip: r, the largest length of embeddings, which are not normalised.
      temperature: t.
    """
    check_batch(embeddings, labels, candidates=candidates)
    x, others = pairwise.compared(embeddings, labels, candidates, normalize=False)
    p, q = (in_unit_ball(rows, curvature=curvature, clip=clip) for rows in (x, others.embeddings))
    logits = -distances(p, q) / (curvature**0.5 * temperature)
    return sup_con_loss(logits, others.positive, others.negative, weights)


def in_unit_ball(x: jax.Array, *, curvature: float, clip: float) -> jax.Array:
    """sqrt(c) p of each row x [N, D]: the points of the ball, scaled to the ball of radius and curvature 1."""
    x = at_least_float32(x)
    lengths = root(jnp.sum(x * x, axis=-1, keepdims=True))
    return jnp.minimum(jnp.tanh(curvature**0.5 * jnp.minimum(lengths, clip)), EDGE) * unit(x)


def distances(p: jax.Array, q: jax.Array) -> jax.Array:
    """Hyperbolic distances [N, M] of points in the unit ball, [N, D] and [M, D], with curvature -1."""
    inside = [1 - jnp.sum(points * points, axis=-1) for points in (p, q)]
    return 2 * jnp.arcsinh(pairwise.distances(p, q) / jnp.sqrt(inside[0][:, None] * inside[1][None, :]))
