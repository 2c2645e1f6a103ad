"""Ranks of relevant rows by counting: two passes over the tiles, and their caches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dml_jax.evaluation._engine.counting_kernels import (
    Reduction,
    Side,
    accumulate,
    make_counter,
    read_thresholds,
)
from dml_jax.evaluation._engine.tiles import (
    REPLICATED,
    SHARDED,
    TiledRows,
    product,
    scores_of_keys,
    sum_over_devices,
)

Pair = tuple[int, int]  # a tile of the gallery and a tile of the queries


class Targets(NamedTuple):
    """The gallery rows whose ranks a query counts, at consecutive positions but its own."""

    start: np.ndarray  # int32 [m, T], first position of the query's class
    size: np.ndarray  # int32 [m, T], number of targets, 0 for a query whose ranks are not counted
    query: np.ndarray  # int32 [m, T], position of the query if it excludes itself, else -1
    # int [m, T], and int [G] by position of the gallery: a query leaves out the targets of its
    # group. Their ranks are counted, too, and tell how many of them precede another target.
    groups: tuple[np.ndarray, np.ndarray] | None

    def positions(self, width: int) -> np.ndarray:
        """Positions of the targets, then of the query, -1 if unused: int32 [m, width + 1, T]."""
        target = np.arange(width, dtype=np.int32)[None, :, None]
        start, query, size = self.start[:, None], self.query[:, None], self.size[:, None]
        position = start + target
        position = np.where(target < size, position + ((query >= start) & (position >= query)), -1)
        return np.concatenate([position, np.where(size > 0, query, -1)], axis=1).astype(np.int32)


def count_ranks(
    gallery: TiledRows,
    queries: TiledRows,
    targets: Targets,
    mesh: Mesh,
    limits: tuple[int, int],
    drop: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks of the targets of each query, and the score of the nearest one after the first `drop`.

    The ranks int32 [m, R, T] are in any order along R, 1-based, without rows that the query
    excludes; 0 for these and for unused targets. The scores float [m, T] are NaN for queries
    without targets. The limits per device are the tiles of either operand that are resident at
    once, and the tiles of scores kept from the first pass for the second.
    """
    symmetric = queries is gallery
    width = max(1, int(targets.size.max()))
    group = 2 if width <= 16 else -(-width // -(-width // 12))
    positions = targets.positions(-(-width // group) * group)
    right = make_side(queries, positions, gallery)
    unused = np.full((gallery.num_tiles, group + 1, gallery.tile_size), -1, np.int32)
    left = right if symmetric else make_side(gallery, unused, gallery)

    index, num_targets = gallery.indices(), targets.size.max(axis=1)
    near = pairs_with_targets(positions, gallery.tile_size, symmetric)
    far = [
        (a, b)
        for b in range(queries.num_tiles)
        for a in range(b + 1 if symmetric else gallery.num_tiles)
        if (num_targets[b] or (symmetric and num_targets[a])) and (a, b) not in near
    ]
    passes = TilePasses(gallery, queries, num_targets, symmetric, mesh, *limits)
    scores = passes.run(read_thresholds, left, right, sorted(near), right.thresholds.dtype)
    used, thresholds, query_scores = positions[:, :-1] >= 0, scores[:, :-1], scores[:, -1:]
    range_of_keys = np.iinfo(thresholds.dtype)
    omitted = np.zeros_like(used)
    if targets.groups is not None:
        omitted = used & (targets.groups[1][positions[:, :-1]] == targets.groups[0][:, None])
    reached = np.where(used & ~omitted, thresholds, range_of_keys.min)
    nearest = np.partition(reached, -1 - drop, axis=1)[:, -1 - drop] if drop else reached.max(1)
    right = right._replace(thresholds=np.where(used, thresholds, range_of_keys.max))
    left = right if symmetric else left
    counts = passes.run(make_counter(group, False), left, right, sorted(near), np.dtype(np.int32))
    # Whether every index in a tile is below every index in the next.
    ordered = bool(np.all(index[:-1].max(axis=1) < index[1:].min(axis=1)))
    counts += passes.run(make_counter(group, ordered), left, right, far, np.dtype(np.int32))
    # Padding rows have score 0, key 0 and the largest index: they precede negative thresholds only.
    counts -= gallery.padding * (thresholds < 0)
    query_position = targets.query[:, None]
    tied = query_scores == thresholds
    tied &= index.reshape(-1)[query_position] < right.ties
    counts -= (query_position >= 0) & ((query_scores > thresholds) | tied)
    ranks = np.where(used, counts + 1, 0)
    return without_omitted(ranks, omitted) if targets.groups else ranks, scores_of_keys(nearest)


def without_omitted(ranks: np.ndarray, omitted: np.ndarray) -> np.ndarray:
    """Ranks int [m, R, T], sorted along R, as if the `omitted` rows did not exist; 0 for these."""
    order = np.argsort(ranks, axis=1)
    ranks, omitted = (np.take_along_axis(values, order, axis=1) for values in (ranks, omitted))
    return np.where(omitted, 0, ranks - np.cumsum(omitted, axis=1, dtype=ranks.dtype))


def make_side(rows: TiledRows, positions: np.ndarray, gallery: TiledRows) -> Side[np.ndarray]:
    """A side with the targets at `positions`, whose thresholds are not known yet."""
    targets = positions[:, :-1]
    ties = np.where(targets >= 0, gallery.indices().reshape(-1)[targets], 0).astype(np.int32)
    first = np.arange(rows.num_tiles, dtype=np.int32) * rows.tile_size
    kind: type[np.signedinteger] = np.int32 if rows.dtype == np.float32 else np.int64
    thresholds = np.full(targets.shape, np.iinfo(kind).max, kind)
    return Side(first, rows.indices(), positions, thresholds, ties)


def pairs_with_targets(positions: np.ndarray, tile_size: int, symmetric: bool) -> set[Pair]:
    """The pairs of tiles with targets; if symmetric, only those on and above the diagonal."""
    pairs = set()
    first = np.where(positions >= 0, positions, np.iinfo(np.int32).max).min(axis=(1, 2))
    last = positions.max(axis=(1, 2))
    for b, (start, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        for a in range(start // tile_size, end // tile_size + 1 if end >= 0 else 0):
            pairs.add((min(a, b), max(a, b)) if symmetric else (a, b))
    return pairs


@dataclass
class TilePasses:
    """Passes over the tiles, with their caches."""

    gallery: TiledRows  # left operand of the product
    queries: TiledRows  # right operand
    num_targets: np.ndarray  # int [m], largest number of targets in each tile of queries
    symmetric: bool  # each tile is reduced along both axes
    mesh: Mesh
    panel_tiles: int
    cached_tiles: int
    # Scores of the first pass by pairs of tiles, and the two panels used last.
    cached_scores: dict[bytes, jax.Array] = field(default_factory=dict)
    operands: dict[tuple[int, bool], jax.Array] = field(default_factory=dict)

    def run(
        self,
        reduction: Reduction,
        left: Side[np.ndarray],
        right: Side[np.ndarray],
        pairs: Sequence[Pair],
        dtype: np.dtype,
    ) -> np.ndarray:
        """One pass: the sum over the `pairs` of the reduction of each tile, [m, R or R + 1, T]."""
        result = np.zeros(_result_shape(reduction, right), dtype)
        step = self.panel_tiles

        def panels(pair: Pair) -> tuple[int, int]:
            return pair[1] // step, pair[0] // step

        for (j, i), inside in groupby(sorted(pairs, key=panels), panels):
            row_tiles, column_tiles = (slice(panel * step, (panel + 1) * step) for panel in (i, j))
            a = self._operand(self.gallery, row_tiles, False)
            b = self._operand(self.queries, column_tiles, True)
            sides = (
                Side(*(values[row_tiles] for values in left)),
                Side(*(values[column_tiles] for values in right)),
            )
            zeros = (np.zeros((self.mesh.size, *_result_shape(reduction, x)), dtype) for x in sides)
            sums = self._put(tuple(zeros), SHARDED)
            if left is right and i == j:
                device_sides = (self._put(sides[0], REPLICATED),) * 2
            else:
                device_sides = self._put(sides, REPLICATED)
            recent: list[jax.Array] = []
            for batch, num_targets in self._device_batches(list(inside)):
                local = batch - np.array([[row_tiles.start, column_tiles.start]], np.int32)
                key = batch.tobytes()
                scores = self.cached_scores.pop(key, None)
                if scores is None:
                    scores = product(a, b, local, self.mesh, as_keys=True)
                    if reduction is read_thresholds and len(self.cached_scores) < self.cached_tiles:
                        self.cached_scores[key] = scores
                places = sums, local, num_targets
                sums = accumulate(scores, device_sides, *places, self.mesh, reduction)
                # Dispatch at most two tiles ahead, or all tiles would be allocated at once.
                recent = [*recent, scores][-3:]
                if len(recent) == 3:
                    recent[0].block_until_ready()
            rows, columns = (np.asarray(sum_over_devices(part, self.mesh)) for part in sums)
            result[column_tiles] += columns
            if self.symmetric:
                result[row_tiles] += rows
        return result

    def _device_batches(self, pairs: Sequence[Pair]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs of tiles for n devices and their numbers of targets, int32 [n, 2]; idle devices
        repeat a pair, without targets."""
        for start in range(0, len(pairs), self.mesh.size):
            chosen = list(pairs[start : start + self.mesh.size])
            num_targets = np.zeros((self.mesh.size, 2), np.int32)
            for device, (a, b) in enumerate(chosen):
                along_rows = self.num_targets[a] if self.symmetric and a != b else 0
                num_targets[device] = along_rows, self.num_targets[b]
            chosen += chosen[:1] * (self.mesh.size - len(chosen))
            yield np.array(chosen, np.int32), num_targets

    def _operand(self, rows: TiledRows, panel: slice, right: bool) -> jax.Array:
        """Prepared rows of some tiles, replicated; the two panels used last are kept."""
        right = right and not (self.symmetric and rows.metric == "cosine")
        key = (panel.start, right)
        if key not in self.operands:
            while len(self.operands) > 1:
                self.operands.pop(next(iter(self.operands)))
            self.operands[key] = self._put(rows.operand(panel, right=right), REPLICATED)
        return self.operands[key]

    def _put(self, tree: Any, spec: P) -> Any:
        return jax.device_put(tree, NamedSharding(self.mesh, spec))


def _result_shape(reduction: Reduction, side: Side[np.ndarray]) -> tuple[int, ...]:
    """[m, R, T], or [m, R + 1, T] for thresholds."""
    return side.positions.shape if reduction is read_thresholds else side.thresholds.shape
