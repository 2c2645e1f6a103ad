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

Time O(N M P), memory O(N M) for N queries, M candidates, at most P positives, gradients included.
"""

from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
from jax import Array

from dml_jax.config.fields import NonEmpty, Positive, PositiveInt
from dml_jax.errors import ConfigError
from dml_jax.losses import pairwise
from dml_jax.losses.pairwise import Candidates, weighted_mean
from dml_jax.losses.signature import loss


@loss
def smooth_ap(
    embeddings: Array,
    labels: Array,
    *,
    temperature: Positive = 0.01,  # t of the ranks, in cosine
    candidates: Candidates | None = None,
    weights: Array | None = None,
) -> Array:
    """Smooth-AP: the mean over the queries that have positives -> scalar; 0 if there are none."""
    x, others = pairwise.compared(embeddings, labels, candidates)
    positive = others.positive
    similarity = pairwise.inner_products(x, others.embeddings)
    among_positives = soft_ranks(similarity, positive, positive, temperature)
    among_all = soft_ranks(similarity, positive, positive | others.negative, temperature)
    ratios = jnp.where(positive, among_positives / jnp.where(positive, among_all, 1), 0)
    precision = ratios.sum(axis=1) / jnp.maximum(positive.sum(axis=1), 1)
    return weighted_mean(1 - precision, positive.any(axis=1), weights)


@loss
def recall_at_k(
    embeddings: Array,
    labels: Array,
    *,
    # The recalls at these k are averaged.
    ks: Annotated[tuple[PositiveInt, ...], NonEmpty] = (1, 2, 4, 8, 16),
    # t_k in ranks, one for each k.
    k_temperatures: tuple[Positive, ...] = (1.0, 2.0, 4.0, 8.0, 16.0),
    temperature: Positive = 0.01,  # t of the ranks, in cosine
    candidates: Candidates | None = None,
    weights: Array | None = None,
) -> Array:
    """Recall@k surrogate: the mean over queries with positives -> scalar; 0 if there are none."""
    if len(ks) != len(k_temperatures):
        given = f"k_temperatures={tuple(k_temperatures)}"
        raise ConfigError(f"recall_at_k: {given}: give one for each of ks={tuple(ks)}")
    x, others = pairwise.compared(embeddings, labels, candidates)
    positive, ranked = others.positive, others.positive | others.negative
    similarity = pairwise.inner_products(x, others.embeddings)
    ranks = soft_ranks(similarity, positive, ranked, temperature)
    count = positive.sum(axis=1)
    recalls = []
    for k, k_temperature in zip(ks, k_temperatures, strict=True):
        found = jnp.sum(jax.nn.sigmoid((k - ranks) / k_temperature), axis=1, where=positive)
        recalls.append(jnp.minimum(found, k) / jnp.clip(count, 1, k))
    recall = jnp.mean(jnp.stack(recalls), axis=0)
    return weighted_mean(1 - recall, positive.any(axis=1), weights)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def soft_ranks(similarity: Array, wanted: Array, among: Array, temperature: float) -> Array:
    """R_i(j, among) of every candidate j in `wanted`, 0 elsewhere: float [N, M].

    One candidate per query is ranked at a time, so that no N M^2 differences are stored. The
    gradient, written out because the number of iterations depends on the labels, does the same.
    """
    number = jnp.cumsum(wanted, axis=1)

    def rank_one(turn: Array, ranks: Array) -> Array:
        at = wanted & (number == turn + 1)
        ahead = jnp.sum(_steps(similarity, at, among, temperature), axis=1, keepdims=True)
        return jnp.where(at, 1 + ahead, ranks)

    return jax.lax.fori_loop(0, number[:, -1].max(), rank_one, jnp.zeros_like(similarity))


def _steps(similarity: Array, at: Array, among: Array, temperature: float) -> Array:
    """sigmoid((s_ik - s_ij) / t) for the candidate j `at` of each row and all k != j `among`."""
    ranked = jnp.sum(similarity, axis=1, keepdims=True, where=at)
    return jnp.where(among & ~at, jax.nn.sigmoid((similarity - ranked) / temperature), 0)


def _backward(
    temperature: float, saved: tuple[Array, Array, Array], slopes: Array
) -> tuple[Array, None, None]:
    similarity, wanted, among = saved
    number = jnp.cumsum(wanted, axis=1)

    def add_one(turn: Array, gradient: Array) -> Array:
        at = wanted & (number == turn + 1)
        steps = _steps(similarity, at, among, temperature)
        slope = jnp.sum(slopes, axis=1, keepdims=True, where=at)
        parts = steps * (1 - steps) * slope / temperature
        return gradient + parts - jnp.where(at, parts.sum(axis=1, keepdims=True), 0)

    zeros = jnp.zeros_like(similarity)
    return jax.lax.fori_loop(0, number[:, -1].max(), add_one, zeros), None, None


soft_ranks.defvjp(lambda *arguments: (soft_ranks(*arguments), arguments[:3]), _backward)
