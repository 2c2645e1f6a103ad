"""Exact ranks of relevant rows, by counting, at little more than the cost of the similarity product.

The rank of a relevant row is one plus the number of rows before it: nearer ones, and equally near ones of lower index.
Nothing is sorted and the matrix of similarities never exists. Rows are ordered by class, so relevant pairs lie in the
few tiles near the diagonal: first these give each query the scores of its relevant rows, the thresholds; then every
tile counts, for each of its columns, how many of its rows come before each threshold. Where queries are their own
gallery the matrix is symmetric: only the tiles on and above the diagonal are multiplied, and each serves its columns
and, transposed, its rows.

One compiled product makes the thresholds and what they are compared with, so equal rows tie exactly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dml_jax.evaluation._ranking.kernels import (
    EVERYWHERE,
    SPREAD,
    Side,
    Visit,
    collect,
    counter,
    gathered,
    product,
    serve,
)
from dml_jax.evaluation._ranking.tiles import FILLER, Rows
from dml_jax.evaluation._ranking.top_r import Shortlist

Pair = tuple[int, int]
Progress = Callable[[int, int], None]


class Slots(NamedTuple):
    """Which rows each query asks the rank of: consecutive places of the gallery, its own place left out.

    Attributes:
      start: int32 [m, T], first place of the query's class.
      size: int32 [m, T], how many rows are asked for; 0 for a query that asks none.
      own: int32 [m, T], the query's own place in the gallery, -1 where it has none or is to be ranked like any other.
    """

    start: np.ndarray
    size: np.ndarray
    own: np.ndarray

    def places(self, width: int) -> np.ndarray:
        """Place of each slot's row, -1 for unused slots, and the own place in one more: int32 [m, width + 1, T]."""
        slot = np.arange(width, dtype=np.int32)[None, :, None]
        start, own, size = self.start[:, None], self.own[:, None], self.size[:, None]
        place = start + slot
        place = np.where(slot < size, place + ((own >= start) & (place >= own)), -1)
        return np.concatenate([place, np.where(size > 0, own, -1)], axis=1).astype(np.int32)


class Budget(NamedTuple):
    """What may lie on a device.

    Attributes:
      panel: tiles of either factor.
      held: tiles of scores kept from the first pass to the second.
    """

    panel: int
    held: int


def ranks(
    gallery: Rows,
    queries: Rows,
    slots: Slots,
    *,
    mesh: Mesh,
    budget: Budget,
    progress: Progress | None = None,
    shortlist: Shortlist | None = None,
) -> np.ndarray:
    """Ranks of the rows that queries ask for.

    Args:
      gallery: the rows that are ranked.
      queries: those that ask; the same object where they are their own gallery.
      slots: what they ask.
      mesh: devices; the result does not depend on them.
      budget: what may lie on each of them.
      progress: called with tiles done and in all.
      shortlist: is shown every tile; then only the nearest of the rows asked for is ranked.

    Returns:
      int32 [m, R, T] (R = 1 with a shortlist), 1-based, a query's own row not counted where `slots.own` names it; 0 for
      unused slots.
    """
    symmetric = queries is gallery
    width = max(1, int(slots.size.max()))
    group = 2 if width <= 16 else -(-width // -(-width // 12))
    places = slots.places(-(-width // group) * group)
    right = side(queries, places, gallery)
    left = (
        right if symmetric else side(gallery, np.full((gallery.tiles, group + 1, gallery.edge), -1, np.int32), gallery)
    )

    live = slots.size.max(axis=1)
    near = nearby(places, gallery.edge, symmetric)
    far = [
        (a, b)
        for b in range(queries.tiles)
        for a in range(b + 1 if symmetric else gallery.tiles)
        if live[b] or (symmetric and live[a])
    ]
    far = sorted(set(far) - set(near), key=lambda pair: pair[::-1])
    work = Sweeps(gallery, queries, live, symmetric, mesh, budget, progress, shortlist, 2 * len(near) + len(far))
    found = work.sweep(collect, left, right, near, right.thresholds.dtype)
    asked, thresholds, own, ties = places[:, :-1] >= 0, found[:, :-1], found[:, -1:], right.ties
    if shortlist is not None:
        work.live, group = np.minimum(live, 1), 1
        thresholds = np.where(asked, thresholds, np.iinfo(thresholds.dtype).min)
        nearest = thresholds.max(axis=1, keepdims=True)
        ties = np.where(asked & (thresholds == nearest), ties, FILLER).min(axis=1, keepdims=True)
        asked, thresholds, places = np.any(asked, axis=1, keepdims=True), nearest, places[:, -1:]
    unasked = np.iinfo(thresholds.dtype).max
    right = right._replace(places=places, thresholds=np.where(asked, thresholds, unasked), ties=ties)
    left = right if symmetric else left
    counts = work.sweep(counter(group, False), left, right, near, np.dtype(np.int32))
    counts += work.sweep(counter(group, ordered(gallery)), left, right, far, np.dtype(np.int32))
    # Rows that only fill a tile have score 0, whose key is 0, and come last among equals.
    counts -= gallery.fillers * (thresholds < 0)
    mine = slots.own[:, None]
    index = gallery.indices().reshape(-1)[mine]
    counts -= (mine >= 0) & ((own > thresholds) | ((own == thresholds) & (index < ties)))
    return np.where(asked, counts + 1, 0)


def side(rows: Rows, places: np.ndarray, gallery: Rows) -> Side:
    """A side whose thresholds are not known yet."""
    slots = places[:, :-1]
    ties = np.where(slots >= 0, gallery.indices().reshape(-1)[slots], 0).astype(np.int32)
    first = np.arange(rows.tiles, dtype=np.int32) * rows.edge
    kind: type[np.signedinteger] = np.int32 if rows.dtype == np.float32 else np.int64
    thresholds = np.full(slots.shape, np.iinfo(kind).max, kind)
    return Side(first, rows.indices(), places.astype(np.int32), thresholds, ties)


def ordered(rows: Rows) -> bool:
    """Whether every index of a tile is below those of the next."""
    index = rows.indices()
    return bool(np.all(index[:-1].max(axis=1) < index[1:].min(axis=1)))


def nearby(places: np.ndarray, edge: int, symmetric: bool) -> list[Pair]:
    """The pairs of tiles that hold rows asked for; where symmetric, the first tile is never behind the second."""
    pairs = set()
    first = np.where(places >= 0, places, np.iinfo(np.int32).max).min(axis=(1, 2))
    last = places.max(axis=(1, 2))
    for b, (start, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        for a in range(start // edge, end // edge + 1 if end >= 0 else 0):
            pairs.add((min(a, b), max(a, b)) if symmetric else (a, b))
    return sorted(pairs)


@dataclass
class Sweeps:
    """Passes over the tiles: what lies where, and how far they have come.

    Attributes:
      gallery, queries: the two factors.
      live: int [m], slots in use by each tile of queries.
      symmetric: whether a tile also serves its rows.
      mesh, budget: devices and what may lie on each.
      progress: called with tiles done and in all.
      total: tiles in all passes; done: tiles done.
      shortlist: is shown every tile.
      held: scores of the first pass, by their pairs; factors: prepared rows used last.
    """

    gallery: Rows
    queries: Rows
    live: np.ndarray
    symmetric: bool
    mesh: Mesh
    budget: Budget
    progress: Progress | None
    shortlist: Shortlist | None
    total: int
    done: int = 0
    held: dict[bytes, jax.Array] = field(default_factory=dict)
    factors: dict[tuple[int, bool], jax.Array] = field(default_factory=dict)

    def sweep(self, visit: Visit, left: Side, right: Side, pairs: Sequence[Pair], dtype: np.dtype) -> np.ndarray:
        """One pass: what the tiles say to the queries, summed, [m, R, T] (R + 1 for `collect`).

        Args:
          visit: what a tile says.
          left, right: of the gallery and of the queries.
          pairs: tiles to visit.
          dtype: of the result.
        """
        found = np.zeros((self.queries.tiles, depth(visit, right), self.queries.edge), dtype)
        per = self.budget.panel
        for j in range(0, self.queries.tiles, per):
            for i in range(0, self.gallery.tiles, per):
                inside = [p for p in pairs if i <= p[0] < i + per and j <= p[1] < j + per]
                if inside:
                    here, there = slice(i, i + per), slice(j, j + per)
                    rows, columns = self.panel(visit, left, right, inside, here, there, dtype)
                    found[there] += columns
                    if self.symmetric:
                        found[here] += rows
        return found

    def panel(
        self,
        visit: Visit,
        left: Side,
        right: Side,
        pairs: Sequence[Pair],
        here: slice,
        there: slice,
        dtype: np.dtype,
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the tiles of `here` x `there` say to the queries in their rows and columns."""
        a, b = self.factor(self.gallery, here, False), self.factor(self.queries, there, True)
        sides = [Side(*(x[part] for x in side)) for side, part in ((left, here), (right, there))]
        if left is right and here == there:
            sides[1] = sides[0] = self.put(sides[0], EVERYWHERE)
        else:
            sides = self.put(sides, EVERYWHERE)
        shapes = [(len(side.first), depth(visit, side), side.indices.shape[1]) for side in sides]
        rows, columns = self.put([np.zeros((self.mesh.size, *shape), dtype) for shape in shapes], SPREAD)
        recent: list[jax.Array] = []
        for chosen, batch, live in self.batches(pairs):
            local = batch - np.array([[here.start, there.start]], np.int32)
            key = batch.tobytes()
            scores = self.held.pop(key, None)
            if scores is None:
                scores = product(a, b, local, self.mesh, keyed=True)
                if visit is collect and len(self.held) < self.budget.held:
                    self.held[key] = scores
            rows, columns = serve(scores, *sides, rows, columns, local, live, self.mesh, visit)
            if self.shortlist is not None:
                (self.shortlist.survey if visit is collect else self.shortlist.offer)(scores, chosen)
            # Never more than two tiles ahead, or all tiles would be allocated at once.
            recent = [*recent, scores][-3:]
            if len(recent) == 3:
                recent[0].block_until_ready()
            self.done += len(batch)
            if self.progress is not None:
                self.progress(min(self.done, self.total), self.total)
        return np.asarray(gathered(rows, self.mesh)), np.asarray(gathered(columns, self.mesh))

    def batches(self, pairs: Sequence[Pair]) -> Any:
        """(pairs, the same and live for all devices, int32 [n, 2]); a device without work repeats a pair and says 0."""
        for start in range(0, len(pairs), self.mesh.size):
            chosen = list(pairs[start : start + self.mesh.size])
            live = [[self.live[a] if self.symmetric and a != b else 0, self.live[b]] for a, b in chosen]
            idle = self.mesh.size - len(chosen)
            yield chosen, np.array(chosen + chosen[:1] * idle, np.int32), np.array(live + [[0, 0]] * idle, np.int32)

    def factor(self, rows: Rows, panel: slice, right: bool) -> jax.Array:
        """Prepared rows of some tiles, on every device; the two used last are kept."""
        right = right and not (self.symmetric and rows.metric == "cosine")
        key = (panel.start, right)
        if key not in self.factors:
            while len(self.factors) > 1:
                self.factors.pop(next(iter(self.factors)))
            self.factors[key] = self.put(rows.prepared(panel, right=right), EVERYWHERE)
        return self.factors[key]

    def put(self, value: Any, spec: P) -> Any:
        return jax.device_put(value, NamedSharding(self.mesh, spec))


def depth(visit: Visit, side: Side) -> int:
    """Slots of a visit's answer."""
    return side.places.shape[1] if visit is collect else side.thresholds.shape[1]
