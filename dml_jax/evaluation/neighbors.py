"""Exact nearest neighbours: tiles of the similarity product merged into a running top-k."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dml_jax.errors import DataError
from dml_jax.evaluation import check_inputs
from dml_jax.evaluation._engine import exact, sort, tiles
from dml_jax.evaluation._engine.tiles import REPLICATED, SHARDED, Metric, TiledRows
from dml_jax.evaluation.check_inputs import ArrayLike

# Squared distances below this fraction of the squared lengths are recomputed from the differences of the rows: in
# float32 the product leaves them few correct digits.
RECOMPUTE_BELOW = 1e-2
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
    progress: Callable[[int, int], None] | None = None,
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
      progress: called with the number of query tiles done and the total.

    Returns:
      distances [Q, k], 1 - cosine or Euclidean (not squared), and indices int32 [Q, k].
    """
    query_points = check_inputs.embeddings(queries, name="queries")
    gallery_points = query_points if gallery is queries else check_inputs.embeddings(gallery, name="gallery")
    check_inputs.check_same_width(query_points, gallery_points)
    if metric not in ("cosine", "euclidean"):
        raise DataError(f"metric={metric!r}: give 'cosine' or 'euclidean'")
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
    found = _top_k(
        left,
        right,
        min(k + SPARE + k // 16, candidates),
        exclude_self,
        mesh,
        memory or tiles.memory_budget(mesh),
        progress,
    )
    squares, indices = _correct(left, right, *found, k, exclude_self)
    if metric == "cosine":
        return np.clip(squares / 2, 0, 2), indices
    return np.sqrt(np.maximum(squares, 0)) / dtype.type(centering.scale), indices


def _top_k(
    queries: TiledRows,
    gallery: TiledRows,
    k: int,
    exclude_self: bool,
    mesh: Mesh,
    memory: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores [Q, k] and indices [Q, k] of the best candidates."""

    def put(value: np.ndarray, spec: P) -> jax.Array:
        return jax.device_put(value, NamedSharding(mesh, spec))

    panel_tiles = max(1, memory // 2 // (gallery.tile_size * gallery.width * gallery.dtype.itemsize))
    panel_starts = range(0, gallery.num_tiles, panel_tiles)
    panels: dict[int, jax.Array] = {}
    shape = (mesh.size, queries.tile_size)
    result = (
        np.empty((queries.num_tiles * queries.tile_size, k), gallery.dtype),
        np.empty((queries.num_tiles * queries.tile_size, k), np.int32),
    )
    for tile in range(0, queries.num_tiles, mesh.size):
        rows = queries.operand(slice(tile, tile + mesh.size), right=False)
        block = np.zeros((mesh.size, *rows.shape[1:]), rows.dtype)
        block[: len(rows)] = rows
        first = tile * queries.tile_size
        index = np.arange(first, first + mesh.size * queries.tile_size, dtype=np.int32).reshape(shape)
        query_tiles = put(block, SHARDED)
        excluded = put(index if exclude_self else np.full(shape, -1, np.int32), SHARDED)
        best = (
            put(np.full((*shape, k), -np.inf, rows.dtype), SHARDED),
            put(np.zeros((*shape, k), np.int32), SHARDED),
        )
        for start in panel_starts:
            if start not in panels:
                panels.clear()
                panels[start] = put(gallery.operand(slice(start, start + panel_tiles), right=True), REPLICATED)
            best = _merge_panel(
                query_tiles, excluded, panels[start], start * gallery.tile_size, len(gallery.order), *best, mesh
            )
        for target, values in zip(result, best, strict=True):
            target[first : first + index.size] = np.asarray(values).reshape(-1, k)[: len(target) - first]
        if progress is not None:
            progress(min(tile + mesh.size, queries.num_tiles), queries.num_tiles)
    scores, indices = (x[: len(queries.order)] for x in result)
    return scores, indices


@partial(jax.jit, static_argnames="mesh", donate_argnames=("scores", "indices"))
def _merge_panel(
    queries: jax.Array,
    excluded: jax.Array,
    gallery: jax.Array,
    first: int,
    candidates: int,
    scores: jax.Array,
    indices: jax.Array,
    mesh: Mesh,
) -> tuple[jax.Array, jax.Array]:
    """Merges gallery tiles [p, S, W], from row `first` on, into the top-k [n, T, k] of query tiles [n, T, W]."""

    def local(
        queries: jax.Array,
        excluded: jax.Array,
        gallery: jax.Array,
        first: jax.Array,
        candidates: jax.Array,
        scores: jax.Array,
        indices: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        tile_size = gallery.shape[1]

        def step(tile: jax.Array, best: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            index = first + tile * tile_size + jnp.arange(tile_size, dtype=jnp.int32)[None, :]
            product = jnp.matmul(queries[0], gallery[tile].T, precision=jax.lax.Precision.HIGHEST)
            product = jnp.where((index == excluded[0][:, None]) | (index >= candidates), -jnp.inf, product)
            # Lower indices come first, and top_k prefers the first of equal scores.
            merged = jnp.concatenate([best[0], product], axis=1)
            index = jnp.concatenate([best[1], jnp.broadcast_to(index, product.shape)], axis=1)
            values, chosen = jax.lax.top_k(merged, best[0].shape[1])
            return values, jnp.take_along_axis(index, chosen, axis=1)

        values, index = jax.lax.fori_loop(0, gallery.shape[0], step, (scores[0], indices[0]))
        return values[None], index[None]

    specs = (SHARDED, SHARDED, REPLICATED, REPLICATED, REPLICATED, SHARDED, SHARDED)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(SHARDED, SHARDED), check_vma=False)(
        queries,
        excluded,
        gallery,
        jnp.asarray(first, jnp.int32),
        jnp.asarray(candidates, jnp.int32),
        scores,
        indices,
    )


def _correct(
    queries: TiledRows, gallery: TiledRows, scores: np.ndarray, indices: np.ndarray, k: int, exclude_self: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest candidates by squared distances (prepared or unit rows), exact wherever rounding could decide."""
    lengths, error = exact.squared_lengths(queries)[:, None], exact.error_bound(queries.width, queries.dtype)
    if queries.metric == "cosine":
        squares, bound = 2 - 2 * scores, 2 * error * lengths
    else:  # |y|^2 <= 2 |x|^2 + 2 |x - y|^2
        squares, bound = -2 * scores, error * (3 * lengths - 4 * scores[:, -1:])
    uncertain = np.zeros(len(scores), bool)
    if scores.shape[1] < len(gallery.source) - exclude_self:
        uncertain = squares[:, -1] - squares[:, k - 1] <= 2 * bound[:, 0]
    rows = np.flatnonzero(uncertain)
    for part, block in exact.squared_distances(queries._replace(order=rows), gallery):
        for query, values in zip(rows[part], block, strict=True):
            indices[query] = sort.nearest_first(-values, query if exclude_self else -1)[: scores.shape[1]]
            squares[query] = values[indices[query]]
    close = squares[:, 1:] - squares[:, :-1] <= 2 * bound
    recomputed = (squares < RECOMPUTE_BELOW * 2 * lengths) | uncertain[:, None]
    recomputed[:, :-1] |= close
    recomputed[:, 1:] |= close
    row, column = np.nonzero(recomputed)
    for part, values in exact.distances(queries, gallery, row, indices[row, column]):
        squares[row[part], column[part]] = values
    changed = np.unique(row)
    order = np.lexsort((indices[changed], squares[changed]), axis=1)
    for values in (squares, indices):
        values[changed] = np.take_along_axis(values[changed], order, axis=1)
    return squares[:, :k], indices[:, :k]
