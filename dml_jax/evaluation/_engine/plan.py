"""Chooses how the ranks of each query are computed, computes them, and turns them into metrics per query."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh

from dml_jax.evaluation._engine import query_metrics, tiles
from dml_jax.evaluation._engine.count_ranks import Budget, Targets, count_ranks
from dml_jax.evaluation._engine.query_metrics import QueryResults, Task, full_ranking, metrics_from_ranks
from dml_jax.evaluation._engine.tiles import Metric, TiledRows

# Queries with more relevant rows than this are sorted: about where the cost of counting meets that of sorting.
SORT_ABOVE = 256
# Relative cost of counting one threshold if tiles interleave in index order, and if they do not (see
# `counting_kernels.make_counter`).
COST_INTERLEAVED, COST_DISJOINT = 10, 6

Blocks = Callable[[np.ndarray], Iterator[tuple[slice, np.ndarray]]]  # queries -> slices of them and scores [B, G]


class Plan(NamedTuple):
    """Layout and choice of algorithm for given embeddings."""

    task: Task  # with classes numbered from 0
    gallery: TiledRows  # candidates in tiles
    queries: TiledRows  # the same object where the queries are their own gallery
    targets: Targets  # relevant rows whose ranks are counted
    sorted_queries: np.ndarray  # int [Q'], queries that are ranked by sorting
    relevant: np.ndarray  # int64 [Q], R; of queries that are sorted, not known before
    budget: Budget
    mesh: Mesh


def make_plan(
    task: Task,
    queries: np.ndarray,
    gallery: np.ndarray | None,
    *,
    metric: Metric,
    dtype: np.dtype,
) -> Plan:
    """Chooses tiles, the order of the gallery, and which queries are counted and which sorted.

    Without a gallery, the queries are their own.
    """
    mesh = tiles.local_mesh()
    memory = tiles.memory_budget(mesh)
    symmetric = gallery is None
    candidates = queries if gallery is None else gallery
    both = np.concatenate([task.labels, task.gallery_labels])
    classes = np.unique(both, return_inverse=True)[1].astype(np.int64)
    gallery_classes = classes[len(queries) :]
    query_classes = gallery_classes if symmetric else classes[: len(queries)]
    class_sizes = np.bincount(gallery_classes, minlength=classes.max() + 1)
    excluded = task.excluded
    relevant = class_sizes[query_classes] - (excluded >= 0) - task.drop_nearest
    by_sorting = relevant > SORT_ABOVE
    if task.judge is not None or task.functions:
        by_sorting[:] = True
    num_targets = np.where(by_sorting, 0, relevant + task.drop_nearest)
    if task.groups is not None:
        relevant -= _of_the_same_group(query_classes, gallery_classes, task.groups, excluded)

    centering = tiles.choose_centering([candidates] if symmetric else [queries, candidates], metric)
    gallery_tile, query_tile = tiles.choose_tile_size(len(candidates), mesh), tiles.choose_tile_size(len(queries), mesh)
    order, query_order, class_start = _choose_order(
        gallery_classes, None if symmetric else query_classes, num_targets, query_tile
    )
    gallery_rows = TiledRows(candidates, order, gallery_tile, metric, centering, dtype)
    query_rows = gallery_rows
    if not symmetric:
        query_rows = TiledRows(queries, query_order, query_tile, metric, centering, dtype)
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    zeros = np.zeros(query_rows.num_tiles * query_tile, np.int32)
    start, size, own = zeros.copy(), zeros.copy(), zeros - 1
    start[: len(query_order)] = class_start[query_classes[query_order]]
    size[: len(query_order)] = num_targets[query_order]
    own[: len(query_order)] = np.where(excluded >= 0, position[excluded], -1)[query_order]
    shape = (query_rows.num_tiles, query_tile)
    groups = None
    if task.groups is not None:
        query_groups = zeros.astype(np.int64)
        query_groups[: len(query_order)] = task.groups[0][query_order]
        groups = query_groups.reshape(shape), task.groups[1][order]
    targets = Targets(start.reshape(shape), size.reshape(shape), own.reshape(shape), groups)

    tile_bytes = max(gallery_tile * query_tile * dtype.itemsize, 1)
    panel_tiles = max(1, memory // 4 // (max(gallery_tile, query_tile) * gallery_rows.width * dtype.itemsize))
    budget = Budget(panel_tiles=panel_tiles, cached_tiles=memory // 2 // tile_bytes)
    return Plan(
        task._replace(labels=query_classes, gallery_labels=gallery_classes), gallery_rows, query_rows, targets,
        np.flatnonzero(by_sorting), relevant, budget, mesh,
    )  # fmt: skip


def _of_the_same_group(
    labels: np.ndarray, gallery_labels: np.ndarray, groups: tuple[np.ndarray, np.ndarray], excluded: np.ndarray
) -> np.ndarray:
    """Number of gallery rows of the class and the group of each query, int64 [Q], without the row it excludes."""
    kinds = 1 + max(side.max() for side in groups)
    pairs, sizes = np.unique(gallery_labels * kinds + groups[1], return_counts=True)
    wanted = labels * kinds + groups[0]
    found = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    together = np.where(pairs[found] == wanted, sizes[found], 0)
    return together - ((excluded >= 0) & (groups[1][excluded] == groups[0]))


def _choose_order(
    gallery_classes: np.ndarray, query_classes: np.ndarray | None, num_targets: np.ndarray, query_tile: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The cheapest order of the gallery that groups its classes.

    Sorting the classes by size minimises the cost of targets that a tile pads; if the rows are grouped by class
    already, keeping their order makes ties cheaper. Returns the orders int [G] and int [Q] of gallery and
    queries, and the first position of each class.
    """
    num_classes = 1 + max(gallery_classes.max(), 0 if query_classes is None else query_classes.max())
    class_sizes = np.bincount(gallery_classes, minlength=num_classes)
    orders = [np.lexsort((np.arange(len(gallery_classes)), gallery_classes, class_sizes[gallery_classes]))]
    if np.count_nonzero(np.diff(gallery_classes)) == np.count_nonzero(class_sizes) - 1:
        orders.append(np.arange(len(gallery_classes)))
    choices = []
    for order, cost in zip(orders, (COST_INTERLEAVED, COST_DISJOINT), strict=False):
        class_start = np.zeros(num_classes, np.int64)  # 0 for classes without gallery rows
        class_start[gallery_classes[order][::-1]] = np.arange(len(order))[::-1]
        query_order = order if query_classes is None else np.argsort(class_start[query_classes], kind="stable")
        targets_per_tile = np.maximum.reduceat(num_targets[query_order], np.arange(0, len(query_order), query_tile))
        choices.append((cost * int(targets_per_tile.sum()), order, query_order, class_start))
    return min(choices, key=lambda choice: choice[0])[1:]


def rank(
    task: Task, queries: np.ndarray, gallery: np.ndarray | None, *, metric: Metric, dtype: np.dtype
) -> QueryResults:
    """The metrics of each query, computed in `dtype` from [Q, D] and [G, D]; without a gallery, the queries are it."""
    plan = make_plan(task, queries, gallery, metric=metric, dtype=dtype)
    task = plan.task
    results = QueryResults.undefined(len(plan.relevant), task)
    results.relevant[:] = plan.relevant
    if plan.targets.size.any():
        order = plan.queries.order
        drop = int(task.drop_nearest)
        ranks, scores = count_ranks(plan.gallery, plan.queries, plan.targets, plan.mesh, plan.budget, drop)
        results.nearest[order] = scores.reshape(-1)[: len(order)]
        ranks = ranks.transpose(0, 2, 1).reshape(-1, ranks.shape[1])[: len(order)]
        ranks -= task.drop_nearest
        found = metrics_from_ranks(ranks, plan.relevant[order])
        results.first_rank[order], results.r_precision[order], results.average_precision[order] = found
        if results.full is not None:
            results.full[order] = full_ranking(ranks, task.full_ks or ())
    _rank_by_sorting(task, plan.sorted_queries, results, lambda chosen: _device_scores(plan, chosen))
    squares = 2 - 2 * results.nearest if metric == "cosine" else -2 * results.nearest
    error = tiles.error_bound(plan.queries.width, dtype)
    close = np.flatnonzero(tiles.unreliable(squares, tiles.squared_lengths(plan.queries), error))
    _rank_by_sorting(task, close, results, lambda chosen: _scores_in_float64(plan, chosen))
    return results


def rank_by_distance(task: Task, blocks: Blocks) -> QueryResults:
    """The metrics of each query by a distance of the user's own, of which `blocks` yields the negative values."""
    results = QueryResults.undefined(len(task.labels), task)
    _rank_by_sorting(task, np.arange(len(task.labels)), results, blocks)
    return results


def _rank_by_sorting(task: Task, queries: np.ndarray, results: QueryResults, blocks: Blocks) -> None:
    """Writes the metrics of some queries into `results`."""
    if len(queries):
        found = query_metrics.metrics_by_sorting(task, queries, blocks(queries))
        for result, part in zip(results, found, strict=True):
            if result is not None:
                result[queries] = part


def _scores_in_float64(plan: Plan, chosen: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    queries = plan.queries._replace(order=chosen)
    return ((part, -squares) for part, squares in tiles.squared_distances(queries, plan.gallery))


def _device_scores(plan: Plan, chosen: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    gallery = plan.gallery._replace(order=np.arange(len(plan.gallery.order)))
    tile_size = plan.queries.tile_size
    if gallery.num_tiles <= plan.budget.panel_tiles:  # else the gallery is streamed for every tile of queries
        tile_size = min(tile_size, 1024 if gallery.tile_size > 1152 else 128)
    queries = plan.queries._replace(order=chosen, tile_size=tile_size)
    return query_metrics.device_scores(gallery, queries, panel_tiles=plan.budget.panel_tiles, mesh=plan.mesh)
