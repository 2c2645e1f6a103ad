"""Losses that approximate a ranking metric of the batch: the steps of the ranks become sigmoids.

With cosines s and temperature t, the rank of candidate j for query i in a set S of candidates is

    R_i(j, S) = 1 + sum over k in S, k != j, of sigmoid((s_ik - s_ij) / t).

Smooth-AP (Brown, Xie, Kalogeiton, Zisserman, ECCV 2020) is the mean over the queries of 1 - AP_i,

    AP_i = mean over the positives j of R_i(j, positives) / R_i(j, all).

The Recall@k surrogate (Patel, Tolias, Matas, CVPR 2022) is the mean over i, k of 1 - recall_i(k):

    recall_i(k) = min(k, sum_j sigmoid((k - R_i(j, all)) / t_k)) / min(k, |positives|).

Its published results need batches of hundreds to thousands of images; its similarity mixup is not
implemented. Unlike in both papers' code (Andrew-Brown1/Smooth_AP, yash0307/RecallatK_surrogate), a
query is not among its own candidates.

Sigmoids: N M P for N queries, M candidates and at most P positives; memory: O(N M), gradients
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
    Pairs,
    Reduce,
    Relation,
    reduced,
)
from dml_jax.losses.signature import loss

SKIPPED = 16  # turns of `soft_ranks` that are skipped at once where no query has as many


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
    pairs = Pairs.of(embeddings, labels, candidates, weights, distance)
    positive, similarity = pairs.positive, pairs.compared().similarities()
    among_positives = soft_ranks(similarity, positive, positive, temperature)
    among_all = soft_ranks(similarity, positive, positive | pairs.negative, temperature)
    ratios = jnp.where(positive, among_positives / jnp.where(positive, among_all, 1), 0)
    precision = ratios.sum(axis=1) / jnp.maximum(positive.sum(axis=1), 1)
    return reduced(Mean(1 - precision, positive.any(axis=1)), weights, divisor, reduce)


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
      ks: The recalls at these k are averaged; each greater than 0.
      k_temperatures: t_k in ranks, one for each k; each greater than 0.
      temperature: t of the ranks, in cosine; greater than 0.
    """
    if len(ks) != len(k_temperatures):
        given = f"k_temperatures={tuple(k_temperatures)}"
        raise ConfigError(f"recall_at_k: {given}: give one for each of ks={tuple(ks)}")
    pairs = Pairs.of(embeddings, labels, candidates, weights, distance)
    positive, similarity = pairs.positive, pairs.compared().similarities()
    ranks = soft_ranks(similarity, positive, positive | pairs.negative, temperature)
    count = positive.sum(axis=1)
    recalls = []
    for k, k_temperature in zip(ks, k_temperatures, strict=True):
        found = jnp.sum(jax.nn.sigmoid((k - ranks) / k_temperature), axis=1, where=positive)
        recalls.append(jnp.minimum(found, k) / jnp.clip(count, 1, k))
    recall = jnp.mean(jnp.stack(recalls), axis=0)
    return reduced(Mean(1 - recall, positive.any(axis=1)), weights, divisor, reduce)


def soft_ranks(similarity: Array, wanted: Array, among: Array, temperature: float) -> Array:
    """R_i(j, among) of every candidate j in `wanted`, 0 elsewhere: float [N, M].

    One candidate per query is ranked at a time, also backwards, so that no N M^2 differences are
    stored.
    """
    number = jnp.cumsum(wanted, axis=1)  # of each candidate to be ranked, from 1 on

    def rank(turn: Array) -> Array:
        """R_i of the candidate of each query with this number, 0 elsewhere, [N, M]."""
        at = wanted & (number == turn)
        ranked = jnp.sum(similarity, axis=1, keepdims=True, where=at)
        steps = jax.nn.sigmoid((similarity - ranked) / temperature)
        ahead = jnp.sum(steps, axis=1, keepdims=True, where=among & ~at)
        return jnp.where(at, 1 + ahead, 0)

    @jax.checkpoint
    def add(ranks: Array, turn: Array) -> tuple[Array, None]:
        """Adds those of one turn, or of several, unless no query has as many candidates."""
        several = partial(jax.lax.scan, add, ranks, turn)
        more = (lambda: several()[0]) if turn.ndim else (lambda: ranks + rank(turn))
        return jax.lax.cond(turn.min() > number[:, -1].max(), lambda: ranks, more), None

    groups = -(-number.shape[1] // SKIPPED)
    turns = 1 + jnp.arange(groups * SKIPPED).reshape(groups, SKIPPED)
    return jax.lax.scan(add, jnp.zeros_like(similarity), turns)[0]
