"""Jitted reductions of a tile of scores: reading thresholds, counting the candidates that precede.

A tile holds the scores of its rows with its columns. The candidates of a reduction lie along one
axis of the tile and the queries along the other; symmetric tiles are reduced along both axes.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dml_jax.evaluation._engine.tiles import REPLICATED, SHARDED

CHUNK = 32  # rows or columns compared at once; divides every tile size

Array = TypeVar("Array", np.ndarray, jax.Array)


class Side(NamedTuple, Generic[Array]):
    """The row tiles or the column tiles of a product: their rows as candidates, and their targets
    (relevant rows, see `count_ranks.Targets`) as queries. A single tile has no axis m."""

    first: Array  # int32 [m], position of the first row of each tile
    indices: Array  # int32 [m, T], index of each row
    positions: Array  # int32 [m, R + 1, T], of the targets, then of the query; -1 if unused
    thresholds: Array  # integers [m, R, T], keys of the targets' scores; if unused, the largest
    ties: Array  # int32 [m, R, T], index of each target: equal scores with a lower index precede it


# (keys, axis of the candidates, their tile, tile of the queries, targets in use) -> [R, queries]
Reduction = Callable[[jax.Array, int, Side[jax.Array], Side[jax.Array], jax.Array], jax.Array]
Sides = tuple[Side[jax.Array], Side[jax.Array]]  # the tiles of the rows and of the columns
Sums = tuple[jax.Array, jax.Array]  # along the columns and along the rows


@partial(jax.jit, static_argnames=("mesh", "reduction"), donate_argnames="sums")
def accumulate(
    keys: jax.Array,
    sides: Sides,
    sums: Sums,
    pairs: jax.Array,
    num_targets: jax.Array,
    mesh: Mesh,
    reduction: Reduction,
) -> Sums:
    """Reduces the keys [n, S, T] of one tile per device along both axes, and adds to `sums`.

    `pairs` int32 [n, 2] are tiles of the replicated sides, `num_targets` int32 [n, 2] the targets
    in use along both axes, `sums` [n, p, R, S] and [n, q, R, T].
    """

    def local(
        keys: jax.Array, sides: Sides, sums: Sums, pairs: jax.Array, num_targets: jax.Array
    ) -> Sums:
        (a, b), tile, (rows, columns) = pairs[0], keys.reshape(keys.shape[1:]), sums
        left, right = Side(*(x[a] for x in sides[0])), Side(*(x[b] for x in sides[1]))
        columns = columns.at[0, b].add(reduction(tile, 0, left, right, num_targets[0, 1]))
        return rows.at[0, a].add(reduction(tile, 1, right, left, num_targets[0, 0])), columns

    specs = (SHARDED, REPLICATED, SHARDED, SHARDED, SHARDED)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=SHARDED, check_vma=False)(
        keys, sides, sums, pairs, num_targets
    )


def read_thresholds(
    keys: jax.Array,
    axis: int,
    candidates: Side[jax.Array],
    queries: Side[jax.Array],
    num_targets: jax.Array,
) -> jax.Array:
    """Keys of the targets that lie in a tile, 0 for the others: integers [R + 1, queries]."""
    position, size = queries.positions - candidates.first, keys.shape[axis]
    inside = (queries.positions >= 0) & (position >= 0) & (position < size) & (num_targets > 0)
    position = jnp.clip(position, 0, size - 1)
    values = jnp.take_along_axis(keys, position if axis == 0 else position.T, axis=axis)
    return jnp.where(inside, values if axis == 0 else values.T, 0)


@cache
def make_counter(group: int, disjoint: bool) -> Reduction:
    """A reduction that counts the candidates that precede each threshold: int32 [R, queries].

    `group` targets, a divisor of R, are counted at once. If the indices of the candidates are all
    below or all above the index of each target (`disjoint`), one comparison per target resolves the
    ties of the whole tile.
    """

    def count(
        keys: jax.Array,
        axis: int,
        candidates: Side[jax.Array],
        queries: Side[jax.Array],
        num_targets: jax.Array,
    ) -> jax.Array:
        index, thresholds, ties = candidates.indices, queries.thresholds, queries.ties
        # A candidate precedes a target if its key exceeds the threshold, or the threshold - 1 if
        # its index is lower.
        targets = (thresholds - (index[0] < ties),) if disjoint else (thresholds, ties)
        compare, summed_axis, arrange = COUNTERS[axis]

        def step(i: jax.Array, counts: jax.Array) -> jax.Array:
            chosen = (jax.lax.dynamic_slice_in_dim(x, i * group, group) for x in targets)
            # The first branch is always taken. The conditional keeps the compiler from fusing the
            # sum into the comparisons, which would then not be vectorised.
            total = jax.lax.cond(
                num_targets > 0,
                lambda x: jnp.sum(x, axis=summed_axis, dtype=jnp.int32),
                lambda x: jax.lax.index_in_dim(x, 0, summed_axis, keepdims=False),
                compare(keys, index, *chosen),
            )
            return jax.lax.dynamic_update_slice_in_dim(counts, arrange(total), i * group, 0)

        groups = (num_targets + group - 1) // group
        return jax.lax.fori_loop(0, groups, step, jnp.zeros(ties.shape, jnp.int32))

    return count


def count_preceding_rows(
    keys: jax.Array, index: jax.Array, thresholds: jax.Array, ties: jax.Array | None = None
) -> jax.Array:
    """Number of rows that precede each threshold of each column, summed over every 32nd row.

    Unrolled vector comparisons on blocks of 32 x 32 keys, which compilers turn into branch-free
    vector code on data in the L1 cache; a plain reduction is several times slower on CPUs.

    Keys are integers [S, T] with row indices int32 [S], thresholds [G, T], and ties int32 [G, T]:
    rows of lower index need only equal the threshold. Returns int32 [S / 32, T / 32, G, 32].
    """
    rows, columns = keys.shape
    shape = (rows // CHUNK, columns // CHUNK, len(thresholds), CHUNK)

    def to_blocks(x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(
            x.reshape(-1, columns // CHUNK, CHUNK).transpose(1, 0, 2)[None], shape
        )

    bound = thresholds = to_blocks(thresholds)
    tie = None if ties is None else to_blocks(ties)
    tile, order = keys.reshape(-1, CHUNK, columns // CHUNK, 1, CHUNK), index.reshape(-1, CHUNK)
    counts = jnp.zeros(shape, jnp.int32)
    for i in range(CHUNK):
        if tie is not None:
            bound = thresholds - (jnp.broadcast_to(order[:, i, None, None, None], shape) < tie)
        counts = counts + (jnp.broadcast_to(tile[:, i], shape) > bound)
    return counts


def count_preceding_columns(
    keys: jax.Array, index: jax.Array, thresholds: jax.Array, ties: jax.Array | None = None
) -> jax.Array:
    """`count_preceding_rows` for columns and the thresholds of rows, without transposing the tile.

    Returns int32 [S, G, 32], partial sums over every 32nd column.
    """
    shape = (len(keys), len(thresholds), CHUNK)
    bound = thresholds = jnp.broadcast_to(thresholds.T[:, :, None], shape)
    tie = None if ties is None else jnp.broadcast_to(ties.T[:, :, None], shape)
    tile, order = keys.reshape(len(keys), -1, CHUNK), index.reshape(-1, CHUNK)
    counts = jnp.zeros(shape, jnp.int32)
    for i in range(len(order)):
        if tie is not None:
            bound = thresholds - (jnp.broadcast_to(order[i, None, None], shape) < tie)
        counts = counts + (jnp.broadcast_to(tile[:, i, None, :], shape) > bound)
    return counts


# By axis of the candidates: partial sums, their axis still to be summed, and a map to [G, queries].
COUNTERS: dict[int, tuple[Callable[..., jax.Array], int, Callable[[jax.Array], jax.Array]]] = {
    0: (count_preceding_rows, 0, lambda sums: sums.transpose(1, 0, 2).reshape(sums.shape[1], -1)),
    1: (count_preceding_columns, 2, lambda sums: sums.T),
}
