"""Ranks of relevant rows by counting: the two passes over the tiles, and the data kept on the
devices meanwhile."""

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
    """The gallery rows whose ranks are counted for each query: consecutive positions, without the
    query's own."""

    start: np.ndarray  # int32 [m, T], first position of the query's class
    size: np.ndarray  # int32 [m, T], number of targets, 0 for a query whose ranks are not counted
    own: np.ndarray  # int32 [m, T], the position of the query itself if it is excluded, else -1
    # int [m, T], and int [G] by position of the gallery: a query leaves out the targets of its
    # group. Their ranks are counted, too, and tell how many of them precede another target.
    groups: tuple[np.ndarray, np.ndarray] | None

    def positions(self, width: int) -> np.ndarray:
        """Position of each target, -1 if unused, followed by the query's own: int32 [m, width + 1,
        T]."""
        target = np.arange(width, dtype=np.int32)[None, :, None]
        start, own, size = self.start[:, None], self.own[:, None], self.size[:, None]
        position = start + target
        position = np.where(target < size, position + ((own >= start) & (position >= own)), -1)
        return np.concatenate([position, np.where(size > 0, own, -1)], axis=1).astype(np.int32)


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

    num_targets = targets.size.max(axis=1)
    near = pairs_with_targets(positions, gallery.tile_size, symmetric)
    far = [
        (a, b)
        for b in range(queries.num_tiles)
        for a in range(b + 1 if symmetric else gallery.num_tiles)
        if num_targets[b] or (symmetric and num_targets[a])
    ]
    far = sorted(set(far) - set(near), key=lambda pair: pair[::-1])
    passes = TilePasses(gallery, queries, num_targets, symmetric, mesh, *limits)
    scores = passes.run(read_thresholds, left, right, near, right.thresholds.dtype)
    used, thresholds, own, ties = positions[:, :-1] >= 0, scores[:, :-1], scores[:, -1:], right.ties
    omitted = None
    if targets.groups is not None:
        omitted = used & (targets.groups[1][positions[:, :-1]] == targets.groups[0][:, None])
    reached = np.where(
        used if omitted is None else used & ~omitted, thresholds, np.iinfo(thresholds.dtype).min
    )
    nearest = (
        np.partition(reached, -1 - drop, axis=1)[:, -1 - drop] if drop else reached.max(axis=1)
    )
    nearest_scores = scores_of_keys(nearest)
    right = right._replace(thresholds=np.where(used, thresholds, np.iinfo(thresholds.dtype).max))
    left = right if symmetric else left
    counts = passes.run(make_counter(group, False), left, right, near, np.dtype(np.int32))
    counts += passes.run(
        make_counter(group, tiles_in_index_order(gallery)), left, right, far, np.dtype(np.int32)
    )
    # Padding rows have score 0, whose key is 0, and the largest index, so they precede only
    # negative thresholds.
    counts -= gallery.padding * (thresholds < 0)
    own_position = targets.own[:, None]
    own_index = gallery.indices().reshape(-1)[own_position]
    counts -= (own_position >= 0) & (
        (own > thresholds) | ((own == thresholds) & (own_index < ties))
    )
    ranks = np.where(used, counts + 1, 0)
    return ranks if omitted is None else without_omitted(ranks, omitted), nearest_scores


def without_omitted(ranks: np.ndarray, omitted: np.ndarray) -> np.ndarray:
    """Ranks int [m, R, T], sorted along R, as if the rows `omitted` (bool [m, R, T]) did not exist;
    0 for these."""
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
    return Side(first, rows.indices(), positions.astype(np.int32), thresholds, ties)


def tiles_in_index_order(rows: TiledRows) -> bool:
    """Whether every index in a tile is below every index in the next."""
    index = rows.indices()
    return bool(np.all(index[:-1].max(axis=1) < index[1:].min(axis=1)))


def pairs_with_targets(positions: np.ndarray, tile_size: int, symmetric: bool) -> list[Pair]:
    """The pairs of tiles that contain targets; if symmetric, only those on and above the
    diagonal."""
    pairs = set()
    first = np.where(positions >= 0, positions, np.iinfo(np.int32).max).min(axis=(1, 2))
    last = positions.max(axis=(1, 2))
    for b, (start, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        for a in range(start // tile_size, end // tile_size + 1 if end >= 0 else 0):
            pairs.add((min(a, b), max(a, b)) if symmetric else (a, b))
    return sorted(pairs)


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
    cached_scores: dict[bytes, jax.Array] = field(
        default_factory=dict
    )  # of the first pass, by pairs of tiles
    operands: dict[tuple[int, bool], jax.Array] = field(
        default_factory=dict
    )  # the two panels used last

    def run(
        self,
        reduction: Reduction,
        left: Side[np.ndarray],
        right: Side[np.ndarray],
        pairs: Sequence[Pair],
        dtype: np.dtype,
    ) -> np.ndarray:
        """One pass: the sum over the `pairs` of the reduction of each tile, [m, R or R + 1, T]."""
        result = np.zeros(
            (self.queries.num_tiles, result_depth(reduction, right), self.queries.tile_size), dtype
        )
        step = self.panel_tiles

        def panels(pair: Pair) -> tuple[int, int]:
            return pair[1] // step, pair[0] // step

        for (j, i), inside in groupby(sorted(pairs, key=panels), panels):
            row_tiles, column_tiles = (slice(panel * step, (panel + 1) * step) for panel in (i, j))
            a, b = (
                self._operand(self.gallery, row_tiles, False),
                self._operand(self.queries, column_tiles, True),
            )
            sides = [
                Side(*(x[part] for x in side))
                for side, part in ((left, row_tiles), (right, column_tiles))
            ]
            shapes = [
                (len(side.first), result_depth(reduction, side), side.indices.shape[1])
                for side in sides
            ]
            same = left is right and i == j
            device_sides = (
                (self._put(sides[0], REPLICATED),) * 2
                if same
                else self._put(tuple(sides), REPLICATED)
            )
            sums = self._put(
                tuple(np.zeros((self.mesh.size, *shape), dtype) for shape in shapes), SHARDED
            )
            recent: list[jax.Array] = []
            for batch, num_targets in self._device_batches(list(inside)):
                local = batch - np.array([[row_tiles.start, column_tiles.start]], np.int32)
                key = batch.tobytes()
                scores = self.cached_scores.pop(key, None)
                if scores is None:
                    scores = product(a, b, local, self.mesh, as_keys=True)
                    if reduction is read_thresholds and len(self.cached_scores) < self.cached_tiles:
                        self.cached_scores[key] = scores
                sums = accumulate(
                    scores, device_sides, sums, local, num_targets, self.mesh, reduction
                )
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
        """Pairs for n devices and their targets, int32 [n, 2]; idle devices repeat a pair, with no
        targets."""
        for start in range(0, len(pairs), self.mesh.size):
            chosen = list(pairs[start : start + self.mesh.size])
            num_targets = [
                [self.num_targets[a] if self.symmetric and a != b else 0, self.num_targets[b]]
                for a, b in chosen
            ]
            idle = self.mesh.size - len(chosen)
            batch = np.array(chosen + chosen[:1] * idle, np.int32)
            yield batch, np.array(num_targets + [[0, 0]] * idle, np.int32)

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


def result_depth(reduction: Reduction, side: Side[np.ndarray]) -> int:
    """Length of the target axis of a reduction's result."""
    return side.positions.shape[1] if reduction is read_thresholds else side.thresholds.shape[1]
