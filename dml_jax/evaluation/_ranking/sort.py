"""Scores of queries by sorting, for those with so many relevant rows that counting would cost more.

The similarities of some hundred queries at a time come from the device; NumPy sorts each row as one vector of integers
(score above, index below), several times faster than XLA sorts on CPUs.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from dml_jax.evaluation._ranking.kernels import EVERYWHERE, product
from dml_jax.evaluation._ranking.tiles import Rows


def judge(
    gallery: Rows,
    queries: Rows,
    labels: np.ndarray,
    gallery_labels: np.ndarray,
    own: np.ndarray,
    *,
    drop: int,
    panel: int,
    mesh: Mesh,
    progress: Callable[[int], None] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rank of the nearest relevant row, R-precision and average precision at R.

    Args:
      gallery: candidates in the order of their index.
      queries: those that ask.
      labels: int [Q], class of each query, in the order of `queries`.
      gallery_labels: int [G].
      own: int [Q], index of the candidate that each query leaves out, -1 if none.
      drop: nearest candidates that are passed over, and not counted as relevant.
      panel: tiles of the gallery that fit on a device.
      mesh: devices.
      progress: called with the tiles done in each step.

    Returns:
      int32 [Q] (0 if none is found), float64 [Q] and float64 [Q] (NaN where no row is relevant).
    """
    rows = len(queries.order)
    first, precision, average = np.zeros(rows, np.int32), np.full(rows, np.nan), np.full(rows, np.nan)
    relevant = np.bincount(gallery_labels, minlength=labels.max() + 1)[labels] - (own >= 0) - drop
    everywhere = NamedSharding(mesh, EVERYWHERE)
    loaded: dict[int, jax.Array] = {}

    def factor(start: int) -> jax.Array:
        if start not in loaded:
            loaded.clear()
            loaded[start] = jax.device_put(gallery.prepared(slice(start, start + panel), right=True), everywhere)
        return loaded[start]

    def one(query: int, scores: np.ndarray) -> None:
        found = gallery_labels[nearest_first(scores, own[query])[drop:]] == labels[query]
        place, wanted = int(np.argmax(found)), relevant[query]
        first[query] = place + 1 if found[place] else 0
        if wanted > 0:
            ranks = np.flatnonzero(found[:wanted]) + 1
            precision[query] = len(ranks) / wanted
            average[query] = np.sum(np.arange(1, len(ranks) + 1) / ranks) / wanted

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for tile in range(queries.tiles):
            left = jax.device_put(queries.prepared(slice(tile, tile + 1), right=False), everywhere)
            block = np.empty((queries.edge, gallery.tiles * gallery.edge), gallery.dtype)
            for start in range(0, gallery.tiles, panel):
                right = factor(start)
                for i in range(0, len(right), mesh.size):
                    chosen = np.minimum(np.arange(i, i + mesh.size), len(right) - 1)
                    pairs = np.stack([np.zeros_like(chosen), chosen], axis=1).astype(np.int32)
                    scores = np.asarray(product(left, right, pairs, mesh))
                    for b, part in zip(chosen.tolist(), scores, strict=True):
                        place = (start + b) * gallery.edge
                        block[:, place : place + gallery.edge] = part
            asked = range(tile * queries.edge, min(rows, (tile + 1) * queries.edge))
            list(pool.map(one, asked, block[:, : len(gallery.order)]))
            if progress is not None:
                progress(gallery.tiles)
    return first, precision, average


def nearest_first(scores: np.ndarray, left_out: int) -> np.ndarray:
    """Indices [G] by falling score, ties by index; without `left_out`, if that is not negative."""
    far = 0 - scores  # not -scores, which tells 0 from -0
    if far.dtype == np.float32:
        bits = far.view(np.int32)
        key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64) << 32
        key |= np.arange(len(scores))
        key.sort()
        order = key & 0xFFFFFFFF
    else:
        order = np.argsort(far, kind="stable")
    return order[order != left_out] if left_out >= 0 else order
