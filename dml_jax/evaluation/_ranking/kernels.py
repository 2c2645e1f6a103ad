"""What a tile of scores tells the queries in its columns and, transposed, those in its rows. Jitted kernels."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

EVERYWHERE, SPREAD = P(), P("data")  # on every device; one part on each
CHAIN = 32  # divides the rows of every tile


class Side(NamedTuple):
    """What the tiles of one factor ask and are asked.

    Attributes:
      first: int32 [m], first place of each tile.
      indices: int32 [m, T], index of each row.
      places: int32 [m, R + 1, T], place of the row each slot asks for, -1 for unused slots; last the query's own place.
      thresholds: integers [m, R, T], keys of the scores at these places, the largest one for unused slots.
      ties: int32 [m, R, T], index of the row in each slot: equally near rows of lower index come before it.
    """

    first: Any
    indices: Any
    places: Any
    thresholds: Any
    ties: Any


# (scores, axis of the candidates, their side and tile, the queries' side and tile, slots in use) -> [R, queries]
Visit = Callable[[jax.Array, int, Side, jax.Array, Side, jax.Array, jax.Array], jax.Array]


def keys(scores: jax.Array) -> jax.Array:
    """Integers in the order of float32 (int32) or float64 (int64) scores; both zeros are 0."""
    kind = jnp.int32 if scores.dtype == jnp.float32 else jnp.int64
    bits = jax.lax.bitcast_convert_type(scores, kind)
    return jnp.where(scores == 0, 0, bits ^ ((bits >> (bits.dtype.itemsize * 8 - 1)) & jnp.iinfo(kind).max))


@functools.partial(jax.jit, static_argnames=("mesh", "keyed"))
def product(left: jax.Array, right: jax.Array, pairs: jax.Array, mesh: Mesh, keyed: bool = False) -> jax.Array:
    """One tile of scores on each of n devices.

    Args:
      left: [p, S, W] and right: [q, T, W] prepared rows, on every device.
      pairs: int32 [n, 2], a tile of `left` and one of `right` for each device.
      keyed: as integers, see `keys`.

    Returns:
      [n, S, T].
    """

    def local(left: jax.Array, right: jax.Array, pairs: jax.Array) -> jax.Array:
        a, b = left[pairs[0, 0]], right[pairs[0, 1]]
        scores = jnp.matmul(a, b.T, precision=jax.lax.Precision.HIGHEST)[None]
        return keys(scores) if keyed else scores

    specs = (EVERYWHERE, EVERYWHERE, SPREAD)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=SPREAD, check_vma=False)(left, right, pairs)


@functools.partial(jax.jit, static_argnames=("mesh", "visit"), donate_argnames=("rows", "columns"))
def serve(
    scores: jax.Array,
    left: Side,
    right: Side,
    rows: jax.Array,
    columns: jax.Array,
    pairs: jax.Array,
    live: jax.Array,
    mesh: Mesh,
    visit: Visit,
) -> tuple[jax.Array, jax.Array]:
    """Adds what a tile on each device says to the queries in its rows and columns.

    Args:
      scores: integers [n, S, T], keys.
      left, right: of the rows and of the columns, on every device.
      rows: [n, p, R, S] and columns: [n, q, R, T], what was found so far.
      pairs: int32 [n, 2], tiles of left and right.
      live: int32 [n, 2], how many slots of rows and columns are in use; 0: nothing is asked.
      visit: `collect` or a `counter`.
    """

    def local(
        scores: jax.Array,
        left: Side,
        right: Side,
        rows: jax.Array,
        columns: jax.Array,
        pairs: jax.Array,
        live: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        (a, b), tile = pairs[0], scores.reshape(scores.shape[1:])
        columns = columns.at[0, b].add(visit(tile, 0, left, a, right, b, live[0, 1]))
        return rows.at[0, a].add(visit(tile, 1, right, b, left, a, live[0, 0])), columns

    specs = (SPREAD, EVERYWHERE, EVERYWHERE, SPREAD, SPREAD, SPREAD, SPREAD)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(SPREAD, SPREAD), check_vma=False)(
        scores, left, right, rows, columns, pairs, live
    )


@functools.partial(jax.jit, static_argnames="mesh")
def gathered(parts: jax.Array, mesh: Mesh) -> jax.Array:
    """The sum over the devices, on every device."""
    return jax.lax.with_sharding_constraint(jnp.sum(parts, axis=0), jax.NamedSharding(mesh, EVERYWHERE))


def collect(
    scores: jax.Array, axis: int, candidates: Side, a: jax.Array, queries: Side, b: jax.Array, live: jax.Array
) -> jax.Array:
    """Keys of the rows asked for that lie in a tile, 0 for the others: integers [R + 1, queries]."""
    place, size = queries.places[b] - candidates.first[a], scores.shape[axis]
    here = (queries.places[b] >= 0) & (place >= 0) & (place < size) & (live > 0)
    place = jnp.clip(place, 0, size - 1)
    found = jnp.take_along_axis(scores, place if axis == 0 else place.T, axis=axis)
    return jnp.where(here, found if axis == 0 else found.T, 0)


@functools.cache
def counter(group: int, apart: bool) -> Visit:
    """Counts how many candidates of a tile come before each threshold of its queries: int32 [R, queries].

    Args:
      group: slots counted in one go, divides R.
      apart: whether the indices of the candidates lie all below or all above the index of each slot's row, so that one
        comparison settles ties.
    """

    def count(
        scores: jax.Array,
        axis: int,
        candidates: Side,
        a: jax.Array,
        queries: Side,
        b: jax.Array,
        live: jax.Array,
    ) -> jax.Array:
        index, thresholds, ties = candidates.indices[a], queries.thresholds[b], queries.ties[b]
        # A candidate comes before a slot if its key exceeds the threshold, less one if its index is the lower.
        slots = (thresholds - (index[0] < ties),) if apart else (thresholds, ties)
        compare, summed, finish = WAYS[axis]

        def step(i: jax.Array, counts: jax.Array) -> jax.Array:
            partial = compare(scores, index, *(jax.lax.dynamic_slice_in_dim(x, i * group, group) for x in slots))
            # The branch is always taken. It keeps the compiler from merging the sum into the comparisons, which would
            # then run one number at a time.
            total = finish(
                jax.lax.cond(
                    live > 0,
                    lambda x: jnp.sum(x, axis=summed, dtype=jnp.int32),
                    lambda x: jax.lax.index_in_dim(x, 0, summed, keepdims=False),
                    partial,
                )
            )
            return jax.lax.dynamic_update_slice_in_dim(counts, total, i * group, 0)

        return jax.lax.fori_loop(0, (live + group - 1) // group, step, jnp.zeros(ties.shape, jnp.int32))

    return count


def before_in_columns(
    scores: jax.Array, index: jax.Array, thresholds: jax.Array, ties: jax.Array | None = None
) -> jax.Array:
    """How many rows come before each threshold of each column, in partial sums over every 32 rows.

    Chains of vector comparisons on blocks of 32 x 32 keys, which compilers turn into straight vector code on data in
    the first cache; a plain reduction is several times slower on CPUs.

    Args:
      scores: integers [S, T], keys; index: int32 [S], of its rows.
      thresholds: integers [G, T], what a key must exceed.
      ties: int32 [G, T], a row of lower index need but reach the threshold; by default all must exceed it.

    Returns:
      int32 [S / 32, T / 32, G, 32].
    """
    rows, columns = scores.shape
    shape = (rows // CHAIN, columns // CHAIN, len(thresholds), CHAIN)

    def spread(x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(x.reshape(-1, columns // CHAIN, CHAIN).transpose(1, 0, 2)[None], shape)

    bound = thresholds = spread(thresholds)
    tie = None if ties is None else spread(ties)
    tile, order = scores.reshape(-1, CHAIN, columns // CHAIN, 1, CHAIN), index.reshape(-1, CHAIN)
    counts = jnp.zeros(shape, jnp.int32)
    for i in range(CHAIN):
        if tie is not None:
            bound = thresholds - (jnp.broadcast_to(order[:, i, None, None, None], shape) < tie)
        counts = counts + (jnp.broadcast_to(tile[:, i], shape) > bound)
    return counts


def before_in_rows(
    scores: jax.Array, index: jax.Array, thresholds: jax.Array, ties: jax.Array | None = None
) -> jax.Array:
    """The same for the columns that come before each threshold of each row; no transposed tile is made.

    Args:
      scores: integers [S, T], keys; index: int32 [T], of its columns.
      thresholds, ties: [G, S], see `before_in_columns`.

    Returns:
      int32 [S, G, 32]: partial sums over every 32nd column.
    """
    shape = (len(scores), len(thresholds), CHAIN)
    bound = thresholds = jnp.broadcast_to(thresholds.T[:, :, None], shape)
    tie = None if ties is None else jnp.broadcast_to(ties.T[:, :, None], shape)
    tile, order = scores.reshape(len(scores), -1, CHAIN), index.reshape(-1, CHAIN)
    counts = jnp.zeros(shape, jnp.int32)
    for i in range(len(order)):
        if tie is not None:
            bound = thresholds - (jnp.broadcast_to(order[i, None, None], shape) < tie)
        counts = counts + (jnp.broadcast_to(tile[:, i, None, :], shape) > bound)
    return counts


# By axis of the candidates: partial sums, the axis left to sum, and the sums as [G, queries].
WAYS: dict[int, tuple[Callable[..., jax.Array], int, Callable[[jax.Array], jax.Array]]] = {
    0: (before_in_columns, 0, lambda sums: sums.transpose(1, 0, 2).reshape(sums.shape[1], -1)),
    1: (before_in_rows, 2, lambda sums: sums.T),
}
