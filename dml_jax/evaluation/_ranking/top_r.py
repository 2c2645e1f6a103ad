"""The best R candidates of every query, R the number of its relevant rows, picked out of the tiles as they pass.

R-precision and average precision at R look no further than rank R, so nothing behind it need be ranked. Of the first
tiles each query keeps the largest score of each of some groups of candidates: the R-th of these maxima is a bound that
R candidates reach and few others. Those that reach it are written down as the tiles pass, sorted when they have become
many, and the bound rises. The host does it, some vector operations a tile and side, while the device multiplies: many
times cheaper than counting where R is large.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import jax
import numpy as np

from dml_jax.evaluation._ranking.tiles import FILLER, Rows

# One integer a candidate: query within the tile, key from the top, index of the candidate. Sorted, that is the ranking.
INDEX_BITS, KEY_BITS = 20, 32
QUERY_SHIFT = INDEX_BITS + KEY_BITS
ROWS, EDGE = 1 << INDEX_BITS, 1 << (63 - QUERY_SHIFT)  # limits of both
LOWEST, TOP = np.iinfo(np.int32).min, np.int64(np.iinfo(np.int32).max)
AHEAD = 4  # sides of tiles that may wait


class Shortlist:
    """Candidates within rank R + 1, the query itself among them, of queries that are their own gallery.

    Args:
      rows: both, in tiles, at most `ROWS` of them in tiles of at most `EDGE`.
      relevant: int [N], R of each row, in the order of the source; 0 asks nothing.
    """

    def __init__(self, rows: Rows, relevant: np.ndarray):
        self.rows = rows
        self.indices = rows.indices().astype(np.int64)
        real = self.indices != FILLER
        self.real = real.sum(axis=1)
        self.wanted = np.where(real, relevant[np.where(real, self.indices, 0)], 0)
        self.keep = np.where(self.wanted > 0, self.wanted + 1, 0)
        # Two groups for each candidate kept, where a tile has so many rows.
        self.groups = rows.edge // max(1, rows.edge // (2 * int(self.keep.max())))
        self.peaks = np.full((rows.tiles, self.groups, rows.edge), LOWEST, np.int32)
        self.bounds = np.zeros((0, rows.edge), np.int32)
        self.found: list[list[np.ndarray]] = [[] for _ in range(rows.tiles)]
        self.locks = [Lock() for _ in range(rows.tiles)]
        self.waiting: list[Future[None]] = []
        self.pool = ThreadPoolExecutor(os.cpu_count())

    def survey(self, scores: jax.Array, pairs: Sequence[tuple[int, int]]) -> None:
        """Learns from tiles of keys [n, S, T], one a device; `pairs` says which, later devices have none."""
        self._both(self._peaks, scores, pairs)

    def offer(self, scores: jax.Array, pairs: Sequence[tuple[int, int]]) -> None:
        """Writes down who reaches the bounds; every tile must come once, after all of the survey."""
        if not len(self.bounds):
            self._wait(0)
            self.bounds = np.stack(list(self.pool.map(self._bounds, range(self.rows.tiles))))
            self.peaks = self.peaks[:0]
        self._both(self._take, scores, pairs)

    def finish(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """R-precision and average precision at R by row of the source, float64 [N]; NaN where nothing is asked.

        Args:
          labels: int [N], class of each row of the source.
        """
        self._wait(0)
        precision, average = np.full(len(labels), np.nan), np.full(len(labels), np.nan)

        def one(tile: int) -> None:
            index, wanted = self.indices[tile], self.wanted[tile]
            query, _, candidate = parts(self._sorted(tile))
            others = candidate != index[query]
            query, candidate = query[others], candidate[others]
            rank = 1 + position(query)
            hit = (rank <= wanted[query]) & (labels[candidate] == labels[index[query]])
            query, rank = query[hit], rank[hit]
            share = (1 + position(query)) / rank
            asked = wanted > 0
            for target, sums in (
                (precision, np.bincount(query, minlength=len(index))),
                (average, np.bincount(query, share, len(index))),
            ):
                target[index[asked]] = sums[asked] / wanted[asked]

        with self.pool:
            list(self.pool.map(one, range(self.rows.tiles)))
        return precision, average

    def _both(self, look: Callable[..., None], scores: jax.Array, pairs: Sequence[tuple[int, int]]) -> None:
        """Has the columns and, off the diagonal, the rows of some tiles looked at as queries."""

        def side(shard: Any, candidates: int, queries: int, axis: int) -> None:
            shape = (self.real[candidates], self.real[queries])[:: -1 if axis else 1]
            look(np.asarray(shard.data)[0, : shape[0], : shape[1]], candidates, queries, axis)

        shards = sorted(scores.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        for (a, b), shard in zip(pairs, shards, strict=False):
            self.waiting.append(self.pool.submit(side, shard, a, b, 0))
            if a != b:
                self.waiting.append(self.pool.submit(side, shard, b, a, 1))
        self._wait(AHEAD)

    def _wait(self, ahead: int) -> None:
        while len(self.waiting) > ahead:
            self.waiting.pop(0).result()

    def _peaks(self, tile: np.ndarray, candidates: int, queries: int, axis: int) -> None:
        """Raises the largest keys of each group of candidates; these lie along `axis` of a tile."""
        whole = tile.shape[axis] // self.groups * self.groups
        if not whole:
            return
        if axis == 0:
            peaks = tile[:whole].reshape(-1, self.groups, tile.shape[1]).max(axis=0)
        else:
            peaks = tile[:, :whole].reshape(len(tile), -1, self.groups).max(axis=1).T
        with self.locks[queries]:
            known = self.peaks[queries, :, : peaks.shape[1]]
            np.maximum(known, peaks, out=known)

    def _bounds(self, tile: int) -> np.ndarray:
        """A key that as many candidates reach as are kept, int32 [T]."""
        peaks, keep = np.sort(self.peaks[tile].T, axis=1), self.keep[tile]
        bounds = peaks[np.arange(len(peaks)), np.maximum(self.groups - keep, 0) % self.groups]
        return np.where(keep > 0, np.where(keep <= self.groups, bounds, LOWEST), TOP).astype(np.int32)

    def _take(self, tile: np.ndarray, candidates: int, queries: int, axis: int) -> None:
        """Writes down what reaches the bounds; the candidates lie along `axis` of a tile."""
        bound = self.bounds[queries, : tile.shape[1 - axis]]
        flat = np.flatnonzero(tile >= (bound[None, :] if axis == 0 else bound[:, None]))
        row, column = np.divmod(flat, tile.shape[1])
        query, candidate = (column, row) if axis == 0 else (row, column)
        found = (TOP - tile[row, column]) << INDEX_BITS
        found |= query << QUERY_SHIFT
        found |= self.indices[candidates][candidate]
        with self.locks[queries]:
            self.found[queries].append(found)
            if sum(map(len, self.found[queries])) > 2 * self.keep[queries].sum() + tile.size // 8:
                self._sorted(queries)

    def _sorted(self, tile: int) -> np.ndarray:
        """What was found for the queries of a tile, in order and no more than is kept; the bounds rise."""
        everything = np.concatenate([np.empty(0, np.int64), *self.found[tile]])
        everything.sort()
        query, below, _ = parts(everything)
        rank, keep = 1 + position(query), self.keep[tile]
        last = rank == keep[query]
        self.bounds[tile, query[last]] = TOP - below[last]
        everything = everything[rank <= keep[query]]
        self.found[tile] = [everything]
        return everything


def size(rows: int, relevant: int) -> int:
    """Bytes that the maxima of all groups and twice the candidates kept take."""
    return rows * (relevant + 1) * (2 * 4 + 2 * 8)


def parts(found: np.ndarray) -> tuple[Any, Any, Any]:
    """Query within its tile, key from the top and index of the candidate."""
    return found >> QUERY_SHIFT, (found >> INDEX_BITS) & ((1 << KEY_BITS) - 1), found & (ROWS - 1)


def position(groups: np.ndarray) -> np.ndarray:
    """Place of each number among its equals, which stand together in rising order: [5, 5, 7] -> [0, 1, 0]."""
    starts = np.concatenate([[0], np.cumsum(np.bincount(groups))])
    return np.arange(len(groups)) - starts[groups]
