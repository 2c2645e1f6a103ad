"""Losses on the distances of pairs and triplets.

A function named after a loss takes embeddings and labels and finds pairs or triplets in the batch
or among `candidates`; it normalises the embeddings unless it says otherwise. A function with the
suffix `_loss` or `_losses` takes pairs or triplets as arguments. If pairs have weights, a triplet
has the product of the weights of its two pairs.
"""

from __future__ import annotations

from typing import Literal, assert_never

import jax
import jax.numpy as jnp
from jax import Array

from dml_jax.config.fields import NonNegative
from dml_jax.losses import mining as miners
from dml_jax.losses import pairwise
from dml_jax.losses.mining import LOWER, Mining, TripletMining, Triplets
from dml_jax.losses.pairwise import (
    ROUNDING,
    Distance,
    Divisor,
    Mean,
    Pairs,
    Reduce,
    Relation,
    WeightedCandidates,
    find_pairs,
    is_active,
    reduce_terms,
)
from dml_jax.losses.signature import Boundaries, loss, only_with
from dml_jax.numerics import at_least_float32, log_sum_exp, root


@loss
def contrastive(
    embeddings: Array,
    labels: Array | None = None,
    *,
    positive_margin: NonNegative = 0.0,
    negative_margin: NonNegative = 1.0,
    divisor: Divisor = "active",
    candidates: WeightedCandidates = None,
    candidate_labels: Array | None = None,
    positive: Array | None = None,
    negative: Array | None = None,
    relation: Relation | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
    reduce: Reduce = "mean",
) -> Array:
    """Contrastive loss -> scalar.

    The mean of [d - positive_margin]+ over the positive pairs plus the mean of
    [negative_margin - d]+ over the negative pairs. The original squares both (Hadsell, Chopra,
    LeCun, CVPR 2006, Eq. 4).

    Args:
      positive_margin: Positive pairs closer than this have no loss; at least 0.
      negative_margin: Negative pairs farther apart than this have no loss; at least 0.
    """
    pairs = find_pairs(embeddings, labels, candidates, weights, distance)
    distances = pairs.normalized().distances()
    pull, push = jax.nn.relu(distances - positive_margin), jax.nn.relu(negative_margin - distances)
    near, far = pairs.positive, pairs.negative
    terms = Mean(pull, near > 0, near), Mean(push, far > 0, far)
    return reduce_terms(terms, weights, divisor, reduce)


@loss
@only_with("mining", "distance_weighted", "nearest", "farthest")
def triplet(
    embeddings: Array,
    labels: Array | None = None,
    *,
    margin: NonNegative = 0.2,
    squared: bool = True,
    mining: TripletMining = "semi_hard",
    smooth: bool = False,
    swap: bool = False,
    nearest: NonNegative = LOWER,
    farthest: NonNegative = 0.0,
    divisor: Divisor = "all",
    key: Array | None = None,
    candidates: WeightedCandidates = None,
    candidate_labels: Array | None = None,
    positive: Array | None = None,
    negative: Array | None = None,
    relation: Relation | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
    reduce: Reduce = "mean",
) -> Array:
    """Triplet loss (Schroff, Kalenichenko, Philbin, CVPR 2015) -> scalar.

    The mean of [d_ap - d_an + margin]+ over one mined triplet per anchor, or over all triplets.

    With reduce=None, one value per anchor [N]: the loss of its mined triplet, or the mean over all
    its triplets.

    Args:
      margin: Distance by which the positive must be closer than the negative; at least 0.
      squared: Compares squared distances.
      mining: How triplets are chosen, see `mining.mine`, or "all"; "random", "semi_hard" and
        "distance_weighted" need a key.
      smooth: Uses log(1 + exp(.)) in place of the hinge.
      swap: Replaces d_an by the distance from the negative to the positive if that is smaller.
      nearest: "distance_weighted" draws negatives nearer than this as if they were at this
        distance; at least 0.
      farthest: "distance_weighted" draws no negatives beyond this distance; 0 for no limit.
      divisor: Averages over "all" triplets, or over the "active" ones, whose loss is positive.
      key: Random key, for mining that draws.
    """
    pairs = find_pairs(embeddings, labels, candidates, weights, distance).normalized()
    if mining == "all":
        each = _all_triplets(pairs, margin, squared, smooth, swap, divisor)
        return reduce_terms(each, weights, reduce=reduce)
    triplets = _mine(pairs, mining, key, nearest, farthest)
    near, far = _squared_sides(pairs.anchors, pairs.candidates, triplets, pairs.distance, swap)
    hinges = _hinges(near, far, margin, squared, smooth)
    counted = triplets.valid & is_active(hinges) if divisor == "active" else triplets.valid
    each = Mean(hinges, counted, _triplet_weights(pairs, triplets))
    return reduce_terms(each, weights, reduce=reduce)


def _all_triplets(
    pairs: Pairs, margin: float, squared: bool, smooth: bool, swap: bool, divisor: Divisor
) -> Mean:
    """The mean over the triplets of each anchor, weighted by their number.

    Forward and backward passes go through the anchors one by one, so that no array [N, M, M] is
    stored.
    """
    power = 2 if squared else 1
    distances = pairs.distances() ** power
    between = pairs._replace(anchors=pairs.candidates).distances() ** power if swap else None

    @jax.checkpoint
    def anchor_sums(row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        d, near, far = row
        d_an = d[None] if between is None else jnp.minimum(d[None], between)
        hinges = d[:, None] - d_an + margin
        hinges = jax.nn.softplus(hinges) if smooth else jax.nn.relu(hinges)
        counted = (near > 0)[:, None] & (far > 0)[None]
        counted = counted & is_active(hinges) if divisor == "active" else counted
        if near.dtype == far.dtype == bool:
            return jnp.sum(hinges, where=counted), jnp.sum(counted, dtype=hinges.dtype)
        weights = jnp.where(counted, near[:, None] * far[None], 0)
        return jnp.sum(weights * hinges), jnp.sum(weights)

    sums, counts = jax.lax.map(anchor_sums, (distances, pairs.positive, pairs.negative))
    return Mean(sums / jnp.where(counts > 0, counts, 1), counts > 0, counts)


def _mine(
    pairs: Pairs, mining: Mining, key: Array | None, nearest: float, farthest: float
) -> Triplets:
    rows = jax.lax.stop_gradient((pairs.anchors, pairs.candidates))
    distances = pairs._replace(anchors=rows[0], candidates=rows[1]).distances()
    masks, dim = (pairs.positive > 0, pairs.negative > 0), pairs.anchors.shape[1]
    return miners.mine(mining, key, distances, *masks, dim=dim, nearest=nearest, farthest=farthest)


def _triplet_weights(pairs: Pairs, triplets: Triplets) -> Array | None:
    """The product of the weights of the two pairs of each triplet [T]; None for masks."""
    if pairs.positive.dtype == pairs.negative.dtype == bool:
        return None
    near = pairs.positive[triplets.anchors, triplets.positives]
    return 1.0 * near * pairs.negative[triplets.anchors, triplets.negatives]


def _squared_sides(
    anchors: Array,
    candidates: Array,
    triplets: Triplets,
    distance: Distance | None,
    swap: bool = False,
) -> tuple[Array, Array]:
    """Squared distances from each anchor to its positive and its negative, [T] each."""

    def squares(a: Array, b: Array) -> Array:
        if distance is None:
            return jnp.sum((a - b) ** 2, axis=-1)
        return jax.vmap(lambda row, column: distance(row[None], column[None])[0, 0])(a, b) ** 2

    a, p = anchors[triplets.anchors], candidates[triplets.positives]
    n = candidates[triplets.negatives]
    far = squares(a, n)
    return squares(a, p), jnp.minimum(far, squares(p, n)) if swap else far


def _hinges(near: Array, far: Array, margin: float, squared: bool, smooth: bool) -> Array:
    """[d_ap - d_an + margin]+ from squared distances."""
    near, far = (near, far) if squared else (root(near), root(far))
    hinges = near - far + margin
    return jax.nn.softplus(hinges) if smooth else jax.nn.relu(hinges)


def triplet_loss(
    embeddings: Array,
    triplets: Triplets,
    *,
    margin: float,
    squared: bool,
) -> Array:
    """Mean of [d_ap - d_an + margin]+ over all valid triplets -> scalar; 0 if none is valid.

    Embeddings [B, D] are not normalised. Distances are squared, as in FaceNet (Schroff et al., CVPR
    2015), or plain.
    """
    x = at_least_float32(embeddings)
    sides = _squared_sides(x, x, triplets, None)
    return pairwise.weighted_mean(_hinges(*sides, margin, squared, smooth=False), triplets.valid)


@loss
@only_with("mining", "distance_weighted", "nearest", "farthest")
def margin(
    embeddings: Array,
    labels: Array | None,
    beta: Boundaries,
    *,
    margin: NonNegative = 0.2,
    nu: NonNegative = 0.0,
    divisor: Literal[Divisor, "pairs"] = "active",
    mining: Mining = "distance_weighted",
    nearest: NonNegative = LOWER,
    farthest: NonNegative = 0.0,
    key: Array | None = None,
    candidates: WeightedCandidates = None,
    candidate_labels: Array | None = None,
    positive: Array | None = None,
    negative: Array | None = None,
    relation: Relation | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
    reduce: Reduce = "mean",
) -> Array:
    """Margin loss (Wu et al., ICCV 2017): `margin_loss` of one mined triplet per anchor -> scalar.

    With reduce=None, one value per anchor [N]: the sum of both hinges or, with the divisor "pairs",
    the mean over the active hinges.

    Args:
      margin: alpha, half the width of the gap around beta; at least 0.
      nu: Weight of the sum of the boundaries; at least 0.
      divisor: Averages over "all" triplets, over the "active" ones, whose loss is positive, or over
        the "pairs" whose loss is positive, as in pytorch-metric-learning.
      mining: How triplets are chosen, see `mining.mine`; "random", "semi_hard" and
        "distance_weighted" need a key.
      nearest: "distance_weighted" draws negatives nearer than this as if they were at this
        distance; at least 0.
      farthest: "distance_weighted" draws no negatives beyond this distance; 0 for no limit.
      key: Random key, for mining that draws.
    """
    pairs = find_pairs(embeddings, labels, candidates, weights, distance).normalized()
    triplets = _mine(pairs, mining, key, nearest, farthest)
    terms = _margin_terms(pairs, triplets, beta, margin, nu, divisor)
    return reduce_terms(terms, weights, reduce=reduce)


def margin_loss(
    embeddings: Array,
    labels: Array,
    triplets: Triplets,
    beta: Array,
    *,
    margin: float = 0.2,
    nu: float = 0.0,
    divisor: Literal[Divisor, "pairs"] = "active",
) -> Array:
    """Margin loss (Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017, Eq. 7 and
    8) -> scalar.

    The sum of [d_ap - beta_{y_a} + margin]+ and [beta_{y_a} - d_an + margin]+ over all triplets,
    divided by the number of active triplets, or of active hinges as in pytorch-metric-learning; 0
    without any. beta [C] is the boundary between positive and negative pairs for the anchors of
    each class. nu is the weight of the sum of beta_{y_a} over all triplets, which keeps beta small.
    The divisor "pairs" also divides this sum, or drops it if no pair is active. Distances are
    Euclidean with 1e-8 under the root; embeddings [B, D] are not normalised. The loss is NaN for
    labels outside 0..C-1.
    """
    x = at_least_float32(embeddings)
    pairs = Pairs(x, x, *pairwise.masks(labels), labels, None, None, True)
    return reduce_terms(_margin_terms(pairs, triplets, beta, margin, nu, divisor), None)


def _margin_terms(
    pairs: Pairs,
    triplets: Triplets,
    beta: Array,
    margin: float,
    nu: float,
    divisor: Literal[Divisor, "pairs"],
) -> tuple[Mean, Array]:
    labels, weights, pair_weights = pairs.labels, pairs.weights, _triplet_weights(pairs, triplets)
    sides = _squared_sides(pairs.anchors, pairs.candidates, triplets, pairs.distance)
    indices = pairwise.class_indices(jnp.asarray(labels)[triplets.anchors], len(beta))
    boundary = jnp.take(at_least_float32(beta), indices, mode="fill", fill_value=jnp.nan)
    d_ap, d_an = (jnp.sqrt(side + 1e-8) for side in sides)
    hinges = jax.nn.relu(jnp.stack([d_ap - boundary, boundary - d_an], axis=1) + margin)
    w = jnp.ones_like(d_ap) if weights is None else jnp.asarray(weights, d_ap.dtype)
    penalty = jnp.sum(w * boundary, where=triplets.valid) if nu else jnp.zeros_like(d_ap[0])
    match divisor:
        case "pairs":
            counted = triplets.valid[:, None] & is_active(hinges)
            number = jnp.sum(counted, axis=1, dtype=hinges.dtype)
            active = jnp.sum(w * number)
            penalty = jnp.where(active != 0, penalty / jnp.where(active != 0, active, 1), 0)
            values = jnp.sum(hinges, axis=1, where=counted) / jnp.maximum(number, 1)
            each = number if pair_weights is None else number * pair_weights
            return Mean(values, number > 0, each), nu * penalty
        case "active" | "all":
            values = hinges.sum(axis=1)
            lowest = ROUNDING if divisor == "active" else -jnp.inf
            counted = triplets.valid & ~(hinges.max(axis=1) <= lowest)
            return Mean(values, counted, pair_weights), nu * penalty
        case _:
            assert_never(divisor)


@loss
def lifted_structure(
    embeddings: Array,
    labels: Array | None = None,
    *,
    margin: NonNegative = 1.0,
    normalize: bool = True,
    divisor: Divisor = "all",
    candidates: WeightedCandidates = None,
    candidate_labels: Array | None = None,
    positive: Array | None = None,
    negative: Array | None = None,
    relation: Relation | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
    reduce: Reduce = "mean",
) -> Array:
    """Lifted structure loss (Song, Xiang, Jegelka, Savarese, CVPR 2016, Eq. 4) -> scalar.

    The mean of [J_ij]+^2 / 2 over the positive pairs, 0 for a pair without any negative:

        J_ij = log(sum_k exp(margin - d_ik) + sum_l exp(margin - d_lj)) + d_ij

    with the negatives k of i and l of j.

    Args:
      margin: alpha; at least 0.
      normalize: Normalises the embeddings; the paper does not.
    """
    pairs = find_pairs(embeddings, labels, candidates, weights, distance)
    distances = (pairs.normalized() if normalize else pairs).distances()
    exponents = margin - distances + pairwise.log_weights(pairs.negative)
    rows = log_sum_exp(exponents, pairs.negative > 0, axis=1)
    columns = log_sum_exp(exponents, pairs.negative > 0, axis=0)
    j = jnp.logaddexp(rows[:, None], columns[None, :]) + distances
    each = Mean(jax.nn.relu(j) ** 2 / 2, pairs.positive > 0, pairs.positive)
    return reduce_terms(each, weights, divisor, reduce)


@loss
def n_pair(
    embeddings: Array,
    labels: Array | None = None,
    *,
    l2: NonNegative = 0.002,
    squared: bool = True,
    key: Array,
    divisor: Divisor = "all",
    candidates: WeightedCandidates = None,
    candidate_labels: Array | None = None,
    positive: Array | None = None,
    negative: Array | None = None,
    relation: Relation | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
    reduce: Reduce = "mean",
) -> Array:
    """N-pair loss (Sohn, NeurIPS 2016), the mean of `n_pair_losses` over the anchors -> scalar.

    Within a batch, the loss draws one pair per class and uses the positives of the other classes as
    negatives, as published. With candidates, it compares each anchor with one random positive and
    all negatives, and `l2` has no effect.

    Args:
      l2: Weight of the mean squared length of the embeddings, which are not normalised; at least 0.
      squared: If false, `l2` is the weight of the mean length, as in Roth et al. (ICML 2020).
      key: Random key.
    """
    pairs = find_pairs(embeddings, labels, candidates, weights, distance)
    x = pairs.anchors
    if not pairs.in_batch:
        positives, valid = miners.draw_uniform(key, pairs.positive > 0)
        losses = n_pair_losses(pairs.similarities(), positives, pairs.negative)
        drawn = jnp.take_along_axis(pairs.positive, positives[:, None], axis=1)[:, 0]
        return reduce_terms(Mean(losses, valid, drawn), weights, divisor, reduce)
    positives, valid = miners.class_pairs(key, pairs.labels)
    negative = valid[None, :] & ~pairwise.same_class(pairs.labels)
    similarity = pairs._replace(candidates=x[positives]).similarities()
    losses = n_pair_losses(similarity, jnp.arange(len(x)), negative)
    lengths = jnp.sum(x**2, axis=1)
    lengths = lengths if squared else root(lengths)
    terms = Mean(losses, valid), l2 * pairwise.weighted_mean(lengths, weights=weights)
    return reduce_terms(terms, weights, divisor, reduce)


def n_pair_losses(similarity: Array, positives: Array, negative: Array) -> Array:
    """log(1 + sum over negatives n of exp(s_in - s_ip)) for each anchor i, float [N] (Eq. 6).

    Similarities [N, M] are inner products, `positives` [N] columns, and `negative` [N, M] a mask or
    weights. The paper's negatives are the positives of the other classes.
    """
    excess = similarity - jnp.take_along_axis(similarity, positives[:, None], axis=1)
    excess += pairwise.log_weights(negative)
    return jnp.logaddexp(log_sum_exp(excess, negative > 0, axis=1), 0)
