"""How well each query finds the rows of its class: the plan, the choice between counting and sorting, the scores."""

from typing import Literal, NamedTuple

import numpy as np
from jax.sharding import Mesh

from dml_jax.evaluation._ranking import sort, top_r
from dml_jax.evaluation._ranking.count import Budget, Progress, Slots, ranks
from dml_jax.evaluation._ranking.tiles import Metric, Rows, edge, frame, memory, mesh, on_cpu
from dml_jax.evaluation._ranking.top_r import Shortlist

Exclusion = Literal["index", "position", "none"]

# Relevant rows above which a query is judged by sorting: about where its cost meets that of counting.
CROWDED = 256
# Relevant rows from which on a CPU looks for the best candidates instead of counting for each relevant row.
SHORTLISTED = 16
SHORTLIST_BYTES = 1 << 29
# The cost of counting one threshold where ties need the index of every candidate, and where they do not.
TIED, APART = 10, 6


class Found(NamedTuple):
    """What each query found.

    Attributes:
      first: int32 [Q], 1-based rank of the nearest relevant row; 0 if there is none.
      precision: float64 [Q], R-precision; average: float64 [Q], average precision at R; NaN without a relevant row.
      relevant: int64 [Q], R.
    """

    first: np.ndarray
    precision: np.ndarray
    average: np.ndarray
    relevant: np.ndarray


class Plan(NamedTuple):
    """What will be done, and what it takes.

    Attributes:
      gallery, queries: rows in tiles, the same object where the queries are their own gallery.
      slots: what is asked by counting.
      crowded: int [Q'], queries judged by sorting.
      budget, mesh: what lies where.
      labels, gallery_labels: int [Q], [G], classes numbered from 0.
      exclusion: what a query leaves out.
      shortlisted: only the nearest relevant row of each query is counted for, see `shortlist`.
    """

    gallery: Rows
    queries: Rows
    slots: Slots
    crowded: np.ndarray
    budget: Budget
    mesh: Mesh
    labels: np.ndarray
    gallery_labels: np.ndarray
    exclusion: Exclusion
    shortlisted: bool

    def describe(self) -> str:
        """One line: sizes, devices and memory."""
        symmetric = self.gallery is self.queries
        factors = [self.gallery] if symmetric and self.gallery.metric == "cosine" else [self.gallery, self.queries]
        size = self.gallery.dtype.itemsize
        panels = sum(min(f.tiles, self.budget.panel) * f.edge * f.width * size for f in factors)
        tile = self.gallery.edge * self.queries.edge * size
        last = np.maximum(self.slots.start + self.slots.size, 1) // self.gallery.edge
        near = int(np.sum(last.max(axis=1) - self.slots.start.min(axis=1) // self.gallery.edge + 1))
        slots = 4 * max(1, int(self.slots.size.max())) * self.queries.tiles * self.queries.edge * size
        if self.shortlisted:
            slots += top_r.size(len(self.queries.order), int(self.slots.size.max()))
        resident = all(f.tiles <= self.budget.panel for f in factors)
        where = f"{self.mesh.size} device{'s' * (self.mesh.size > 1)} ({self.mesh.devices.flat[0].platform})"
        return (
            f"{len(self.queries.order):,} queries x {len(self.gallery.order):,} candidates x "
            f"{self.gallery.source.shape[1]} on {where}; tiles {self.gallery.edge} x {self.queries.edge}"
            f"{', half of them by symmetry' if symmetric and self.slots.size.any() else ''}; embeddings "
            f"{'resident' if resident else 'streamed'}; at most about "
            f"{(panels + slots + (min(self.budget.held, near) + 4) * tile) / 2**20:,.0f} MiB a device"
        )


def plan(
    queries: np.ndarray,
    labels: np.ndarray,
    gallery: np.ndarray | None,
    gallery_labels: np.ndarray,
    *,
    metric: Metric,
    exclusion: Exclusion,
    dtype: np.dtype,
    devices: Mesh | None = None,
    limit: int | None = None,
) -> Plan:
    """Lays out tiles.

    Args:
      queries: [Q, D]; labels: int [Q].
      gallery: [G, D], None where the queries are their own gallery; gallery_labels: int [G].
      metric: what ranks the gallery.
      exclusion: a query leaves out the candidate of its own index, or whatever comes first, or nothing.
      dtype: float32 or float64.
      devices: all of them by default.
      limit: bytes that may be used on a device.
    """
    devices = devices or mesh()
    limit = limit or memory(devices)
    symmetric = gallery is None
    others = queries if gallery is None else gallery
    codes = np.unique(np.concatenate([labels, gallery_labels]), return_inverse=True)[1].astype(np.int64)
    mine, theirs = (codes[len(labels) :] if symmetric else codes[: len(labels)]), codes[len(labels) :]
    sizes = np.bincount(theirs, minlength=codes.max() + 1)
    relevant = sizes[mine] - (exclusion != "none")
    crowded = relevant > CROWDED
    asked = np.where(crowded, 0, relevant + (exclusion == "position"))

    common = frame([others] if symmetric else [queries, others], metric)
    edges = edge(len(others), devices), edge(len(queries), devices)
    orders = [np.lexsort((np.arange(len(theirs)), theirs, sizes[theirs]))]
    if np.count_nonzero(np.diff(theirs)) == np.count_nonzero(sizes) - 1:
        orders.append(np.arange(len(theirs)))
    choices = []
    for order, price in zip(orders, (TIED, APART), strict=False):
        rank = np.empty(len(sizes), np.int64)
        rank[theirs[order][::-1]] = np.arange(len(order))[::-1]  # first place of each class
        own = order if symmetric else np.argsort(rank[mine], kind="stable")
        peaks = np.maximum.reduceat(asked[own], np.arange(0, len(own), edges[1]))
        choices.append((price * int(peaks.sum()), order, own, rank))
    _, order, own, rank = min(choices, key=lambda choice: choice[0])

    rows = Rows(others, order, edges[0], metric, common, dtype)
    asking = rows if symmetric else Rows(queries, own, edges[1], metric, common, dtype)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    blank = np.zeros(asking.tiles * asking.edge, np.int32)
    start, size, self_place = blank.copy(), blank.copy(), blank - 1
    start[: len(own)], size[: len(own)] = rank[mine[own]], asked[own]
    if exclusion == "index":
        self_place[: len(own)] = place[own]
    shape = (asking.tiles, asking.edge)
    slots = Slots(start.reshape(shape), size.reshape(shape), self_place.reshape(shape))

    tile = max(rows.edge * asking.edge * dtype.itemsize, 1)
    panel = max(1, limit // 4 // (max(edges) * rows.width * dtype.itemsize))
    shortlisted = (
        symmetric
        and exclusion == "index"
        and on_cpu(devices)
        and dtype == np.float32
        and int(asked.max()) >= SHORTLISTED
        and edges[0] <= top_r.EDGE
        and len(order) <= top_r.ROWS
        and top_r.size(len(order), int(asked.max())) <= SHORTLIST_BYTES
    )
    budget = Budget(panel=panel, held=limit // 2 // tile)
    return Plan(rows, asking, slots, np.flatnonzero(crowded), budget, devices, mine, theirs, exclusion, shortlisted)


def judge(plan: Plan, progress: Progress | None = None) -> Found:
    """Carries out a plan; `progress` is called with tiles done and in all."""
    queries, size = plan.queries, plan.slots.size.reshape(-1)
    relevant = np.bincount(plan.gallery_labels, minlength=plan.labels.max() + 1)[plan.labels]
    relevant = relevant - (plan.exclusion != "none")
    first = np.zeros(len(queries.order), np.int32)
    precision, average = np.full(len(first), np.nan), np.full(len(first), np.nan)
    if size.any() and plan.shortlisted:
        first, precision, average = _shortlisted(plan, relevant, progress)
    elif size.any():
        found = ranks(plan.gallery, queries, plan.slots, mesh=plan.mesh, budget=plan.budget, progress=progress)
        found = found.transpose(0, 2, 1).reshape(-1, found.shape[1])[: len(first)]
        wanted = relevant[queries.order]
        counted = score(found - (plan.exclusion == "position"), wanted)
        for target, values in zip((first, precision, average), counted, strict=True):
            target[queries.order] = values
    if len(plan.crowded):
        _crowded(plan, first, precision, average, progress)
    return Found(first, precision, average, relevant)


def score(found: np.ndarray, relevant: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First rank, R-precision and average precision at R from the ranks [Q, slots] of relevant rows, 0 or less: none.

    R-precision = (1/R) #{rank <= R}; average precision at R = (1/R) sum over the i-th such rank r_i of i / r_i
    (Musgrave et al., ECCV 2020, section 4.1).
    """
    behind = np.iinfo(np.int32).max
    found = np.sort(np.where(found > 0, found, behind), axis=1)
    within = found <= relevant[:, None]
    exact = np.where(relevant > 0, relevant, np.nan)
    share = np.arange(1, found.shape[1] + 1)[None, :] / found
    average = np.einsum("qr,qr->q", within, share) / exact
    return np.where(found[:, 0] < behind, found[:, 0], 0), within.sum(axis=1) / exact, average


def _shortlisted(
    plan: Plan, relevant: np.ndarray, progress: Progress | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    relevant = np.where(np.isin(np.arange(len(relevant)), plan.crowded), 0, relevant)
    best = Shortlist(plan.gallery, relevant)
    found = ranks(
        plan.gallery,
        plan.gallery,
        plan.slots,
        mesh=plan.mesh,
        budget=plan.budget,
        progress=progress,
        shortlist=best,
    )
    first = np.zeros(len(relevant), np.int32)
    first[plan.gallery.order] = found.reshape(-1)[: len(first)]
    return first, *best.finish(plan.labels)


def _crowded(
    plan: Plan, first: np.ndarray, precision: np.ndarray, average: np.ndarray, progress: Progress | None
) -> None:
    gallery = plan.gallery._replace(order=np.arange(len(plan.gallery.order)))
    order = plan.crowded
    # Where the gallery is streamed, it comes once for every tile of queries: the fewer of them the better.
    small = 1024 if plan.gallery.edge > 1152 else 128
    queries = plan.queries._replace(
        order=order, edge=min(plan.queries.edge, small) if gallery.tiles <= plan.budget.panel else plan.queries.edge
    )
    own = order if plan.exclusion == "index" else np.full(len(order), -1)
    done, total = 0, queries.tiles * gallery.tiles

    def advance(tiles: int) -> None:
        nonlocal done
        done += tiles
        if progress is not None:
            progress(done, total)

    judged = sort.judge(
        gallery,
        queries,
        plan.labels[order],
        plan.gallery_labels,
        own,
        drop=int(plan.exclusion == "position"),
        panel=plan.budget.panel,
        mesh=plan.mesh,
        progress=advance,
    )
    for target, values in zip((first, precision, average), judged, strict=True):
        target[order] = values
