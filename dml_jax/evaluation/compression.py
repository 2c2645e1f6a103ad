"""Smaller embeddings: prefixes, PCA whitening, int8 and binary codes.

A `Compression` is fitted on embeddings of training images and applied to others:

    small = compression.fit(training, 128, whiten=True)
    codes = small.binary(embeddings)  # uint8 [N, 16]

PCA whitening subtracts the mean, projects onto the directions of largest variance, divides by the
standard deviations and scales to unit length (Jégou & Chum, ECCV 2012). int8 codes are round(127 x
/ limit), with the largest magnitude of each dimension in the training rows as its limit. Binary
codes are the signs of x - center, eight to a byte, with the mean of the training rows as the
center; they are compared by their Hamming distance, or the best of them are re-scored by the inner
product of the signs with a query that is not coded (Yamada, Asai, Hajishirzi, ACL 2021).
"""

from typing import NamedTuple

import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import validation
from dml_jax.evaluation.unit_rows import unit_rows
from dml_jax.evaluation.validation import ArrayLike


class Compression(NamedTuple):
    """Maps embeddings x of D dimensions to (x - mean) matrix, scaled to unit length."""

    mean: np.ndarray  # float32 [D]
    matrix: np.ndarray  # float32 [D, d]
    limits: np.ndarray  # float32 [d], for int8 codes
    center: np.ndarray  # float32 [d], for binary codes

    def reduced(self, rows: np.ndarray) -> np.ndarray:
        """Embeddings float [N, D] -> float32 [N, d] of unit length."""
        return unit_rows((rows - self.mean) @ self.matrix).astype(np.float32)

    def int8(self, rows: np.ndarray) -> np.ndarray:
        """Reduced embeddings [N, d] -> int8 [N, d]."""
        return np.clip(np.round(127 * rows / self.limits), -127, 127).astype(np.int8)

    def decoded(self, codes: np.ndarray) -> np.ndarray:
        """int8 [N, d] -> float32 [N, d]."""
        return codes * (self.limits / 127)

    def binary(self, rows: np.ndarray) -> np.ndarray:
        """Reduced embeddings [N, d] -> uint8 [N, ceil(d / 8)], highest bit first."""
        return np.packbits(rows > self.center, axis=1)

    def signs(self, codes: np.ndarray) -> np.ndarray:
        """uint8 [N, ceil(d / 8)] -> float32 [N, d], 1 or -1."""
        return np.unpackbits(codes, axis=1, count=len(self.center)).astype(np.float32) * 2 - 1


def fit(training: ArrayLike, dimensions: int = 0, *, whiten: bool = False) -> Compression:
    """Fits a compression to training embeddings [N, D].

    Args:
      dimensions: d; 0 for all.
      whiten: PCA whitening; otherwise the first d dimensions are kept as they are.
    """
    rows = np.asarray(validation.embeddings(training, name="training"), np.float64)
    width = rows.shape[1]
    kept = validation.whole("dimensions", dimensions or width, 1, width)
    mean, matrix = np.zeros(width), np.eye(width)[:, :kept]
    if whiten:
        mean = rows.mean(axis=0)
        variances, directions = np.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
        variances, directions = variances[::-1][:kept], directions[:, ::-1][:, :kept]
        if variances[-1] <= 1e-9 * variances[0]:
            problem = f"{len(rows)} training rows vary in fewer"
            raise DataError(f"dimensions={kept}: {problem}; give fewer, or more rows")
        matrix = directions / np.sqrt(variances)
    reduced = unit_rows((rows - mean) @ matrix).astype(np.float32)
    limits = np.abs(reduced).max(axis=0)
    fitted = (mean, matrix, np.where(limits > 0, limits, 1), reduced.mean(axis=0))
    return Compression(*(part.astype(np.float32) for part in fitted))
