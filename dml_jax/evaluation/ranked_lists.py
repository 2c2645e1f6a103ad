"""Metrics of given rankings: lists of neighbours that no distance orders, such as re-ranked ones."""

from typing import Any

import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import metrics, validation


def depth(labels: np.ndarray, gallery_labels: np.ndarray, *, own: bool) -> int:
    """How long lists must be for `retrieval` to give R-precision and MAP@R: the largest R.

    Args:
      labels: int [Q]; gallery_labels: int [G]; own: whether each query is in the gallery and does not count.
    """
    return int(relevant(labels, gallery_labels, own=own).max(initial=0))


def relevant(labels: np.ndarray, gallery_labels: np.ndarray, *, own: bool) -> np.ndarray:
    """R of each query, how many other gallery rows are of its class: int64 [Q]."""
    known, sizes = np.unique(gallery_labels, return_counts=True)
    place = np.minimum(np.searchsorted(known, labels), len(known) - 1)
    return np.where(known[place] == labels, sizes[place], 0) - own


def retrieval(
    indices: Any,
    labels: Any,
    gallery_labels: Any = None,
    *,
    ks: tuple[int, ...] = (1, 2, 4, 8),
) -> dict[str, float]:
    """Recall@K, R-precision and MAP@R (Musgrave et al., ECCV 2020) of lists of neighbours.

    Args:
      indices: int [Q, L], gallery rows, nearest first; where the queries are the gallery, without the query itself.
      labels: int [Q].
      gallery_labels: int [G]; None where the queries are the gallery.
      ks: of Recall@K, at most L.

    Returns:
      What `metrics.retrieval` returns, by the same conventions.

    Raises:
      DataError: wrong shapes, or lists too short for a K or for the largest R (see `depth`).
    """
    found = np.asarray(indices)
    if found.ndim != 2 or not np.issubdtype(found.dtype, np.integer):
        raise DataError(f"indices: {found.dtype} {list(found.shape)}; give integers [Q, L], one list a query")
    classes = validation.labels(labels, len(found), of="indices")
    own = gallery_labels is None
    others = classes if own else validation.labels(gallery_labels, len(gallery_labels), name="gallery_labels")
    if found.size and not 0 <= found.min() <= found.max() < len(others):
        raise DataError(f"indices: hold {found.min()}..{found.max()}, but the gallery has {len(others)} rows")
    count = relevant(classes, others, own=own)
    needed = max(*ks, int(count.max(initial=0)), 1)
    if found.shape[1] < needed:
        raise DataError(f"indices: lists of {found.shape[1]} rows; {needed} are needed for these K and classes")
    hits = others[found] == classes[:, None]
    first = np.where(hits.any(axis=1), 1 + hits.argmax(axis=1), 0)
    place = np.arange(1, found.shape[1] + 1)[None, :]
    within = hits & (place <= count[:, None])
    sizes = np.maximum(count, 1)
    precision = within.sum(axis=1) / sizes
    average = (np.cumsum(within, axis=1) / place * within).sum(axis=1) / sizes
    return metrics.summary(first, precision, average, count, ks)
