"""Retrieval metrics of precomputed rankings, such as re-ranked lists."""

from collections.abc import Sequence

import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import check_inputs, metrics
from dml_jax.evaluation.check_inputs import ArrayLike


def required_depth(labels: np.ndarray, gallery_labels: np.ndarray, *, exclude_self: bool) -> int:
    """List length that R-precision and MAP@R need: the largest number R of relevant rows over all queries.

    Args:
      labels: int [Q].
      gallery_labels: int [G].
      exclude_self: whether the queries are part of the gallery and must not find themselves.
    """
    return int(relevant_counts(labels, gallery_labels, exclude_self=exclude_self).max(initial=0))


def relevant_counts(labels: np.ndarray, gallery_labels: np.ndarray, *, exclude_self: bool) -> np.ndarray:
    """R of each query, the number of gallery rows in its class: int64 [Q]; arguments as for `required_depth`."""
    classes, sizes = np.unique(gallery_labels, return_counts=True)
    position = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    return np.where(classes[position] == labels, sizes[position], 0) - exclude_self


def retrieval(
    indices: ArrayLike,
    labels: ArrayLike,
    gallery_labels: ArrayLike | None = None,
    *,
    ks: int | Sequence[int] = (1, 2, 4, 8),
    lone_queries: metrics.Lone = "miss",
) -> dict[str, float]:
    """Recall@K, MRR, R-precision and MAP@R (Musgrave et al., ECCV 2020) of ranked lists.

    Args:
      indices: int [Q, L], gallery rows, nearest first; without the query itself if the queries are the gallery. L must
        reach every K and the largest R (see `required_depth`).
      labels: [Q] integers or strings.
      gallery_labels: [G]; None if the queries are the gallery.
      ks: K of Recall@K, at most L.
      lone_queries: see `metrics.retrieval`.

    Returns:
      The same dictionary as `metrics.retrieval`, by the same conventions; for "mrr", a relevant row beyond the end of a
      list is a miss.
    """
    lists = np.asarray(indices)
    queries = check_inputs.labels(labels, len(lists), of="indices")
    ks = check_inputs.recall_ks(ks)
    exclude_self = gallery_labels is None
    gallery = queries
    if gallery_labels is not None:
        gallery = check_inputs.labels(gallery_labels, len(np.asarray(gallery_labels)), name="gallery_labels")
        check_inputs.check_same_kind(queries, gallery)
    if lists.size and not 0 <= lists.min() <= lists.max() < len(gallery):
        raise DataError(f"indices: hold {lists.min()}..{lists.max()}, but the gallery has {len(gallery)} rows")
    relevant = relevant_counts(queries, gallery, exclude_self=exclude_self)
    needed = max(*ks, int(relevant.max(initial=0)), 1)
    if lists.shape[1] < needed:
        raise DataError(f"indices: lists have {lists.shape[1]} rows, but these K and class sizes need {needed}")
    hits = gallery[lists] == queries[:, None]
    first = np.where(hits.any(axis=1), 1 + hits.argmax(axis=1), 0)
    rank = np.arange(1, lists.shape[1] + 1)[None, :]
    hits_at_r = hits & (rank <= relevant[:, None])
    divisor = np.maximum(relevant, 1)
    precision = hits_at_r.sum(axis=1) / divisor
    average = (np.cumsum(hits_at_r, axis=1) / rank * hits_at_r).sum(axis=1) / divisor
    return metrics.summary(first, precision, average, relevant, queries, ks, lone_queries)
