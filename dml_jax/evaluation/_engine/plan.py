"""Chooses how to compute the ranks of each query, and turns them into metrics of the query."""

from collections.abc import Iterable

import numpy as np

from dml_jax.evaluation._engine import query_metrics, tiles
from dml_jax.evaluation._engine.count_ranks import Targets, count_ranks
from dml_jax.evaluation._engine.query_metrics import QueryResults, Task
from dml_jax.evaluation._engine.tiles import Metric, TiledRows

# Queries with more relevant rows are sorted; with this number, counting costs about as much.
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
    highest_query_class = 0 if query_classes is None else query_classes.max()
    class_sizes = np.bincount(gallery_classes, minlength=highest_query_class + 1)
    as_given = np.arange(len(gallery_classes))
    orders = [np.lexsort((as_given, gallery_classes, class_sizes[gallery_classes]))]
    if np.count_nonzero(np.diff(gallery_classes)) == np.count_nonzero(class_sizes) - 1:
        orders.append(as_given)
    choices = []
    for order, cost in zip(orders, (COST_INTERLEAVED, COST_DISJOINT), strict=False):
        class_start = np.zeros(len(class_sizes), np.int64)  # 0 for classes without gallery rows
        class_start[gallery_classes[order][::-1]] = as_given[::-1]
        query_order = order
        if query_classes is not None:
            query_order = np.argsort(class_start[query_classes], kind="stable")
        first_of_tile = np.arange(0, len(query_order), query_tile)
        targets_per_tile = np.maximum.reduceat(num_targets[query_order], first_of_tile)
        choices.append((cost * int(targets_per_tile.sum()), order, query_order, class_start))
    return min(choices, key=lambda choice: choice[0])[1:]


def rank(
    task: Task, queries: np.ndarray, gallery: np.ndarray | None, *, metric: Metric, dtype: np.dtype
) -> QueryResults:
    """The metrics of each query, computed in `dtype` from [Q, D] and [G, D]; without a gallery, the
    queries search each other."""
    mesh = tiles.local_mesh()
    memory = tiles.memory_budget(mesh)
    symmetric = gallery is None
    candidates = queries if gallery is None else gallery
    query_classes, gallery_classes = task.labels, task.gallery_labels
    class_sizes = np.bincount(gallery_classes, minlength=query_classes.max() + 1)
    relevant = class_sizes[query_classes] - task.exclude_self - task.drop_nearest
    by_sorting = relevant > SORT_ABOVE
    if task.judge is not None or task.functions:
        by_sorting[:] = True
    num_targets = np.where(by_sorting, 0, relevant + task.drop_nearest)

    centering = tiles.choose_centering([candidates] if symmetric else [queries, candidates], metric)
    gallery_tile = tiles.choose_tile_size(len(candidates), mesh)
    query_tile = tiles.choose_tile_size(len(queries), mesh)
    order, query_order, class_start = _choose_order(
        gallery_classes, None if symmetric else query_classes, num_targets, query_tile
    )
    right = left = TiledRows(candidates, order, gallery_tile, metric, centering, dtype)
    if not symmetric:
        right = TiledRows(queries, query_order, query_tile, metric, centering, dtype)
    tile_bytes = gallery_tile * query_tile * dtype.itemsize
    row_bytes = left.width * dtype.itemsize
    panel_tiles = max(1, memory // 4 // (max(gallery_tile, query_tile) * row_bytes))

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
        limits, drop = (panel_tiles, memory // 2 // tile_bytes), int(task.drop_nearest)
        ranks, nearest = count_ranks(left, right, targets, mesh, limits, drop)
        results.nearest[query_order] = nearest.reshape(-1)[: len(queries)]
        ranks = ranks.transpose(0, 2, 1).reshape(-1, ranks.shape[1])[: len(queries)]
        results.put(task, query_order, ranks - drop, np.count_nonzero(ranks, axis=1) - drop)

    if left.num_tiles <= panel_tiles:  # else the gallery is streamed for every tile of queries
        query_tile = min(query_tile, 1024 if gallery_tile > 1152 else 128)
    chosen = np.flatnonzero(by_sorting)
    by_index = left._replace(order=np.arange(len(order)))
    sorted_queries = right._replace(order=chosen, tile_size=query_tile)
    scores = query_metrics.device_scores(by_index, sorted_queries, panel_tiles, mesh)
    query_metrics.rank_by_sorting(task, chosen, scores, results)
    squares = 2 - 2 * results.nearest if metric == "cosine" else -2 * results.nearest
    error = tiles.error_bound(right.width, dtype)
    chosen = np.flatnonzero(tiles.unreliable(squares, tiles.squared_lengths(right), error))
    in_float64 = tiles.squared_distances(right._replace(order=chosen), left)
    scores = ((part, -distances) for part, distances in in_float64)
    query_metrics.rank_by_sorting(task, chosen, scores, results)
    return results


def rank_by_distance(task: Task, blocks: Iterable[tuple[slice, np.ndarray]]) -> QueryResults:
    """The metrics of each query, from slices of the queries and their distances [B, G]."""
    results = QueryResults.undefined(task)
    scores = ((part, -distances) for part, distances in blocks)
    query_metrics.rank_by_sorting(task, np.arange(len(task.labels)), scores, results)
    return results
