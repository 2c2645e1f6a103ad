"""Losses on pairs and triplets. Each hinge is a function of its own, so that it can be reduced differently."""

import jax
import jax.numpy as jnp

from dml_jax.losses.mining import Triplets
from dml_jax.losses.norms import at_least_float32, root


def _squared(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sum((x - y) ** 2, axis=-1)


def margin_hinges(
    embeddings: jax.Array, labels: jax.Array, triplets: Triplets, beta: jax.Array, *, margin: float = 0.2
) -> tuple[jax.Array, jax.Array]:
    """[d_ap - beta_{y_a} + margin]+ and [beta_{y_a} - d_an + margin]+ of each triplet, as [T] and [T].

    Distances are Euclidean with 1e-8 under the root; invalid triplets give 0.

    Args:
      embeddings: float [B, D].
      labels: int [B], in 0..C-1.
      triplets: T of them.
      beta: float [C], boundary between near and far for anchors of each class.
      margin: half the width of the gap around beta.
    """
    x = at_least_float32(embeddings)
    anchors = x[triplets.anchors]
    boundary = at_least_float32(beta)[labels[triplets.anchors]]
    near = jnp.sqrt(_squared(anchors, x[triplets.positives]) + 1e-8)
    far = jnp.sqrt(_squared(anchors, x[triplets.negatives]) + 1e-8)
    pull, push = jax.nn.relu(near - boundary + margin), jax.nn.relu(boundary - far + margin)
    return jnp.where(triplets.valid, pull, 0), jnp.where(triplets.valid, push, 0)


def margin_loss(
    embeddings: jax.Array,
    labels: jax.Array,
    triplets: Triplets,
    beta: jax.Array,
    *,
    margin: float = 0.2,
    nu: float = 0.0,
) -> jax.Array:
    """Margin loss (Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, Eq. 7 and 8) -> scalar.

    The sum of both hinges over the number of triplets with an active one; 0 where there is none.

    Args:
      embeddings: float [B, D].
      labels: int [B], in 0..C-1.
      triplets: T of them.
      beta: float [C], boundary between near and far for anchors of each class; learnable.
      margin: half the width of the gap around beta.
      nu: weight of the sum of beta_{y_a} over all triplets, which keeps beta small.
    """
    pull, push = margin_hinges(embeddings, labels, triplets, beta, margin=margin)
    active = jnp.sum((pull > 0) | (push > 0))
    loss = jnp.sum(pull + push) / jnp.maximum(active, 1)
    if nu:
        loss += nu * jnp.sum(jnp.where(triplets.valid, at_least_float32(beta)[labels[triplets.anchors]], 0))
    return loss


def triplet_loss(embeddings: jax.Array, triplets: Triplets, *, margin: float = 0.2, squared: bool = True) -> jax.Array:
    """Mean over all valid triplets, inactive ones included, of [d_ap - d_an + margin]+ -> scalar.

    Args:
      embeddings: float [B, D].
      triplets: T of them; none valid gives 0.
      margin: how much nearer the positive must be.
      squared: compare squared Euclidean distances (FaceNet, Schroff et al., CVPR 2015); otherwise plain ones.
    """
    x = at_least_float32(embeddings)
    anchors = x[triplets.anchors]
    near, far = _squared(anchors, x[triplets.positives]), _squared(anchors, x[triplets.negatives])
    if not squared:
        near, far = root(near), root(far)
    hinges = jnp.where(triplets.valid, jax.nn.relu(near - far + margin), 0)
    return jnp.sum(hinges) / jnp.maximum(jnp.sum(triplets.valid), 1)


def contrastive_hinges(
    distances: jax.Array,
    positive: jax.Array,
    negative: jax.Array,
    *,
    positive_margin: float = 0.0,
    negative_margin: float = 1.0,
    squared: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """[d - positive_margin]+ of positive and [negative_margin - d]+ of negative pairs, each [N, M], 0 elsewhere.

    Args:
      distances: float [N, M].
      positive: bool [N, M].
      negative: bool [N, M].
      positive_margin: positives nearer than this are left alone.
      negative_margin: negatives farther than this are left alone.
      squared: half the squares of both, as first published (Hadsell, Chopra, LeCun, CVPR 2006, Eq. 4).
    """
    pull = jnp.where(positive, jax.nn.relu(distances - positive_margin), 0)
    push = jnp.where(negative, jax.nn.relu(negative_margin - distances), 0)
    return (pull**2 / 2, push**2 / 2) if squared else (pull, push)


def _log_sum_exp(values: jax.Array, where: jax.Array, axis: int) -> jax.Array:
    """log of the sum of exp over the chosen entries; a very low number with gradient 0 where there are none."""
    lowest = jnp.finfo(values.dtype).min / 4
    return jax.nn.logsumexp(jnp.where(where, values, lowest), axis=axis)


def lifted_structure(
    distances: jax.Array, positive: jax.Array, negative: jax.Array, *, margin: float = 1.0
) -> jax.Array:
    """Half of [J_ij]+^2 of each positive pair (Song, Xiang, Jegelka, Savarese, CVPR 2016, Eq. 4), [N, M], 0 elsewhere.

        J_ij = log(sum over negatives k of i of exp(margin - d_ik) + over negatives l of j of exp(margin - d_lj)) + d_ij

    The loss is the mean over the positive pairs. A pair without any negative gives 0.

    Args:
      distances: float [N, M].
      positive: bool [N, M].
      negative: bool [N, M].
      margin: alpha.
    """
    rows = _log_sum_exp(margin - distances, negative, axis=1)
    columns = _log_sum_exp(margin - distances, negative, axis=0)
    j = jnp.logaddexp(rows[:, None], columns[None, :]) + distances
    return jnp.where(positive, jax.nn.relu(j) ** 2 / 2, 0)


def n_pair(similarity: jax.Array, positives: jax.Array, negative: jax.Array) -> jax.Array:
    """log(1 + sum over negatives n of exp(s_in - s_ip)) of each anchor i (Sohn, NeurIPS 2016, Eq. 6).

    Args:
      similarity: float [N, M], inner products.
      positives: int [N], the column of each anchor's positive.
      negative: bool [N, M]; in the paper the positives of the other classes.

    Returns:
      float [N].
    """
    excess = similarity - jnp.take_along_axis(similarity, positives[:, None], axis=1)
    return jnp.logaddexp(_log_sum_exp(excess, negative, axis=1), 0)
