"""Exact nearest neighbours: tiles of the similarity product and a running list of the best."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from dml_jax.errors import DataError
from dml_jax.evaluation import validation
from dml_jax.evaluation._ranking import tiles
from dml_jax.evaluation._ranking.kernels import EVERYWHERE, SPREAD
from dml_jax.evaluation._ranking.tiles import Metric, Rows

# Squared distances below this share of the squared lengths are computed again from the differences: the product of
# float32 rows leaves few of their digits.
CLOSE = 1e-2


def search(
    queries: Any,
    gallery: Any,
    k: int,
    *,
    metric: Metric = "cosine",
    exclude_self: bool = False,
    mesh: Mesh | None = None,
    memory: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest gallery rows of every query, nearest first, equally near ones by index.

    Args:
      queries: [Q, D] real numbers, NumPy (memory-mapped too) or JAX.
      gallery: [G, D] real numbers.
      k: how many.
      metric: "cosine" or "euclidean".
      exclude_self: query i does not find gallery row i.
      mesh: devices, those of this process by default; the result does not depend on them.
      memory: bytes that may be used on a device, by default 60 % of an accelerator and 1 GiB of a CPU.
      progress: called with blocks of queries done and in all.

    Returns:
      distances [Q, k]: 1 - cosine, or Euclidean (not squared); indices int32 [Q, k].

    Raises:
      DataError: wrong shapes or types, rows that are not finite, k larger than the number of candidates.
    """
    asking = validation.embeddings(queries, name="queries")
    others = asking if gallery is queries else validation.embeddings(gallery, name="gallery")
    validation.same_width(asking, others)
    if metric not in ("cosine", "euclidean"):
        raise DataError(f"metric={metric!r}: give 'cosine' or 'euclidean'")
    candidates = len(others) - bool(exclude_self)
    if not 0 < k <= candidates:
        raise DataError(f"k={k}: there are {candidates} candidates; k must be in 1..{candidates}")
    mesh = mesh or tiles.mesh()
    common = tiles.frame([asking] if asking is others else [asking, others], metric)
    dtype = validation.working(asking)
    left, right = (
        Rows(rows, np.arange(len(rows)), tiles.edge(len(rows), mesh), metric, common, dtype)
        for rows in (asking, others)
    )
    scores, indices = _best(left, right, k, exclude_self, mesh, memory or tiles.memory(mesh), progress)
    if metric == "cosine":
        return np.clip(1 - scores, 0, 2), indices
    return _refined(asking, others, np.sqrt(np.maximum(-2 * scores, 0)) / dtype.type(common.scale), indices)


def _best(
    queries: Rows,
    gallery: Rows,
    k: int,
    exclude_self: bool,
    mesh: Mesh,
    memory: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and indices [Q, k] of the best."""

    def put(value: np.ndarray, spec: Any) -> jax.Array:
        return jax.device_put(value, NamedSharding(mesh, spec))

    per = max(1, memory // 2 // (gallery.edge * gallery.width * gallery.dtype.itemsize))
    starts = range(0, gallery.tiles, per)
    loaded: dict[int, jax.Array] = {}
    shape = (mesh.size, queries.edge)
    result = (
        np.empty((queries.tiles * queries.edge, k), gallery.dtype),
        np.empty((queries.tiles * queries.edge, k), np.int32),
    )
    for done in range(0, queries.tiles, mesh.size):
        rows = queries.prepared(slice(done, done + mesh.size), right=False)
        block = np.zeros((mesh.size, *rows.shape[1:]), rows.dtype)
        block[: len(rows)] = rows
        own = np.arange(done * queries.edge, (done + mesh.size) * queries.edge, dtype=np.int32).reshape(shape)
        asked = put(block, SPREAD), put(own if exclude_self else np.full(shape, -1, np.int32), SPREAD)
        best = (
            put(np.full((*shape, k), -np.inf, rows.dtype), SPREAD),
            put(np.zeros((*shape, k), np.int32), SPREAD),
        )
        for start in starts:
            if start not in loaded:
                loaded.clear()
                loaded[start] = put(gallery.prepared(slice(start, start + per), right=True), EVERYWHERE)
            best = _advance(*asked, loaded[start], start * gallery.edge, len(gallery.order), *best, mesh)
        for target, values in zip(result, best, strict=True):
            place = done * queries.edge
            target[place : place + own.size] = np.asarray(values).reshape(-1, k)[: len(target) - place]
        if progress is not None:
            progress(min(done + mesh.size, queries.tiles), queries.tiles)
    scores, indices = (x[: len(queries.order)] for x in result)
    return scores, indices


@partial(jax.jit, static_argnames="mesh", donate_argnames=("scores", "indices"))
def _advance(
    queries: jax.Array,
    own: jax.Array,
    gallery: jax.Array,
    first: int,
    candidates: int,
    scores: jax.Array,
    indices: jax.Array,
    mesh: Mesh,
) -> tuple[jax.Array, jax.Array]:
    """Goes on searching in some tiles of the gallery.

    Args:
      queries: [n, T, W], one tile on each device.
      own: int32 [n, T], index that is left out.
      gallery: [p, S, W], on every device.
      first: index of its first row; candidates: index of the first row that only fills a tile.
      scores, indices: [n, T, k], the best so far.
    """

    def local(
        queries: jax.Array,
        own: jax.Array,
        gallery: jax.Array,
        first: jax.Array,
        candidates: jax.Array,
        scores: jax.Array,
        indices: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        edge = gallery.shape[1]

        def step(tile: jax.Array, best: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            index = first + tile * edge + jnp.arange(edge, dtype=jnp.int32)[None, :]
            product = jnp.matmul(queries[0], gallery[tile].T, precision=jax.lax.Precision.HIGHEST)
            product = jnp.where((index == own[0][:, None]) | (index >= candidates), -jnp.inf, product)
            # The earlier, lower indices stand first, and top_k prefers the first of equals.
            held = jnp.concatenate([best[0], product], axis=1)
            index = jnp.concatenate([best[1], jnp.broadcast_to(index, product.shape)], axis=1)
            values, chosen = jax.lax.top_k(held, best[0].shape[1])
            return values, jnp.take_along_axis(index, chosen, axis=1)

        values, found = jax.lax.fori_loop(0, gallery.shape[0], step, (scores[0], indices[0]))
        return values[None], found[None]

    specs = (SPREAD, SPREAD, EVERYWHERE, EVERYWHERE, EVERYWHERE, SPREAD, SPREAD)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=(SPREAD, SPREAD), check_vma=False)(
        queries,
        own,
        gallery,
        jnp.asarray(first, jnp.int32),
        jnp.asarray(candidates, jnp.int32),
        scores,
        indices,
    )


def _refined(
    queries: np.ndarray, gallery: np.ndarray, distances: np.ndarray, indices: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Short distances from the differences of the rows, and their lists in order again."""
    squares = [
        np.concatenate([np.einsum("nd,nd->n", block, block) for block in validation.blocks(rows)])
        for rows in (queries, gallery)
    ]
    close = distances.astype(np.float64) ** 2 < CLOSE * (squares[0][:, None] + squares[1][indices])
    row, slot = np.nonzero(close)
    step = max(1, validation.ROWS_AT_ONCE // (8 * queries.shape[1]))
    for start in range(0, len(row), step):
        i, j = row[start : start + step], slot[start : start + step]
        apart = np.asarray(queries[i], np.float64) - np.asarray(gallery[indices[i, j]], np.float64)
        distances[i, j] = np.sqrt(np.einsum("nd,nd->n", apart, apart))
    again = np.unique(row)
    order = np.lexsort((indices[again], distances[again]), axis=1)
    for values in (distances, indices):
        values[again] = np.take_along_axis(values[again], order, axis=1)
    return distances, indices
