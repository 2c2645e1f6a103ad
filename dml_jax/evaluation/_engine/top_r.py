"""R-precision and average precision at R from the best R candidates of each query, collected while the tiles pass.

The first pass splits the candidates of each query into groups and records the largest score of each group. The R-th
largest of these maxima is a lower bound that at least R candidates reach, and few others. The second pass buffers the
candidates that reach the bound; a full buffer is sorted and truncated, and the bound rises. The host does this with a
few vector operations per tile while the device multiplies, at a fraction of the cost of counting where R is large.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

import jax
import numpy as np

from dml_jax.evaluation._engine.sharing import Share
from dml_jax.evaluation._engine.tiles import PADDING_INDEX, TiledRows

# A candidate is packed into one integer: query within its tile, TOP - key, index. Sorting these integers ranks the
# candidates of every query.
INDEX_BITS, KEY_BITS = 20, 32
QUERY_SHIFT = INDEX_BITS + KEY_BITS
MAX_ROWS, MAX_TILE_SIZE = 1 << INDEX_BITS, 1 << (63 - QUERY_SHIFT)
LOWEST, TOP = np.iinfo(np.int32).min, np.int64(np.iinfo(np.int32).max)
MAX_PENDING = 4  # tile reductions that may wait for a thread


class TopR:
    """The candidates within rank R + 1, the query itself included, of queries that are their own gallery.

    Args:
      rows: at most `MAX_ROWS` rows in tiles of at most `MAX_TILE_SIZE`.
      relevant: int [N], R of each row of the source; 0 to skip the row.
      share: each process collects from its tiles; `start_collecting` and `finish` exchange what they have found.
    """

    def __init__(self, rows: TiledRows, relevant: np.ndarray, share: Share):
        self.rows, self.share = rows, share
        self.indices = rows.indices().astype(np.int64)
        real = self.indices != PADDING_INDEX
        self.real = real.sum(axis=1)
        self.relevant = np.where(real, relevant[np.where(real, self.indices, 0)], 0)
        self.keep = np.where(self.relevant > 0, self.relevant + 1, 0)
        # Two groups per candidate kept, where a tile has enough rows.
        self.groups = rows.tile_size // max(1, rows.tile_size // (2 * int(self.keep.max())))
        self.maxima = np.full((rows.num_tiles, self.groups, rows.tile_size), LOWEST, np.int32)
        self.bounds = np.zeros((0, rows.tile_size), np.int32)
        self.buffers: list[list[np.ndarray]] = [[] for _ in range(rows.num_tiles)]
        self.locks = [Lock() for _ in range(rows.num_tiles)]
        self.pending: list[Future[None]] = []
        self.pool = ThreadPoolExecutor(os.cpu_count())

    def estimate_bounds(self, keys: jax.Array, pairs: Sequence[tuple[int, int]]) -> None:
        """First pass: records maxima of tiles of keys [n, S, T], one per pair; shards beyond the pairs are ignored."""
        self._reduce_both_axes(self._update_maxima, keys, pairs)

    def start_collecting(self) -> None:
        """Between the passes: turns the maxima into bounds."""
        self._wait(0)
        for tile, maxima in enumerate(self.maxima):
            self.maxima[tile] = self.share.gather(maxima).max(axis=0)
        self.bounds = np.stack(list(self.pool.map(self._initial_bounds, range(self.rows.num_tiles))))
        self.maxima = self.maxima[:0]

    def collect(self, keys: jax.Array, pairs: Sequence[tuple[int, int]]) -> None:
        """Second pass, every tile once: buffers the candidates that reach the bounds."""
        self._reduce_both_axes(self._buffer_candidates, keys, pairs)

    def finish(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """R-precision and average precision at R per row of the source: float64 [N], NaN for skipped rows.

        Args:
          labels: int [N], class of each row of the source.
        """
        self._wait(0)
        if self.share.processes > 1:
            self._exchange_buffers()
        precision, average = np.full(len(labels), np.nan), np.full(len(labels), np.nan)

        def reduce_tile(tile: int) -> None:
            index, relevant = self.indices[tile], self.relevant[tile]
            query, _, candidate = unpack(self._sort_and_truncate(tile))
            others = candidate != index[query]
            query, candidate = query[others], candidate[others]
            rank = 1 + position_in_run(query)
            hit = (rank <= relevant[query]) & (labels[candidate] == labels[index[query]])
            query, rank = query[hit], rank[hit]
            precision_at_hit = (1 + position_in_run(query)) / rank
            used = relevant > 0
            for target, sums in (
                (precision, np.bincount(query, minlength=len(index))),
                (average, np.bincount(query, precision_at_hit, len(index))),
            ):
                target[index[used]] = sums[used] / relevant[used]

        with self.pool:
            list(self.pool.map(reduce_tile, range(self.rows.num_tiles)))
        return precision, average

    def _exchange_buffers(self) -> None:
        """Adds the candidates of the other processes to the buffers."""
        for tile in range(self.rows.num_tiles):
            own = self._sort_and_truncate(tile)
            padded = np.full(self.keep[tile].sum(), -1)
            padded[: len(own)] = own
            packed = self.share.gather(padded)
            self.buffers[tile] = [packed[packed >= 0]]

    def _reduce_both_axes(
        self,
        reduce_axis: Callable[[np.ndarray, int, int, int], None],
        keys: jax.Array,
        pairs: Sequence[tuple[int, int]],
    ) -> None:
        """Submits reductions for the queries in the columns and, off the diagonal, in the rows of each tile."""

        def task(shard: jax.Shard, candidates: int, queries: int, axis: int) -> None:
            shape = (self.real[candidates], self.real[queries])[:: -1 if axis else 1]
            reduce_axis(np.asarray(shard.data)[0, : shape[0], : shape[1]], candidates, queries, axis)

        shards = sorted(keys.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        for (a, b), shard in zip(pairs, shards, strict=False):
            self.pending.append(self.pool.submit(task, shard, a, b, 0))
            if a != b:
                self.pending.append(self.pool.submit(task, shard, b, a, 1))
        self._wait(MAX_PENDING)

    def _wait(self, max_pending: int) -> None:
        while len(self.pending) > max_pending:
            self.pending.pop(0).result()

    def _update_maxima(self, tile: np.ndarray, candidates: int, queries: int, axis: int) -> None:
        """Updates the largest key of each group of candidates, which lie along `axis` of the tile."""
        whole = tile.shape[axis] // self.groups * self.groups
        if not whole:
            return
        if axis == 0:
            maxima = tile[:whole].reshape(-1, self.groups, tile.shape[1]).max(axis=0)
        else:
            maxima = tile[:, :whole].reshape(len(tile), -1, self.groups).max(axis=1).T
        with self.locks[queries]:
            known = self.maxima[queries, :, : maxima.shape[1]]
            np.maximum(known, maxima, out=known)

    def _initial_bounds(self, tile: int) -> np.ndarray:
        """For each query of a tile, a key that at least `keep` candidates reach: int32 [T]."""
        maxima, keep = np.sort(self.maxima[tile].T, axis=1), self.keep[tile]
        bounds = maxima[np.arange(len(maxima)), np.maximum(self.groups - keep, 0) % self.groups]
        return np.where(keep > 0, np.where(keep <= self.groups, bounds, LOWEST), TOP).astype(np.int32)

    def _buffer_candidates(self, tile: np.ndarray, candidates: int, queries: int, axis: int) -> None:
        """Buffers the candidates, which lie along `axis` of the tile, that reach the bounds."""
        bound = self.bounds[queries, : tile.shape[1 - axis]]
        flat = np.flatnonzero(tile >= (bound[None, :] if axis == 0 else bound[:, None]))
        row, column = np.divmod(flat, tile.shape[1])
        query, candidate = (column, row) if axis == 0 else (row, column)
        packed = (TOP - tile[row, column]) << INDEX_BITS
        packed |= query << QUERY_SHIFT
        packed |= self.indices[candidates][candidate]
        with self.locks[queries]:
            self.buffers[queries].append(packed)
            if sum(map(len, self.buffers[queries])) > 2 * self.keep[queries].sum() + tile.size // 8:
                self._sort_and_truncate(queries)

    def _sort_and_truncate(self, tile: int) -> np.ndarray:
        """Sorts the buffer of a tile, keeps `keep` candidates per query and raises the bounds; returns the buffer."""
        packed = np.concatenate([np.empty(0, np.int64), *self.buffers[tile]])
        packed.sort()
        query, below_top, _ = unpack(packed)
        rank, keep = 1 + position_in_run(query), self.keep[tile]
        last = rank == keep[query]
        self.bounds[tile, query[last]] = TOP - below_top[last]
        packed = packed[rank <= keep[query]]
        self.buffers[tile] = [packed]
        return packed


def buffer_bytes(rows: int, relevant: int) -> int:
    """Host memory of `TopR`: the maxima of all groups and twice the candidates kept."""
    return rows * (relevant + 1) * (2 * 4 + 2 * 8)


def unpack(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query within its tile, TOP - key, and index of packed candidates."""
    return packed >> QUERY_SHIFT, (packed >> INDEX_BITS) & ((1 << KEY_BITS) - 1), packed & (MAX_ROWS - 1)


def position_in_run(values: np.ndarray) -> np.ndarray:
    """Position of each element within its run of equal values; `values` are sorted: [5, 5, 7] -> [0, 1, 0]."""
    starts = np.concatenate([[0], np.cumsum(np.bincount(values))])
    return np.arange(len(values)) - starts[values]
