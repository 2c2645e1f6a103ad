"""Losses that approximate ranking metrics of the batch, with sigmoids for the steps of ranks.

With cosines s and temperature t, the rank of candidate j for query i in a set S of candidates is

    R_i(j, S) = 1 + sum over k in S, k != j, of sigmoid((s_ik - s_ij) / t).

Smooth-AP (Brown, Xie, Kalogeiton, Zisserman, ECCV 2020) is the mean over the queries of 1 - AP_i,

    AP_i = mean over the positives j of R_i(j, positives) / R_i(j, all).

The Recall@k surrogate (Patel, Tolias, Matas, CVPR 2022) is the mean over i, k of 1 - recall_i(k):

    recall_i(k) = min(k, sum_j sigmoid((k - R_i(j, all)) / t_k)) / min(k, |positives|).

Its published results need batches of hundreds to thousands of images; its similarity mixup is not
implemented. Unlike in both papers' code (Andrew-Brown1/Smooth_AP, yash0307/RecallatK_surrogate), a
query is not among its own candidates.

N queries with M candidates and at most P positives need N M P sigmoids and O(N M) memory, gradients
included.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from jax import Array

from dml_jax.config.fields import NonEmpty, Positive, PositiveInt
from dml_jax.errors import ConfigError
from dml_jax.losses.pairwise import (
    Candidates,
    Distance,
    Divisor,
    Mean,
    Reduce,
    Relation,
    find_pairs,
    reduce_terms,
)
from dml_jax.losses.signature import loss

GROUP = 16  # ranks that `soft_ranks` skips together if no query has that many positives


@loss
def smooth_ap(
    embeddings: Array,
    labels: Array | None = None,
    *,
    temperature: Positive = 0.01,
    divisor: Divisor = "all",
    candidates: Candidates | Array | None = None,
    candidate_labels: Array | None = None,
    positive: Array | None = None,
    negative: Array | None = None,
    relation: Relation | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
    reduce: Reduce = "mean",
) -> Array:
    """Smooth-AP (Brown et al., ECCV 2020) -> scalar.

    The mean over the queries that have positives; 0 if there are none.

    Args:
      temperature: t of the ranks, in cosine; greater than 0.
    """
    pairs = find_pairs(embeddings, labels, candidates, weights, distance)
    positive, similarity = pairs.positive, pairs.normalized().similarities()
    among_positives = soft_ranks(similarity, positive, positive, temperature)
    among_all = soft_ranks(similarity, positive, positive | pairs.negative, temperature)
    ratios = jnp.where(positive, among_positives / jnp.where(positive, among_all, 1), 0)
    precision = ratios.sum(axis=1) / jnp.maximum(positive.sum(axis=1), 1)
    return reduce_terms(Mean(1 - precision, positive.any(axis=1)), weights, divisor, reduce)


@loss
def recall_at_k(
    embeddings: Array,
    labels: Array | None = None,
    *,
    ks: Annotated[tuple[PositiveInt, ...], NonEmpty] = (1, 2, 4, 8, 16),
    k_temperatures: tuple[Positive, ...] = (1.0, 2.0, 4.0, 8.0, 16.0),
    temperature: Positive = 0.01,
    divisor: Divisor = "all",
    candidates: Candidates | Array | None = None,
    candidate_labels: Array | None = None,
    positive: Array | None = None,
    negative: Array | None = None,
    relation: Relation | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
    reduce: Reduce = "mean",
) -> Array:
    """Recall@k surrogate (Patel, Tolias, Matas, CVPR 2022) -> scalar.

    The mean over the queries that have positives; 0 if there are none.

    Args:
      ks: Values of k whose recalls are averaged; each greater than 0.
      k_temperatures: t_k in ranks, one per k; each greater than 0.
      temperature: t of the ranks, in cosine; greater than 0.
    """
    if len(ks) != len(k_temperatures):
        rule = f"needs one value per k in ks={tuple(ks)}"
        raise ConfigError(f"recall_at_k: k_temperatures {rule}; got {tuple(k_temperatures)}")
    pairs = find_pairs(embeddings, labels, candidates, weights, distance)
    positive, similarity = pairs.positive, pairs.normalized().similarities()
    ranks = soft_ranks(similarity, positive, positive | pairs.negative, temperature)
    count = positive.sum(axis=1)
    recalls = []
    for k, k_temperature in zip(ks, k_temperatures, strict=True):
        hits = jnp.sum(jax.nn.sigmoid((k - ranks) / k_temperature), axis=1, where=positive)
        recalls.append(jnp.minimum(hits, k) / jnp.clip(count, 1, k))
    recall = jnp.mean(jnp.stack(recalls), axis=0)
    return reduce_terms(Mean(1 - recall, positive.any(axis=1)), weights, divisor, reduce)


def soft_ranks(similarity: Array, ranked: Array, among: Array, temperature: float) -> Array:
    """R_i(j, among) of every `ranked` candidate j, 0 elsewhere: float [N, M].

    Forward and backward passes rank one candidate per query at a time, so that no N M^2 differences
    are stored.
    """
    number = jnp.cumsum(ranked, axis=1)  # counts the ranked candidates of each query from 1

    def rank(turn: Array) -> Array:
        """R_i of the candidate with this number, 0 elsewhere, [N, M]."""
        at = ranked & (number == turn)
        reference = jnp.sum(similarity, axis=1, keepdims=True, where=at)
        steps = jax.nn.sigmoid((similarity - reference) / temperature)
        ahead = jnp.sum(steps, axis=1, keepdims=True, where=among & ~at)
        return jnp.where(at, 1 + ahead, 0)

    @jax.checkpoint
    def add(ranks: Array, turn: Array) -> tuple[Array, None]:
        """Adds the ranks of one or more turns, unless no query has that many candidates."""
        several = partial(jax.lax.scan, add, ranks, turn)
        more = (lambda: several()[0]) if turn.ndim else (lambda: ranks + rank(turn))
        return jax.lax.cond(turn.min() > number[:, -1].max(), lambda: ranks, more), None

    groups = -(-number.shape[1] // GROUP)
    turns = 1 + jnp.arange(groups * GROUP).reshape(groups, GROUP)
    return jax.lax.scan(add, jnp.zeros_like(similarity), turns)[0]
