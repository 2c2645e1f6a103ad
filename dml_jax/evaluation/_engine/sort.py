"""Metrics of queries by sorting their scores, for queries with too many relevant rows for counting.

The device computes the scores of a tile of queries, or the host does in float64 (`exact`). NumPy sorts each row as one
vector of integers (score in the high bits, index in the low bits), which on CPUs is several times faster than in XLA.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from dml_jax.evaluation._engine.judgements import Judgements
from dml_jax.evaluation._engine.rank_metrics import discounted_gains, full_ranking
from dml_jax.evaluation._engine.tiles import REPLICATED, TiledRows, product


class Sorted(NamedTuple):
    """Metrics of Q queries.

    Attributes:
      first: int32 [Q], rank of the first relevant row, 0 if there is none.
      precision: float64 [Q], R-precision, NaN without a relevant row.
      average: float64 [Q], average precision at R, likewise.
      full: float64 [Q, 1 + len(full_ks)], see `rank_metrics.full_ranking`; None if it is not wanted.
      nearest: float64 [Q], score of the first relevant row, NaN if there is none.
      relevant: int64 [Q], R, the number of relevant rows.
      gains: float64 [Q, len(gain_ks)], see `rank_metrics.discounted_gains`; None if they are not wanted.
    """

    first: np.ndarray
    precision: np.ndarray
    average: np.ndarray
    full: np.ndarray | None
    nearest: np.ndarray
    relevant: np.ndarray
    gains: np.ndarray | None


def metrics_by_sorting(
    blocks: Iterable[tuple[slice, np.ndarray]],
    queries: np.ndarray,
    labels: np.ndarray,
    gallery_labels: np.ndarray,
    own: np.ndarray,
    judgements: Judgements,
    *,
    drop: int,
    full_ks: tuple[int, ...] | None = None,
    gain_ks: tuple[int, ...] | None = None,
) -> Sorted:
    """Ranks the gallery for each of Q queries.

    Args:
      blocks: slices of the queries, and their scores float [B, G], as from `device_scores`.
      queries: int [Q], by which `judgements` knows the queries.
      labels: int [Q], class of each query.
      gallery_labels: int [G].
      own: int [Q], index of the candidate that each query excludes, -1 if none.
      judgements: relevant and omitted rows.
      drop: number of nearest candidates that are skipped and do not count as relevant.
      full_ks: K of `rank_metrics.full_ranking`; None if it is not wanted.
      gain_ks: K of `rank_metrics.discounted_gains`, likewise.
    """
    rows = len(labels)
    first, precision, average, nearest = np.zeros(rows, np.int32), *np.full((3, rows), np.nan)
    relevant = np.zeros(rows, np.int64)
    full = None if full_ks is None else np.full((rows, 1 + len(full_ks)), np.nan)
    gains = None if gain_ks is None else np.full((rows, len(gain_ks)), np.nan)

    def rank_query(i: int, scores: np.ndarray) -> None:
        grades, omitted = judgements.of(int(queries[i]), lambda: gallery_labels == labels[i])
        order = nearest_first(scores, own[i])
        if omitted is not None:
            order = order[~omitted[order]]
        graded = grades[order]
        hits = np.flatnonzero(graded)
        relevant[i] = r = len(hits) - drop
        hits = hits[np.searchsorted(hits, drop) :] - drop
        if len(hits):
            first[i], nearest[i] = hits[0] + 1, scores[order[hits[0] + drop]]
        if r > 0:
            ranks = hits[: np.searchsorted(hits, r)] + 1
            precision[i] = len(ranks) / r
            average[i] = np.sum(np.arange(1, len(ranks) + 1) / ranks) / r
        if full is not None:
            full[i] = full_ranking(hits[None] + 1, full_ks or ())[0]
        if gains is not None:
            gains[i] = discounted_gains(graded, gain_ks or ())

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for part, scores in blocks:
            list(pool.map(rank_query, range(rows)[part], scores))
    return Sorted(first, precision, average, full, nearest, relevant, gains)


def device_scores(
    gallery: TiledRows,
    queries: TiledRows,
    *,
    panel_tiles: int,
    mesh: Mesh,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[slice, np.ndarray]]:
    """Scores of the queries, a tile at a time.

    Args:
      gallery: candidates in the order of their index.
      queries: the queries.
      panel_tiles: tiles of the gallery that fit on a device.
      mesh: devices.
      progress: called with the number of tiles done in each step.

    Yields:
      Slices of `queries.order`, and their scores [B, G].
    """
    rows = len(queries.order)
    replicated = NamedSharding(mesh, REPLICATED)
    panels: dict[int, jax.Array] = {}

    def gallery_panel(start: int) -> jax.Array:
        if start not in panels:
            panels.clear()
            panels[start] = jax.device_put(gallery.operand(slice(start, start + panel_tiles), right=True), replicated)
        return panels[start]

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
        part = slice(tile * queries.tile_size, min(rows, (tile + 1) * queries.tile_size))
        yield part, block[: part.stop - part.start, : len(gallery.order)]
        if progress is not None:
            progress(gallery.num_tiles)


def nearest_first(scores: np.ndarray, excluded: int) -> np.ndarray:
    """Indices [G] by decreasing score, ties by index, without the index `excluded` unless it is negative."""
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
