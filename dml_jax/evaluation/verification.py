"""Same class or not? The threshold on the cosine, its error rates, and where the two errors are equal."""

from typing import NamedTuple

import numpy as np

from dml_jax.errors import DataError

BLOCK = 512  # rows compared at once


class Verification(NamedTuple):
    """Error rates of the rule "same class where the cosine reaches the threshold".

    Attributes:
      thresholds: float64 [T], cosines, ascending.
      false_accepts: float64 [T], share of pairs of different classes that reach the threshold.
      false_rejects: float64 [T], share of pairs of one class that do not.
      equal_error: the error where the two shares cross.
      threshold: the cosine where they do.
    """

    thresholds: np.ndarray
    false_accepts: np.ndarray
    false_rejects: np.ndarray
    equal_error: float
    threshold: float


def verify(embeddings: np.ndarray, labels: np.ndarray, *, bins: int = 4000) -> Verification:
    """Error rates over all pairs, by a histogram of their cosines, so that no N×N matrix is kept.

    Args:
      embeddings: [N, D], rows of any length.
      labels: int [N].
      bins: of the cosine's range; the threshold is exact to 2 / bins.

    Raises:
      DataError: no pair of one class, or none of two.
    """
    rows = np.asarray(embeddings, np.float32)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = (rows / np.where(length > 0, length, 1)).astype(np.float32)
    edges = np.linspace(-1, 1, bins + 1)
    same, other = np.zeros(bins, np.int64), np.zeros(bins, np.int64)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        cosines = block @ rows[start:].T
        later = np.arange(cosines.shape[1])[None, :] > np.arange(len(block))[:, None]
        equal = labels[start : start + BLOCK, None] == labels[None, start:]
        place = np.clip(((cosines + 1) * (bins / 2)).astype(np.int64), 0, bins - 1)
        same += np.bincount(place[later & equal], minlength=bins)
        other += np.bincount(place[later & ~equal], minlength=bins)
    if not same.any() or not other.any():
        raise DataError("the labels hold no pair of one class, or none of two: there is nothing to tell apart")
    rejects = np.concatenate([[0], np.cumsum(same)]) / same.sum()
    accepts = 1 - np.concatenate([[0], np.cumsum(other)]) / other.sum()
    crossing = int(np.argmax(rejects >= accepts))
    return Verification(
        thresholds=edges,
        false_accepts=accepts,
        false_rejects=rejects,
        equal_error=float((rejects[crossing] + accepts[crossing]) / 2),
        threshold=float(edges[crossing]),
    )
