"""Exact nearest neighbours: tiles of the similarity product are merged into a running top-k.

The queries are split among the devices. Each device searches the whole gallery, in panels that fit
its memory.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from dml_jax.evaluation import user_distances, validation
from dml_jax.evaluation._engine import query_metrics, tiles
from dml_jax.evaluation._engine.tiles import REPLICATED, SHARDED, Centering, Metric, TiledRows
from dml_jax.evaluation.validation import ArrayLike

# Squared distances below this fraction of the squared lengths are recomputed from differences of
# rows, because products in float32 leave few correct digits.
RECOMPUTE_BELOW = 1e-2
PART_MEMORY = 1 << 28  # bytes per device for a part of a gallery
Best = tuple[jax.Array, jax.Array]  # scores and indices of candidates
# Candidates beyond the k-th, plus k / 16, show whether rounding may have excluded a nearer row.
SPARE = 2


def search(
    queries: ArrayLike,
    gallery: ArrayLike,
    k: int,
    *,
    metric: user_distances.Metric = "cosine",
    exclude_self: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the k nearest gallery rows of every query, nearest first, ties by index.

    Args:
      queries: [Q, D] real numbers, NumPy (also memory-mapped) or JAX.
      gallery: [G, D] real numbers.
      k: number of neighbours, at most the number of candidates.
      metric: "cosine", "euclidean" or a function of two blocks of rows (see `user_distances`).
      exclude_self: query i excludes gallery row i.

    Returns:
      distances [Q, k], 1 - cosine or Euclidean (not squared; float64 if float32 might not hold
      them), and indices int32 [Q, k].
    """
    validation.check_metric(metric, "cosine", "euclidean")
    points = query_points, gallery_points = validation.check_pair(queries, gallery)
    most = validation.count_candidates(gallery_points, exclude_self=exclude_self)
    k = validation.check_whole("k", k, 1, most)
    if callable(metric):
        distances = np.empty((len(query_points), k), np.float32)
        indices = np.empty((len(query_points), k), np.int32)
        for part, block in user_distances.blocks(metric, *points):
            for query, values in enumerate(block, start=part.start):
                excluded = query if exclude_self else -1
                indices[query] = query_metrics.nearest_first(-values, excluded)[:k]
                distances[query] = values[indices[query]]
        return distances, indices
    sources = [query_points] if query_points is gallery_points else [*points]
    centering = tiles.choose_centering(sources, metric)
    dtype = validation.compute_dtype(query_points)
    mesh = tiles.local_mesh()
    left, right = (_tiled(rows, len(rows), metric, centering, dtype, mesh) for rows in points)
    best = _top_k(left, right, k, exclude_self, mesh, tiles.memory_budget(mesh))
    squares, indices = _correct(left, right, *best, k, exclude_self)
    if metric == "cosine":
        return np.clip(squares / 2, 0, 2), indices
    return centering.unscaled(np.sqrt(np.maximum(squares, 0))), indices


def nearer(
    queries: np.ndarray, gallery: np.ndarray, k: int, limit: np.ndarray, most: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest rows by cosine in one part of a gallery; exact once all parts are merged.

    Args:
      queries, gallery: float32 [Q, D] and [G, D].
      limit: [Q], squared distances beyond which the caller ignores rows.
      most: the largest Q and G of all calls, for which the program is compiled.

    Returns:
      Squared distances of unit rows float32 [Q, k], rounded from float64, which may be infinity
      beyond the limit, and indices [Q, k]; nearest first, ties by index.
    """
    mesh = tiles.local_mesh()
    options: Any = "cosine", tiles.choose_centering([queries], "cosine"), np.dtype(np.float32), mesh
    left, right = _tiled(queries, most[0], *options), _tiled(gallery, most[1], *options)
    best = _top_k(left, right, k, False, mesh, PART_MEMORY)
    return _correct(left, right, *best, k, False, limit)


def _tiled(
    rows: np.ndarray, most: int, metric: Metric, centering: Centering, dtype: np.dtype, mesh: Mesh
) -> TiledRows:
    """All rows in their order, in tiles whose size suits `most` rows."""
    size = tiles.choose_tile_size(most, mesh)
    return TiledRows(rows, np.arange(len(rows)), size, metric, centering, dtype)


def _top_k(
    queries: TiledRows, gallery: TiledRows, k: int, exclude_self: bool, mesh: Mesh, memory: int
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and indices of the best k + SPARE + k // 16 candidates, or of all, if fewer."""
    k = min(k + SPARE + k // 16, len(gallery.order) - exclude_self)
    tile_bytes = gallery.tile_size * gallery.width * gallery.dtype.itemsize
    panel_tiles = max(1, memory // 2 // tile_bytes)
    sharded = NamedSharding(mesh, SHARDED)
    blocks = range(0, queries.num_tiles, mesh.size)
    shape = (len(blocks) * mesh.size, queries.tile_size, k)
    result = np.full(shape, -np.inf, gallery.dtype), np.zeros(shape, np.int32)
    for first in range(0, gallery.num_tiles, panel_tiles):
        panel = gallery.operand(slice(first, first + panel_tiles), right=True)
        rows = jax.device_put(panel, NamedSharding(mesh, REPLICATED))
        for tile in blocks:
            part = slice(tile, tile + mesh.size)
            block = queries.operand(part, right=False)
            block = np.pad(block, ((0, mesh.size - len(block)), (0, 0), (0, 0)))
            numbers = np.array([tile, first, len(gallery.order), exclude_self], np.int32)
            left, best = jax.device_put((block, tuple(values[part] for values in result)), sharded)
            merged = _merge_panel(left, rows, numbers, best, mesh)
            result[0][part], result[1][part] = map(np.asarray, merged)
    scores, indices = (x.reshape(-1, k)[: len(queries.order)] for x in result)
    return scores, indices


@partial(jax.jit, static_argnames="mesh", donate_argnames="best")
def _merge_panel(
    queries: jax.Array, gallery: jax.Array, numbers: jax.Array, best: Best, mesh: Mesh
) -> Best:
    """Merges a panel of the gallery into the best rows of n tiles of queries, one per device.

    `numbers` int32 [4] are the first tile of the queries, the first tile of the panel, the number
    of gallery rows, and whether a query excludes the row with its index; `best` [n, T, k] are the
    best rows so far.
    """

    def local(queries: jax.Array, gallery: jax.Array, numbers: jax.Array, best: Best) -> Best:
        query_tile, gallery_tile, candidates, exclude_self = numbers
        tile_size = gallery.shape[1]
        query = (query_tile + jax.lax.axis_index("data")) * queries.shape[1]
        query += jnp.arange(queries.shape[1], dtype=jnp.int32)
        excluded = jnp.where(exclude_self, query, -1)[:, None]

        def step(tile: jax.Array, best: Best) -> Best:
            index = (gallery_tile + tile) * tile_size
            index += jnp.arange(tile_size, dtype=jnp.int32)[None, :]
            product = jnp.matmul(queries[0], gallery[tile].T, precision=jax.lax.Precision.HIGHEST)
            product = jnp.where((index == excluded) | (index >= candidates), -jnp.inf, product)
            return _merge(best, (product, jnp.broadcast_to(index, product.shape)))

        scores, indices = jax.lax.fori_loop(0, len(gallery), step, (best[0][0], best[1][0]))
        return scores[None], indices[None]

    specs = (SHARDED, REPLICATED, REPLICATED, SHARDED)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=SHARDED, check_vma=False)(
        queries, gallery, numbers, best
    )


def _merge(best: Best, tile: Best) -> Best:
    """The k largest of [T, k] and of a tile [T, m] with higher indices; ties to the first."""
    both = [jnp.concatenate(parts, axis=1) for parts in zip(best, tile, strict=True)]
    k = best[0].shape[1]
    return jax.lax.platform_dependent(*both, tpu=partial(_sorted, k), default=partial(_selected, k))


def _selected(k: int, scores: jax.Array, indices: jax.Array) -> Best:
    values, columns = jax.lax.top_k(scores, k)
    return values, jnp.take_along_axis(indices, columns, axis=1)


def _sorted(k: int, scores: jax.Array, indices: jax.Array) -> Best:
    """`_selected` for TPUs, where a large top-k also sorts, and a gather costs ten times more."""
    operands = ~tiles.sortable_keys(scores), indices
    keys, indices = jax.lax.sort(operands, num_keys=2, is_stable=False)
    return tiles.scores_of_keys(~keys[:, :k]), indices[:, :k]


def _correct(
    queries: TiledRows,
    gallery: TiledRows,
    scores: np.ndarray,
    indices: np.ndarray,
    k: int,
    exclude_self: bool,
    limit: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest rows by squared distance, recomputed exactly where rounding may decide.

    With a limit [Q], only distances that may be below it are exact; larger ones become infinity.
    """
    lengths = tiles.squared_lengths(queries)[:, None]
    error = tiles.error_bound(queries.width, queries.dtype)
    if queries.metric == "cosine":
        squares, bound = 2 - 2 * scores, 2 * error * lengths
    else:  # |y|^2 <= 2 |x|^2 + 2 |x - y|^2
        squares, bound = -2 * scores, error * (3 * lengths - 4 * scores[:, -1:])
    uncertain = np.zeros(len(scores), bool)
    if scores.shape[1] < len(gallery.source) - exclude_self:
        uncertain = squares[:, -1] - squares[:, k - 1] <= 2 * bound[:, 0]
    beyond = None if limit is None else squares > limit[:, None] + 2 * bound
    if beyond is not None:
        uncertain &= ~beyond[:, k - 1]
    rows = np.flatnonzero(uncertain)
    for part, block in tiles.squared_distances(queries._replace(order=rows), gallery):
        for query, values in zip(rows[part], block, strict=True):
            order = query_metrics.nearest_first(-values, query if exclude_self else -1)
            indices[query] = order[: scores.shape[1]]
            squares[query] = values[indices[query]]
    close = squares[:, 1:] - squares[:, :-1] <= 2 * bound
    recomputed = (squares < RECOMPUTE_BELOW * 2 * lengths) | uncertain[:, None]
    recomputed[:, :-1] |= close
    recomputed[:, 1:] |= close
    if beyond is not None:
        recomputed = ~beyond | uncertain[:, None]
        squares[~recomputed] = np.inf
    row, column = np.nonzero(recomputed)
    for part, values in tiles.distances(queries, gallery, row, indices[row, column]):
        squares[row[part], column[part]] = values
    changed = np.unique(row)
    order = np.lexsort((indices[changed], squares[changed]), axis=1)
    for values in (squares, indices):
        values[changed] = np.take_along_axis(values[changed], order, axis=1)
    return squares[:, :k], indices[:, :k]
