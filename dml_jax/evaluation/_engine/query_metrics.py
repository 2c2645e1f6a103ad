"""Metrics of single queries: from the ranks of their relevant rows, or by sorting their scores.

Queries with too many relevant rows for counting are sorted. The device computes the scores of a
tile of queries, or the host does in float64 (`tiles`). NumPy sorts each row as one vector of
integers (score in the high bits, index in the low bits), which on CPUs is several times faster than
in XLA.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from dml_jax.config.modules import takes
from dml_jax.errors import ConfigError
from dml_jax.evaluation._engine.tiles import REPLICATED, TiledRows, product

# Relevance, nearest first, bool [G] -> value; with an argument `grades`, also the grades [G].
RowFunction = Callable[..., float]
UNUSED = np.iinfo(np.int32).max


class Task(NamedTuple):
    """Q queries to be ranked, with G gallery rows each. Rows of the query's class are relevant."""

    labels: np.ndarray  # [Q]
    gallery_labels: np.ndarray  # [G]
    # query -> the rows relevant instead, bool [G]; or grades [G] >= 0, NaN for rows not ranked
    judge: Callable[[int], np.ndarray] | None
    # int [Q] and [G]; queries leave out the relevant rows of their group
    groups: tuple[np.ndarray, np.ndarray] | None
    exclude_self: bool  # query i leaves out gallery row i, which is of its class
    drop_nearest: bool  # each query leaves out its nearest row, as if it were of its class
    functions: tuple[RowFunction, ...]  # metrics that the user adds
    graded_ks: tuple[int, ...] | None = None  # K of nDCG@K; None if there are no grades

    def rows_of(self, query: int) -> tuple[np.ndarray, np.ndarray | None]:
        """The grades of a query's rows, above 0 if relevant, and those it leaves out: [G] each."""
        grades = self.judge(query) if self.judge else self.gallery_labels == self.labels[query]
        omitted = None if self.graded_ks is None else np.isnan(grades)
        if self.groups is not None:
            of_group = (grades > 0) & (self.groups[1] == self.groups[0][query])
            omitted = of_group if omitted is None else omitted | of_group
        return grades, omitted


class QueryResults(NamedTuple):
    """Metrics of Q queries; NaN if they are undefined without a relevant row."""

    first_rank: np.ndarray  # int32 [Q], 1-based rank of the nearest relevant row, 0 without one
    r_precision: np.ndarray  # float64 [Q]
    average_precision: np.ndarray  # float64 [Q], average precision at R
    relevant: np.ndarray  # int64 [Q], R, the number of relevant rows
    nearest: np.ndarray  # float64 [Q], score of the nearest relevant row
    by_functions: np.ndarray  # float64 [Q, F], the values of the functions
    graded: np.ndarray  # float64 [Q, 1 + len(graded_ks)], see `ndcg`; [Q, 0] without grades

    @classmethod
    def undefined(cls, task: Task) -> "QueryResults":
        """Results of queries without relevant rows."""
        queries = len(task.labels)
        first_rank, relevant = np.zeros(queries, np.int32), np.zeros(queries, np.int64)
        precision, average, nearest = np.full((3, queries), np.nan)
        grades = 0 if task.graded_ks is None else 1 + len(task.graded_ks)
        further = (np.full((queries, width), np.nan) for width in (len(task.functions), grades))
        return cls(first_rank, precision, average, relevant, nearest, *further)

    def put(self, task: Task, queries: np.ndarray, ranks: np.ndarray, relevant: np.ndarray) -> None:
        """Writes the metrics of queries int [n] from the ranks of their relevant rows and R [n].

        The ranks, int [n, W], are in any order along W, and 0 or less for unused entries.
        """
        self.relevant[queries] = relevant
        found = metrics_from_ranks(ranks, relevant)
        self.first_rank[queries], self.r_precision[queries], self.average_precision[queries] = found


def metrics_from_ranks(
    ranks: np.ndarray, relevant: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First rank, R-precision and average precision at R of each query.

    R-precision = (1/R) #{rank <= R}; average precision at R = (1/R) sum over the i-th such rank r_i
    of i / r_i (Musgrave et al., ECCV 2020, section 4.1). `ranks` int [Q, W] are in any order, 0 or
    less for unused entries. Without a relevant row, the first rank is 0 and the others are NaN.
    """
    ranks = np.sort(np.where(ranks > 0, ranks, UNUSED), axis=1)
    first = ranks.min(axis=1, initial=UNUSED)
    within = ranks <= relevant[:, None]
    divisor = np.where(relevant > 0, relevant, np.nan)
    precision_at_rank = np.arange(1, ranks.shape[1] + 1)[None, :] / ranks
    average = np.einsum("qr,qr->q", within, precision_at_rank) / divisor
    return np.where(first < UNUSED, first, 0), within.sum(axis=1) / divisor, average


def ndcg(gains: np.ndarray, ks: tuple[int, ...]) -> np.ndarray:
    """Normalised discounted cumulative gain of a ranking, then of its first K: float64 [1 + K].

    The sum over ranks r of gain_r / log2(1 + r), divided by that of the best order. The gains
    [G] are in the order of the ranking; at least one is above 0.
    """
    discounts = 1 / np.log2(np.arange(2, len(gains) + 2))
    found, best = (np.cumsum(each * discounts) for each in (gains, np.sort(gains)[::-1]))
    last = np.minimum([len(gains), *ks], len(gains)) - 1
    return found[last] / best[last]


def rank_by_sorting(
    task: Task,
    queries: np.ndarray,
    blocks: Iterable[tuple[slice, np.ndarray]],
    results: QueryResults,
) -> None:
    """Ranks the gallery for queries int [n] from blocks of scores (see `device_scores`)."""
    drop = int(task.drop_nearest)

    def rank_query(query: int, scores: np.ndarray) -> None:
        grades, omitted = task.rows_of(query)
        relevant = grades > 0
        order = nearest_first(scores, query if task.exclude_self else -1)
        if omitted is not None:
            order = order[~omitted[order]]
        count = np.count_nonzero(relevant[order]) - drop
        order = order[drop:]
        hits = np.flatnonzero(relevant[order])
        results.put(task, np.array([query]), hits[None] + 1, np.array([count]))
        if len(hits):
            results.nearest[query] = scores[order[hits[0]]]
        if count > 0:
            given = relevant[order], grades[order]
            results.by_functions[query] = [_value(each, *given) for each in task.functions]
            if task.graded_ks is not None:
                results.graded[query] = ndcg(grades[order], task.graded_ks)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for part, scores in blocks:
            list(pool.map(rank_query, queries[part].tolist(), scores))


def _value(function: RowFunction, relevant: np.ndarray, grades: np.ndarray) -> float:
    """The value of a user's metric; ConfigError unless it is a number, e.g. without a `return`."""
    asked = {"grades": grades.astype(float)} if takes(function, "grades") else {}
    value = function(relevant, **asked)
    if np.asarray(value).dtype.kind not in "biuf" or np.ndim(value):  # a hit is a bool
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(f"metric {name}: returned {value!r:.60}; return a number")
    return float(value)


def device_scores(
    gallery: TiledRows, queries: TiledRows, panel_tiles: int, mesh: Mesh
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields slices of `queries.order` and their scores [B, G], a tile of queries at a time; the
    gallery must be in index order."""
    replicated = NamedSharding(mesh, REPLICATED)

    @lru_cache(1)
    def gallery_panel(start: int) -> jax.Array:
        panel = gallery.operand(slice(start, start + panel_tiles), right=True)
        return jax.device_put(panel, replicated)

    for tile in range(queries.num_tiles):
        left = jax.device_put(queries.operand(slice(tile, tile + 1), right=False), replicated)
        block = np.empty((queries.tile_size, gallery.num_tiles * gallery.tile_size), gallery.dtype)
        for start in range(0, gallery.num_tiles, panel_tiles):
            right = gallery_panel(start)
            for i in range(0, len(right), mesh.size):
                chosen = np.minimum(np.arange(i, i + mesh.size), len(right) - 1)
                pairs = np.stack([np.zeros_like(chosen), chosen], axis=1).astype(np.int32)
                scores = np.asarray(product(left, right, pairs, mesh))
                for b, tile_scores in zip(chosen.tolist(), scores, strict=True):
                    column = (start + b) * gallery.tile_size
                    block[:, column : column + gallery.tile_size] = tile_scores
        start = tile * queries.tile_size
        part = slice(start, min(len(queries.order), start + queries.tile_size))
        yield part, block[: part.stop - part.start, : len(gallery.order)]


def nearest_first(scores: np.ndarray, excluded: int) -> np.ndarray:
    """Indices [G] by decreasing score, ties by index; `excluded` is left out unless negative."""
    distance = 0 - scores  # unlike -scores, maps 0.0 and -0.0 to the same bits
    if distance.dtype == np.float32:
        bits = distance.view(np.int32)
        key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64) << 32
        key |= np.arange(len(scores))
        key.sort()
        order = key & 0xFFFFFFFF
    else:
        order = np.argsort(distance, kind="stable")
    return order[order != excluded] if excluded >= 0 else order
