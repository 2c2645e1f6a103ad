"""Losses that approximate a ranking metric of the batch by replacing the steps of the ranks with
sigmoids.

The rank of candidate j for query i among a set S of candidates, with cosines s and temperature t,
is

    R_i(j, S) = 1 + sum over k in S, k != j, of sigmoid((s_ik - s_ij) / t).

Smooth-AP (Brown, Xie, Kalogeiton, Zisserman, ECCV 2020) is 1 - AP_i, averaged over the queries,
where

    AP_i = mean over the positives j of R_i(j, positives) / R_i(j, all).

The Recall@k surrogate (Patel, Tolias, Matas, CVPR 2022) is 1 - recall_i(k), averaged over the
queries and several k:

    recall_i(k) = min(k, sum over the positives j of sigmoid((k - R_i(j, all)) / t_k)) / min(k,
    number of positives).

Its published results need batches of hundreds to thousands of images; its similarity mixup is not
implemented. A query is no candidate of its own ranking, unlike in both papers' code
(Andrew-Brown1/Smooth_AP, yash0307/RecallatK_surrogate).

For N queries, M candidates and at most P positives per query, time is O(N M P) and memory O(N M),
gradients included.
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
    ks: Annotated[tuple[PositiveInt, ...], NonEmpty] = (
        1,
        2,
        4,
        8,
        16,
    ),  # of the recalls that are averaged
    k_temperatures: tuple[Positive, ...] = (
        1.0,
        2.0,
        4.0,
        8.0,
        16.0,
    ),  # t_k in ranks, one for each k
    temperature: Positive = 0.01,  # t of the ranks, in cosine
    candidates: Candidates | None = None,
    weights: Array | None = None,
) -> Array:
    """Recall@k surrogate: the mean over the queries that have positives -> scalar; 0 if there are
    none."""
    if len(ks) != len(k_temperatures):
        raise ConfigError(
            f"recall_at_k: k_temperatures={tuple(k_temperatures)}: give one for each of "
            f"ks={tuple(ks)}"
        )
    x, others = pairwise.compared(embeddings, labels, candidates)
    ranked = others.positive | others.negative
    ranks = soft_ranks(
        pairwise.inner_products(x, others.embeddings), others.positive, ranked, temperature
    )
    count = others.positive.sum(axis=1)
    recalls = []
    for k, k_temperature in zip(ks, k_temperatures, strict=True):
        found = jnp.sum(jax.nn.sigmoid((k - ranks) / k_temperature), axis=1, where=others.positive)
        recalls.append(jnp.minimum(found, k) / jnp.clip(count, 1, k))
    return weighted_mean(
        1 - jnp.mean(jnp.stack(recalls), axis=0), others.positive.any(axis=1), weights
    )


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def soft_ranks(similarity: Array, wanted: Array, among: Array, temperature: float) -> Array:
    """R_i(j, among) of every candidate j in `wanted`, 0 elsewhere: float [N, M].

    One wanted candidate per query is ranked at a time, so that the N M^2 differences are never
    stored. The gradient does the same; it is written out because the number of iterations depends
    on the labels.
    """
    number = jnp.cumsum(wanted, axis=1)

    def rank_one(turn: Array, ranks: Array) -> Array:
        at = wanted & (number == turn + 1)
        return jnp.where(
            at,
            1 + jnp.sum(_steps(similarity, at, among, temperature), axis=1, keepdims=True),
            ranks,
        )

    return jax.lax.fori_loop(0, number[:, -1].max(), rank_one, jnp.zeros_like(similarity))


def _steps(similarity: Array, at: Array, among: Array, temperature: float) -> Array:
    """sigmoid((s_ik - s_ij) / t) for each row's one candidate j `at` and all k != j in `among`; 0
    elsewhere."""
    own = jnp.sum(similarity, axis=1, keepdims=True, where=at)
    return jnp.where(among & ~at, jax.nn.sigmoid((similarity - own) / temperature), 0)


def _backward(
    temperature: float, saved: tuple[Array, Array, Array], slopes: Array
) -> tuple[Array, None, None]:
    similarity, wanted, among = saved
    number = jnp.cumsum(wanted, axis=1)

    def add_one(turn: Array, gradient: Array) -> Array:
        at = wanted & (number == turn + 1)
        steps = _steps(similarity, at, among, temperature)
        own = steps * (1 - steps) * jnp.sum(slopes, axis=1, keepdims=True, where=at) / temperature
        return gradient + own - jnp.where(at, own.sum(axis=1, keepdims=True), 0)

    return (
        jax.lax.fori_loop(0, number[:, -1].max(), add_one, jnp.zeros_like(similarity)),
        None,
        None,
    )


soft_ranks.defvjp(lambda *arguments: (soft_ranks(*arguments), arguments[:3]), _backward)
