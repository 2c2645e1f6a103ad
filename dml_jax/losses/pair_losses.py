"""Losses on the distances of pairs and triplets.

A function named after a loss takes embeddings and labels and finds its pairs or triplets in the
batch, or among other `candidates`; it compares unit vectors unless it says otherwise. A function
with the suffix `_loss`, `_losses` or `_hinges` takes pairs or triplets as given.
"""

from collections.abc import Callable
from typing import Any, Literal, assert_never

import jax
import jax.numpy as jnp
from jax import Array

from dml_jax.config.fields import NonNegative
from dml_jax.losses import mining as miners
from dml_jax.losses import pairwise
from dml_jax.losses.mining import Mining, TripletMining, Triplets
from dml_jax.losses.pairwise import Candidates, WeightedCandidates, weighted_mean
from dml_jax.losses.signature import Boundaries, loss
from dml_jax.numerics import at_least_float32, log_sum_exp, root

ROUNDING = 1e-6  # error of float32 distances; a smaller hinge does not count as active

Distance = Callable[[Array, Array], Array]  # two blocks of rows, [N, D] and [M, D] -> [N, M]


def _squared_sides(
    embeddings: Array, triplets: Triplets, candidates: Array | None, distance: Distance | None
) -> tuple[Array, Array]:
    """Squared distances of each triplet's anchor to its positive and its negative, [T] each."""
    x = at_least_float32(embeddings)
    others = x if candidates is None else at_least_float32(candidates)
    anchors, sides = x[triplets.anchors], (others[triplets.positives], others[triplets.negatives])
    if distance is None:
        near, far = (jnp.sum((anchors - side) ** 2, axis=-1) for side in sides)
    else:
        between = jax.vmap(lambda a, b: distance(a[None], b[None])[0, 0])
        near, far = (between(anchors, side) ** 2 for side in sides)
    return near, far


@loss
def contrastive(
    embeddings: Array,
    labels: Array,
    *,
    positive_margin: NonNegative = 0.0,  # closer positive pairs have no loss
    negative_margin: NonNegative = 1.0,  # more distant negative pairs have no loss
    candidates: WeightedCandidates = None,
    weights: Array | None = None,
    distance: Distance | None = None,
) -> Array:
    """Contrastive loss -> scalar: sum of the means of both `contrastive_hinges` where positive."""
    x, others = pairwise.compared(embeddings, labels, candidates, normalize=distance is None)
    distances = (distance or pairwise.distances)(x, others.embeddings)
    margins = {"positive_margin": positive_margin, "negative_margin": negative_margin}
    pull, push = contrastive_hinges(distances, others.positive > 0, others.negative > 0, **margins)
    near, far = (pairwise.pair_weights(relation, weights) for relation in others[1:])
    pulled = weighted_mean(pull, pull > ROUNDING, near)
    return pulled + weighted_mean(push, push > ROUNDING, far)


def contrastive_hinges(
    distances: Array,
    positive: Array,
    negative: Array,
    *,
    positive_margin: float,
    negative_margin: float,
) -> tuple[Array, Array]:
    """[d - positive_margin]+ of positive and [negative_margin - d]+ of negative pairs, each [N, M].

    As first published, both were squared (Hadsell, Chopra, LeCun, CVPR 2006, Eq. 4).
    """
    pull = jnp.where(positive, jax.nn.relu(distances - positive_margin), 0)
    push = jnp.where(negative, jax.nn.relu(negative_margin - distances), 0)
    return pull, push


@loss
def triplet(
    embeddings: Array,
    labels: Array,
    *,
    margin: NonNegative = 0.2,  # by which the positive must be closer
    squared: bool = True,  # compare squared distances
    # How triplets are chosen; "random", "semi_hard" and "distance_weighted" need a key.
    mining: TripletMining = "semi_hard",
    smooth: bool = False,  # log(1 + exp(.)) in place of the hinge
    # Negatives beyond are not drawn by "distance_weighted"; 0: no limit.
    farthest: NonNegative = 0.0,
    candidates: Candidates | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
    key: Array | None = None,
) -> Array:
    """`triplet_loss` of one mined triplet per anchor, or of all triplets -> scalar."""
    x, others = pairwise.compared(embeddings, labels, candidates, normalize=distance is None)
    if mining == "all":
        distances = (distance or pairwise.distances)(x, others.embeddings)
        distances = distances**2 if squared else distances
        sides = others.positive, others.negative
        return all_triplets_loss(distances, *sides, margin=margin, smooth=smooth, weights=weights)
    triplets = _mine(mining, key, x, others, distance, farthest)
    among: Any = {"candidates": others.embeddings, "weights": weights, "distance": distance}
    return triplet_loss(x, triplets, margin=margin, squared=squared, smooth=smooth, **among)


def all_triplets_loss(
    distances: Array,
    positive: Array,
    negative: Array,
    *,
    margin: float,
    smooth: bool = False,
    weights: Array | None = None,
) -> Array:
    """Mean of [d_ap - d_an + margin]+ over all triplets of the batch -> scalar; 0 if none.

    One anchor at a time, also backwards, so that no array [N, M, M] is stored.
    """

    @jax.checkpoint
    def anchor_sums(row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        d, near, far = row
        hinges = _hinge(d[:, None] - d[None] + margin, smooth)
        counted = near[:, None] & far[None]
        return jnp.sum(hinges, where=counted), jnp.sum(counted, dtype=hinges.dtype)

    sums, counts = jax.lax.map(anchor_sums, (distances, positive, negative))
    w = jnp.ones_like(sums) if weights is None else jnp.asarray(weights, sums.dtype)
    total = jnp.sum(w * counts)
    return jnp.sum(w * sums) / jnp.where(total != 0, total, 1)


def _hinge(x: Array, smooth: bool) -> Array:
    return jax.nn.softplus(x) if smooth else jax.nn.relu(x)


def triplet_loss(
    embeddings: Array,
    triplets: Triplets,
    *,
    margin: float = 0.2,
    squared: bool = True,
    smooth: bool = False,
    candidates: Array | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
) -> Array:
    """Mean of [d_ap - d_an + margin]+ over all valid triplets -> scalar; 0 if none is valid.

    Embeddings are compared as they are, not normalised. Distances are squared as in FaceNet
    (Schroff et al., CVPR 2015) or plain. Positives and negatives index `candidates` [M, D], by
    default the embeddings [B, D]; anchors have `weights` [B].
    """
    near, far = _squared_sides(embeddings, triplets, candidates, distance)
    if not squared:
        near, far = root(near), root(far)
    w = None if weights is None else jnp.asarray(weights)[triplets.anchors]
    return weighted_mean(_hinge(near - far + margin, smooth), triplets.valid, w)


@loss
def margin(
    embeddings: Array,
    labels: Array,
    beta: Boundaries,
    *,
    margin: NonNegative = 0.2,  # alpha, half the width of the gap around beta
    nu: NonNegative = 0.0,  # weight of the boundaries
    # Active triplets, or active pairs as in pytorch-metric-learning.
    divisor: Literal["triplets", "pairs"] = "triplets",
    # How triplets are chosen; "random", "semi_hard" and "distance_weighted" need a key.
    mining: Mining = "distance_weighted",
    # Negatives beyond are not drawn by "distance_weighted"; 0: no limit.
    farthest: NonNegative = 0.0,
    candidates: Candidates | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
    key: Array | None = None,
) -> Array:
    """`margin_loss` of one mined triplet per anchor -> scalar."""
    x, others = pairwise.compared(embeddings, labels, candidates, normalize=distance is None)
    triplets = _mine(mining, key, x, others, distance, farthest)
    among: Any = {"candidates": others.embeddings, "weights": weights, "distance": distance}
    options: Any = {"margin": margin, "nu": nu, "divisor": divisor}
    return margin_loss(x, labels, triplets, beta, **options, **among)


def margin_loss(
    embeddings: Array,
    labels: Array,
    triplets: Triplets,
    beta: Array,
    *,
    margin: float = 0.2,
    nu: float = 0.0,
    divisor: Literal["triplets", "pairs"] = "triplets",
    candidates: Array | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
) -> Array:
    """Margin loss (Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, Eq. 7 and
    8) -> scalar.

    The sum of [d_ap - beta_{y_a} + margin]+ and [beta_{y_a} - d_an + margin]+ over the number of
    active triplets, or of active hinges as in pytorch-metric-learning; 0 if there are none. beta
    [C] is the boundary between near and far for anchors of each class. nu is the weight of the sum
    of beta_{y_a} over all triplets, which keeps beta small; divisor "pairs" divides it, too, or
    drops it if no pair is active. Distances are Euclidean with 1e-8 under the root; candidates and
    weights are as in `triplet_loss`; the loss is NaN for labels outside 0..C-1.
    """
    indices = pairwise.class_indices(jnp.asarray(labels)[triplets.anchors], len(beta))
    boundary = jnp.take(at_least_float32(beta), indices, mode="fill", fill_value=jnp.nan)
    d_ap, d_an = (
        jnp.sqrt(side + 1e-8) for side in _squared_sides(embeddings, triplets, candidates, distance)
    )
    pull = jnp.where(triplets.valid, jax.nn.relu(d_ap - boundary + margin), 0)
    push = jnp.where(triplets.valid, jax.nn.relu(boundary - d_an + margin), 0)
    near, far = pull > ROUNDING, push > ROUNDING
    w = jnp.ones(len(embeddings)) if weights is None else jnp.asarray(weights)
    w = w.astype(pull.dtype)[triplets.anchors]
    penalty = jnp.sum(w * boundary, where=triplets.valid)
    match divisor:
        case "triplets":
            active = jnp.sum(w, where=near | far)
        case "pairs":
            active = jnp.sum(w, where=near) + jnp.sum(w, where=far)
            penalty = jnp.where(active != 0, penalty / jnp.where(active != 0, active, 1), 0)
        case _:
            assert_never(divisor)
    loss = jnp.sum(w * (pull + push)) / jnp.where(active != 0, active, 1)
    return loss + nu * penalty if nu else loss


def _mine(
    mining: Mining,
    key: Array | None,
    x: Array,
    others: Candidates,
    distance: Distance | None,
    farthest: float,
) -> Triplets:
    distances = (distance or pairwise.distances)(*jax.lax.stop_gradient((x, others.embeddings)))
    return miners.mine(
        mining, key, distances, others.positive, others.negative, dim=x.shape[-1], farthest=farthest
    )


@loss
def lifted_structure(
    embeddings: Array,
    labels: Array,
    *,
    margin: NonNegative = 1.0,  # alpha
    normalize: bool = True,  # unit embeddings; the paper uses them as they are
    candidates: Candidates | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
) -> Array:
    """Lifted structure loss (Song, Xiang, Jegelka, Savarese, CVPR 2016, Eq. 4) -> scalar.

    The mean of [J_ij]+^2 / 2 over the positive pairs, 0 for a pair without any negative:

        J_ij = log(sum_k exp(margin - d_ik) + sum_l exp(margin - d_lj)) + d_ij

    with the negatives k of i and l of j.
    """
    normalize = normalize and distance is None
    x, others = pairwise.compared(embeddings, labels, candidates, normalize=normalize)
    distances = (distance or pairwise.distances)(x, others.embeddings)
    rows = log_sum_exp(margin - distances, others.negative, axis=1)
    columns = log_sum_exp(margin - distances, others.negative, axis=0)
    j = jnp.logaddexp(rows[:, None], columns[None, :]) + distances
    return weighted_mean(jax.nn.relu(j) ** 2 / 2, others.positive, weights)


@loss
def n_pair(
    embeddings: Array,
    labels: Array,
    *,
    # Weight of the mean squared length of the embeddings, which are not normalised.
    l2: NonNegative = 0.002,
    squared: bool = True,  # false: of the mean length, as in Roth et al. (ICML 2020)
    candidates: Candidates | None = None,
    weights: Array | None = None,
    key: Array,
) -> Array:
    """N-pair loss (Sohn, NeurIPS 2016), the mean of `n_pair_losses` over the anchors -> scalar.

    Within a batch one random pair per class is compared with the positives of the other classes, as
    published. Among other candidates each anchor is compared with one random positive and all
    negatives, without the weight of the lengths.
    """
    x = at_least_float32(embeddings)
    if candidates is not None:
        positives, valid = miners.draw_uniform(key, candidates.positive)
        similarity = pairwise.inner_products(x, at_least_float32(candidates.embeddings))
        losses = n_pair_losses(similarity, positives, candidates.negative)
        return weighted_mean(losses, valid, weights)
    positives, valid = miners.class_pairs(key, labels)
    negative = valid[None, :] & ~pairwise.same_class(labels)
    losses = n_pair_losses(pairwise.inner_products(x, x[positives]), jnp.arange(len(x)), negative)
    lengths = jnp.sum(x**2, axis=1)
    lengths = lengths if squared else root(lengths)
    return weighted_mean(losses, valid, weights) + l2 * weighted_mean(lengths, weights=weights)


def n_pair_losses(similarity: Array, positives: Array, negative: Array) -> Array:
    """log(1 + sum over negatives n of exp(s_in - s_ip)) of each anchor i, float [N] (Eq. 6).

    Similarities [N, M] are inner products; `positives` [N] are columns. The negatives of the paper
    are the positives of the other classes.
    """
    excess = similarity - jnp.take_along_axis(similarity, positives[:, None], axis=1)
    return jnp.logaddexp(log_sum_exp(excess, negative, axis=1), 0)
