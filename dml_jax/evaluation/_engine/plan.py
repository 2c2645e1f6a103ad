"""Chooses how the ranks of each query are computed, computes them, and turns them into metrics per
query."""

from collections.abc import Iterable

import numpy as np

from dml_jax.evaluation._engine import tiles
from dml_jax.evaluation._engine.count_ranks import Targets, count_ranks
from dml_jax.evaluation._engine.query_metrics import (
    QueryResults,
    Task,
    device_scores,
    rank_by_sorting,
)
from dml_jax.evaluation._engine.tiles import Metric, TiledRows

# Queries with more relevant rows than this are sorted: here, counting costs about as much as
# sorting.
SORT_ABOVE = 256
# Relative cost of counting one threshold if tiles interleave in index order, and if they do not
# (see `counting_kernels.make_counter`).
COST_INTERLEAVED, COST_DISJOINT = 10, 6


def _choose_order(
    gallery_classes: np.ndarray,
    query_classes: np.ndarray | None,
    num_targets: np.ndarray,
    query_tile: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The cheapest order of the gallery that groups its classes.

    Sorting the classes by size minimises the cost of targets that a tile pads; if the rows are
    grouped by class already, keeping their order makes ties cheaper. Returns the orders int [G] and
    int [Q] of gallery and queries, and the first position of each class.
    """
    num_classes = 1 + max(
        gallery_classes.max(), 0 if query_classes is None else query_classes.max()
    )
    class_sizes = np.bincount(gallery_classes, minlength=num_classes)
    orders = [
        np.lexsort((np.arange(len(gallery_classes)), gallery_classes, class_sizes[gallery_classes]))
    ]
    if np.count_nonzero(np.diff(gallery_classes)) == np.count_nonzero(class_sizes) - 1:
        orders.append(np.arange(len(gallery_classes)))
    choices = []
    for order, cost in zip(orders, (COST_INTERLEAVED, COST_DISJOINT), strict=False):
        class_start = np.zeros(num_classes, np.int64)  # 0 for classes without gallery rows
        class_start[gallery_classes[order][::-1]] = np.arange(len(order))[::-1]
        query_order = (
            order
            if query_classes is None
            else np.argsort(class_start[query_classes], kind="stable")
        )
        targets_per_tile = np.maximum.reduceat(
            num_targets[query_order], np.arange(0, len(query_order), query_tile)
        )
        choices.append((cost * int(targets_per_tile.sum()), order, query_order, class_start))
    return min(choices, key=lambda choice: choice[0])[1:]


def rank(
    task: Task, queries: np.ndarray, gallery: np.ndarray | None, *, metric: Metric, dtype: np.dtype
) -> QueryResults:
    """The metrics of each query, computed in `dtype` from [Q, D] and [G, D]; without a gallery, the
    queries are it."""
    mesh = tiles.local_mesh()
    memory = tiles.memory_budget(mesh)
    symmetric = gallery is None
    candidates = queries if gallery is None else gallery
    both = np.concatenate([task.labels, task.gallery_labels])
    classes = np.unique(both, return_inverse=True)[1].astype(np.int64)
    gallery_classes = classes[len(queries) :]
    query_classes = gallery_classes if symmetric else classes[: len(queries)]
    task = task._replace(labels=query_classes, gallery_labels=gallery_classes)
    class_sizes = np.bincount(gallery_classes, minlength=classes.max() + 1)
    relevant = class_sizes[query_classes] - task.exclude_self - task.drop_nearest
    by_sorting = relevant > SORT_ABOVE
    if task.judge is not None or task.functions:
        by_sorting[:] = True
    num_targets = np.where(by_sorting, 0, relevant + task.drop_nearest)

    centering = tiles.choose_centering([candidates] if symmetric else [queries, candidates], metric)
    gallery_tile, query_tile = (
        tiles.choose_tile_size(len(candidates), mesh),
        tiles.choose_tile_size(len(queries), mesh),
    )
    order, query_order, class_start = _choose_order(
        gallery_classes, None if symmetric else query_classes, num_targets, query_tile
    )
    right = left = TiledRows(candidates, order, gallery_tile, metric, centering, dtype)
    if not symmetric:
        right = TiledRows(queries, query_order, query_tile, metric, centering, dtype)
    tile_bytes = gallery_tile * query_tile * dtype.itemsize
    panel_tiles = max(
        1, memory // 4 // (max(gallery_tile, query_tile) * left.width * dtype.itemsize)
    )

    results = QueryResults.undefined(task)
    if num_targets.any():
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))

        def tiled(values: np.ndarray, padding: int) -> np.ndarray:
            """Values [Q] by position of the queries: int32 [m, T]."""
            padded = np.full(right.num_tiles * query_tile, padding, np.int32)
            padded[: len(query_order)] = values[query_order]
            return padded.reshape(-1, query_tile)

        targets = Targets(
            tiled(class_start[query_classes], 0),
            tiled(num_targets, 0),
            tiled(position[: len(queries)] if task.exclude_self else np.full(len(queries), -1), -1),
            None if task.groups is None else (tiled(task.groups[0], 0), task.groups[1][order]),
        )
        ranks, nearest = count_ranks(
            left,
            right,
            targets,
            mesh,
            (panel_tiles, memory // 2 // tile_bytes),
            int(task.drop_nearest),
        )
        results.nearest[query_order] = nearest.reshape(-1)[: len(queries)]
        ranks = ranks.transpose(0, 2, 1).reshape(-1, ranks.shape[1])[: len(queries)]
        results.put(
            query_order,
            ranks - task.drop_nearest,
            np.count_nonzero(ranks, axis=1) - task.drop_nearest,
        )

    if left.num_tiles <= panel_tiles:  # else the gallery is streamed for every tile of queries
        query_tile = min(query_tile, 1024 if gallery_tile > 1152 else 128)
    chosen = np.flatnonzero(by_sorting)
    by_index = left._replace(order=np.arange(len(order)))
    scores = device_scores(
        by_index, right._replace(order=chosen, tile_size=query_tile), panel_tiles, mesh
    )
    rank_by_sorting(task, chosen, scores, results)
    squares = 2 - 2 * results.nearest if metric == "cosine" else -2 * results.nearest
    close = tiles.unreliable(
        squares, tiles.squared_lengths(right), tiles.error_bound(right.width, dtype)
    )
    chosen = np.flatnonzero(close)
    in_float64 = tiles.squared_distances(right._replace(order=chosen), left)
    rank_by_sorting(task, chosen, ((part, -squares) for part, squares in in_float64), results)
    return results


def rank_by_distance(task: Task, blocks: Iterable[tuple[slice, np.ndarray]]) -> QueryResults:
    """The metrics of each query by the user's own distance; `blocks` are slices of queries and its
    negative values."""
    results = QueryResults.undefined(task)
    rank_by_sorting(task, np.arange(len(task.labels)), blocks, results)
    return results
