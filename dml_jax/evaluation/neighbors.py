"""Exact nearest neighbours: tiles of the similarity product merged into a running top-k.

The gallery is divided among the devices and put once. For each block of queries, the devices exchange the queries and
the nearest rows that each found.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dml_jax.errors import DataError
from dml_jax.evaluation import check_inputs
from dml_jax.evaluation._engine import query_metrics, tiles
from dml_jax.evaluation._engine.tiles import REPLICATED, Metric, TiledRows
from dml_jax.evaluation.check_inputs import ArrayLike

# Squared distances below this fraction of the squared lengths are recomputed from the differences of the rows: in
# float32 the product leaves them few correct digits.
RECOMPUTE_BELOW = 1e-2
BLOCK = P(("gallery", "queries"))  # how a block of queries is divided, one tile for each device
# The gallery is divided among devices as long as the busiest one computes at most this many times more products.
MORE_PRODUCTS = 1.125
SPARE = 2  # candidates beyond the k-th, plus k / 16, to detect whether rounding may have excluded a nearer row


def search(
    queries: ArrayLike,
    gallery: ArrayLike,
    k: int,
    *,
    metric: Metric = "cosine",
    exclude_self: bool = False,
    mesh: Mesh | None = None,
    memory: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the k nearest gallery rows of every query, nearest first, ties by index.

    Args:
      queries: [Q, D] real numbers, NumPy (also memory-mapped) or JAX.
      gallery: [G, D] real numbers.
      k: number of neighbours, at most the number of candidates.
      metric: "cosine" or "euclidean".
      exclude_self: query i excludes gallery row i.
      mesh: devices, by default all of this process; the result does not depend on them.
      memory: bytes to use per device; by default 60 % of an accelerator's memory, and 1 GiB in all on CPUs.

    Returns:
      distances [Q, k], 1 - cosine or Euclidean (not squared), and indices int32 [Q, k].
    """
    query_points = check_inputs.embeddings(queries, name="queries")
    gallery_points = query_points if gallery is queries else check_inputs.embeddings(gallery, name="gallery")
    check_inputs.check_same_width(query_points, gallery_points)
    candidates = len(gallery_points) - bool(exclude_self)
    if not 0 < k <= candidates:
        raise DataError(f"k={k}: there are {candidates} candidates; k must be in 1..{candidates}")
    mesh = mesh or tiles.local_mesh()
    sources = [query_points] if query_points is gallery_points else [query_points, gallery_points]
    centering = tiles.choose_centering(sources, metric)
    dtype = check_inputs.compute_dtype(query_points)
    left, right = (
        TiledRows(points, np.arange(len(points)), tiles.choose_tile_size(len(points), mesh), metric, centering, dtype)
        for points in (query_points, gallery_points)
    )
    most = min(k + SPARE + k // 16, candidates)
    found = _top_k(left, right, most, exclude_self, mesh, memory or tiles.memory_budget(mesh))
    squares, indices = _correct(left, right, *found, k, exclude_self)
    if metric == "cosine":
        return np.clip(squares / 2, 0, 2), indices
    return np.sqrt(np.maximum(squares, 0)) / dtype.type(centering.scale), indices


def _top_k(
    queries: TiledRows, gallery: TiledRows, k: int, exclude_self: bool, mesh: Mesh, memory: int
) -> tuple[np.ndarray, np.ndarray]:
    """Scores [Q, k] and indices [Q, k] of the best candidates."""
    shards = _gallery_shards(queries.num_tiles, gallery.num_tiles, mesh.size)
    mesh = Mesh(mesh.devices.reshape(shards, -1), ("gallery", "queries"))
    resident = max(1, memory // 2 // (gallery.tile_size * gallery.width * gallery.dtype.itemsize))
    panel_tiles = shards * min(resident, -(-gallery.num_tiles // shards))
    block_starts = range(0, queries.num_tiles, mesh.size)
    shape = (len(block_starts) * mesh.size, queries.tile_size, k)
    result = np.full(shape, -np.inf, gallery.dtype), np.zeros(shape, np.int32)
    for first in range(0, gallery.num_tiles, panel_tiles):
        rows = _put_tiles(gallery, first, panel_tiles, True, mesh, P("gallery"))
        for tile in block_starts:
            part = slice(tile, tile + mesh.size)
            best = _merge_panel(
                _put_tiles(queries, tile, mesh.size, False, mesh, BLOCK),
                rows,
                np.array([tile, len(queries.order), first, len(gallery.order), exclude_self], np.int32),
                *(jax.device_put(values[part], NamedSharding(mesh, BLOCK)) for values in result),
                mesh,
            )
            for target, values in zip(result, best, strict=True):
                target[part] = np.asarray(values)
        del rows, best  # before the next panel is put beside them
    scores, indices = (x.reshape(-1, k)[: len(queries.order)] for x in result)
    return scores, indices


def _gallery_shards(query_tiles: int, gallery_tiles: int, devices: int) -> int:
    """Parts into which the gallery is divided: as many as leave few devices without a tile, a divisor of `devices`."""
    divisors = [shards for shards in range(1, devices + 1) if devices % shards == 0]
    products = {s: -(-query_tiles * s // devices) * -(-gallery_tiles // s) for s in divisors}  # on the busiest device
    return max(s for s in divisors if products[s] <= MORE_PRODUCTS * min(products.values()))


def _put_tiles(rows: TiledRows, first: int, count: int, right: bool, mesh: Mesh, spec: P) -> jax.Array:
    """Operands of `count` tiles from `first` on, zeros beyond the last one; each device's are prepared apart."""

    def prepare(index: Any) -> np.ndarray:
        start, stop, _ = index[0].indices(count)
        found = rows.operand(slice(first + start, first + stop), right=right)
        padding = stop - start - len(found)
        return np.pad(found, ((0, padding), (0, 0), (0, 0))) if padding else found

    shape = (count, rows.tile_size, rows.width)
    return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), prepare)


@partial(jax.jit, static_argnames="mesh", donate_argnames=("scores", "indices"))
def _merge_panel(
    queries: jax.Array, gallery: jax.Array, numbers: jax.Array, scores: jax.Array, indices: jax.Array, mesh: Mesh
) -> tuple[jax.Array, jax.Array]:
    """Merges a panel of the gallery into the top-k of a block of queries, one tile for each of n devices.

    Devices in a row of the mesh hold the same tiles of the gallery. Those in a column search theirs for all tiles of
    queries of the column, which go round, and exchange what they find.
    `numbers` int32 [5] are the first tile and the number of rows of the queries and of the gallery, and whether a query
    excludes the row of its index; scores and indices [n, T, k] are the best of the rows before this panel.
    """
    shards, columns = mesh.devices.shape

    def local(
        queries: jax.Array, gallery: jax.Array, numbers: jax.Array, scores: jax.Array, indices: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        query_tile, query_rows, gallery_tile, candidates, exclude_self = numbers
        tile_size = gallery.shape[1]
        row, column = jax.lax.axis_index("gallery"), jax.lax.axis_index("queries")
        first = (gallery_tile + row * gallery.shape[0]) * tile_size
        used = jnp.clip(-((first - candidates) // tile_size), 0, gallery.shape[0])  # tiles that are not padding

        def search(rows: jax.Array, turn: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            own = (query_tile + (row + turn) % shards * columns + column) * len(rows)
            own += jnp.arange(len(rows), dtype=jnp.int32)
            excluded = jnp.where(exclude_self, own, -1)[:, None]

            def step(tile: jax.Array, best: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
                index = first + tile * tile_size + jnp.arange(tile_size, dtype=jnp.int32)[None, :]
                product = jnp.matmul(rows, gallery[tile].T, precision=jax.lax.Precision.HIGHEST)
                product = jnp.where((index == excluded) | (index >= candidates), -jnp.inf, product)
                return _merge(*best, product, jnp.broadcast_to(index, product.shape))

            found = jax.lax.fori_loop(0, jnp.where(own[0] < query_rows, used, 0), step, start)
            to_previous = [(i, (i - 1) % shards) for i in range(shards)]
            return jax.lax.ppermute(rows, "gallery", to_previous), found

        before = scores[0], indices[0]
        start = before if shards == 1 else (jnp.full_like(before[0], -jnp.inf), jnp.zeros_like(before[1]))
        _, (scores, indices) = jax.lax.scan(search, queries[0], jnp.arange(shards, dtype=jnp.int32))
        if shards > 1:
            parts = (jax.lax.all_to_all(jnp.roll(x, row, axis=0), "gallery", 0, 0) for x in (scores, indices))
            found = (part.transpose(1, 0, 2).reshape(part.shape[1], -1) for part in parts)
            scores, indices = (x[None] for x in _merge(*before, *found))
        return scores, indices

    specs = (BLOCK, P("gallery"), REPLICATED, BLOCK, BLOCK)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(BLOCK, BLOCK), check_vma=False)(
        queries, gallery, numbers, scores, indices
    )


def _merge(
    scores: jax.Array, indices: jax.Array, others: jax.Array, other_indices: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The k largest of scores [T, k] and of others [T, m], with higher indices; the first ones where they are equal."""
    values, chosen = jax.lax.top_k(jnp.concatenate([scores, others], axis=1), scores.shape[1])
    return values, jnp.take_along_axis(jnp.concatenate([indices, other_indices], axis=1), chosen, axis=1)


def _correct(
    queries: TiledRows, gallery: TiledRows, scores: np.ndarray, indices: np.ndarray, k: int, exclude_self: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest candidates by squared distances (prepared or unit rows), exact wherever rounding could decide."""
    lengths, error = tiles.squared_lengths(queries)[:, None], tiles.error_bound(queries.width, queries.dtype)
    if queries.metric == "cosine":
        squares, bound = 2 - 2 * scores, 2 * error * lengths
    else:  # |y|^2 <= 2 |x|^2 + 2 |x - y|^2
        squares, bound = -2 * scores, error * (3 * lengths - 4 * scores[:, -1:])
    uncertain = np.zeros(len(scores), bool)
    if scores.shape[1] < len(gallery.source) - exclude_self:
        uncertain = squares[:, -1] - squares[:, k - 1] <= 2 * bound[:, 0]
    rows = np.flatnonzero(uncertain)
    for part, block in tiles.squared_distances(queries._replace(order=rows), gallery):
        for query, values in zip(rows[part], block, strict=True):
            indices[query] = query_metrics.nearest_first(-values, query if exclude_self else -1)[: scores.shape[1]]
            squares[query] = values[indices[query]]
    close = squares[:, 1:] - squares[:, :-1] <= 2 * bound
    recomputed = (squares < RECOMPUTE_BELOW * 2 * lengths) | uncertain[:, None]
    recomputed[:, :-1] |= close
    recomputed[:, 1:] |= close
    row, column = np.nonzero(recomputed)
    for part, values in tiles.distances(queries, gallery, row, indices[row, column]):
        squares[row[part], column[part]] = values
    changed = np.unique(row)
    order = np.lexsort((indices[changed], squares[changed]), axis=1)
    for values in (squares, indices):
        values[changed] = np.take_along_axis(values[changed], order, axis=1)
    return squares[:, :k], indices[:, :k]
