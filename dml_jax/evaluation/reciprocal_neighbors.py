"""Batches of k-reciprocal nearest neighbours, one per query (Seidenschwarz et al., ICML 2021, appendix C.3).

Based on the k-reciprocal encoding of Zhong et al. (CVPR 2017), with N(q, k) the k nearest neighbours of q:

    R(q, k) = {g in N(q, k): q in N(g, k)}
    E(q)    = R(q, k) and every R(g, k/2), g in R(q, k), of which more than 2/3 lies in R(q, k)
    batch   = q, then the nearest of E(q), then the nearest of all others, up to a fixed size

In the authors' code, N(q, k) holds k + 1 images including q, and the fraction must exceed 2/3; in the paper, N(q, k)
excludes q, and a fraction of exactly 2/3 suffices. k/2 is rounded half to even.
"""

import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dml_jax.numerics import at_least_float32

Rule = Literal["authors", "paper"]
BLOCK = 128  # queries whose distances to the whole gallery are in memory at once


class Sets(NamedTuple):
    """Neighbourhoods of Q queries in a gallery of G rows."""

    batches: jax.Array  # int32 [Q, size]
    near: jax.Array  # int32 [Q, k or k + 1], N(q, k), nearest first
    reciprocal: jax.Array  # bool, same shape as `near`: which of them are in R(q, k)
    near_half: jax.Array  # int32 [G, k/2 or k/2 + 1], N(g, k/2) within the gallery
    reciprocal_half: jax.Array  # bool, same shape as `near_half`: which of them are in R(g, k/2)
    expanded: jax.Array | None  # bool [Q, G], E(q); None unless requested


def _nearness(query: jax.Array, gallery: jax.Array, itself: jax.Array) -> jax.Array:
    """Negative squared Euclidean distances [G] up to a constant; infinite for row `itself` (-1: none)."""
    product = jnp.matmul(gallery, query, precision=lax.Precision.HIGHEST)
    return jnp.where(jnp.arange(len(gallery)) == itself, jnp.inf, 2 * product - jnp.sum(gallery * gallery, axis=1))


def _ranking(queries: jax.Array, gallery: jax.Array, itself: jax.Array, count: int) -> jax.Array:
    """Indices int32 [Q, count], nearest first, ties broken by lower index."""

    def one(row: tuple[jax.Array, jax.Array]) -> jax.Array:
        return lax.top_k(_nearness(row[0], gallery, row[1]), min(count, len(gallery)))[1]

    return lax.map(one, (queries, itself), batch_size=BLOCK)


def _mutual(forward: jax.Array, backward: jax.Array) -> jax.Array:
    """Which neighbours `forward` [Q, k] have the query among their own neighbours `backward` [G, k']: bool [Q, k]."""

    def one(row: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (backward[row[1]] == row[0]).any(axis=1)

    return lax.map(one, (jnp.arange(len(forward)), forward), batch_size=BLOCK)


@functools.partial(jax.jit, static_argnames=("k", "size", "rule", "dense"))
def sets(
    queries: jax.Array,
    gallery: jax.Array | None = None,
    *,
    k: int,
    size: int,
    rule: Rule = "authors",
    dense: bool = False,
) -> Sets:
    """Neighbourhoods and batches of all queries, without storing the full distance matrix.

    Args:
      queries: float [Q, D].
      gallery: float [G, D]; None if the queries search each other.
      k: neighbourhood size.
      size: images per batch. Batches begin with the query; gallery row g is denoted by Q + g if there is a gallery.
      dense: also return the expanded sets, Q×G booleans.
    """
    among_themselves = gallery is None
    queries = at_least_float32(queries)
    gallery = queries if gallery is None else at_least_float32(gallery)
    rows = jnp.arange(len(gallery))
    itself = rows if among_themselves else jnp.full(len(queries), -1)
    half = round(k / 2)

    def top(ranking: jax.Array, k: int, includes_query: bool) -> jax.Array:
        if rule == "authors":
            return ranking[:, : k + 1]
        return ranking[:, 1 : k + 1] if includes_query else ranking[:, :k]

    ranking = _ranking(queries, gallery, itself, max(k + 1, size))
    near = top(ranking, k, among_themselves)
    if among_themselves:
        back, within = near, ranking
    else:
        back = top(_ranking(gallery, queries, jnp.full_like(rows, -1), k + 1), k, False)
        within = _ranking(gallery, gallery, rows, half + 1)
    near_half = top(within, half, True)
    reciprocal, reciprocal_half = _mutual(near, back), _mutual(near_half, near_half)
    length = min(size if among_themselves else size - 1, len(gallery))

    def one(row: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array | None]:
        query, own, nearest, neighbours, mutual = row
        members = jnp.zeros(len(gallery), bool).at[neighbours].set(mutual)
        further, valid = near_half[neighbours], reciprocal_half[neighbours] & mutual[:, None]
        shared, bound = 3 * jnp.sum(members[further] & valid, axis=1), 2 * jnp.sum(valid, axis=1)
        joins = shared > bound if rule == "authors" else shared >= bound
        expanded = members.at[further].max(valid & joins[:, None])
        if rule == "paper":
            expanded &= rows != own
        first = expanded | (rows == own)
        value, order = lax.top_k(jnp.where(first, _nearness(query, gallery, own), -jnp.inf), length)
        candidates = jnp.concatenate([order, nearest[:length]])
        usable = jnp.concatenate([value > -jnp.inf, ~first[nearest[:length]]])
        batch = candidates[jnp.argsort(~usable, stable=True)[:length]]
        return batch, expanded if dense else None

    batches, expanded = lax.map(one, (queries, itself, ranking, near, reciprocal), batch_size=BLOCK)
    if not among_themselves:
        batches = jnp.concatenate([jnp.arange(len(queries))[:, None], batches + len(queries)], axis=1)
    return Sets(batches, near, reciprocal, near_half, reciprocal_half, expanded)
