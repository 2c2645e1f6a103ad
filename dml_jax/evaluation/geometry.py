"""The shape of an embedding space: density, spectral decay, uniformity. NumPy float64 throughout."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import validation


def blocks(rows: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """The rows in float64, some thousands at a time."""
    step = max(1, validation.ROWS_AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        yield part, np.asarray(rows[part], np.float64)


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows [N, D] divided by their lengths; zero rows stay zero."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1)


def density(embeddings: Any, labels: Any) -> float:
    """Mean intra-class over mean inter-class cosine distance (Roth et al., ICML 2020; Revisiting DML).

    Intra: the mean over the pairs of different rows of a class, then over the classes with at least two rows. Inter:
    the mean over pairs of classes of the distance between their mean rows.

    Args:
      embeddings: [N, D] real numbers, any norm.
      labels: int [N].

    Returns:
      The ratio; NaN where no class has two rows or there is one class only.

    Raises:
      DataError: wrong shapes or types, rows that are not finite.
    """
    points = validation.embeddings(embeddings)
    _, members, sizes = np.unique(validation.labels(labels, len(points)), return_inverse=True, return_counts=True)
    if len(sizes) < 2 or sizes.max() < 2:
        return float("nan")
    sums, unit_sums = (np.zeros((len(sizes), points.shape[1])) for _ in range(2))
    unit_squares = np.zeros(len(sizes))
    for part, block in blocks(points):
        directions = unit(block)
        np.add.at(sums, members[part], block)
        np.add.at(unit_sums, members[part], directions)
        np.add.at(unit_squares, members[part], np.sum(directions**2, axis=1))
    # The sum of the cosines over ordered pairs of different rows is |sum|^2 - sum of the squares.
    several = sizes >= 2
    cosines = (np.sum(unit_sums**2, axis=1) - unit_squares)[several]
    intra = float(np.mean(1 - cosines / (sizes * (sizes - 1.0))[several]))
    centers = unit(sums / sizes[:, None])
    pairs = len(sizes) * (len(sizes) - 1.0)
    inter = 1 - float(np.sum(np.sum(centers, axis=0) ** 2) - np.sum(centers**2)) / pairs
    return intra / max(inter, 1e-8)


def singular_values(embeddings: Any) -> np.ndarray:
    """Singular values of the matrix as it is, not centred: float64 [min(N, D)], largest first.

    Raises:
      DataError: wrong shape or type, rows that are not finite.
    """
    points = validation.embeddings(embeddings)
    # A QR of stacked blocks keeps the small values exact, which X'X would square away.
    factor = np.zeros((0, points.shape[1]))
    for _, block in blocks(points):
        factor = np.asarray(np.linalg.qr(np.concatenate([factor, block]), mode="r"))
    return np.linalg.svd(factor, compute_uv=False)[: min(points.shape)]


def spectral_decay(embeddings: Any) -> float:
    """rho = KL(uniform || s / sum(s)) over the singular values s, in nats (Roth et al., ICML 2020, spectral decay).

    Lower: the variance is spread over more directions. Shares below 1e-12 count as 1e-12, so that a direction that is
    not used at all leaves rho finite.

    Args:
      embeddings: [N, D] real numbers; neither centred nor normalised here.

    Raises:
      DataError: wrong shape or type, rows that are not finite, or all zero.
    """
    values = singular_values(embeddings)
    if values[0] == 0:
        raise DataError("embeddings: every row is zero, so there is no spectrum; give embeddings that differ")
    share = np.maximum(values / values.sum(), 1e-12)
    return float(-np.log(len(values)) - np.mean(np.log(share)))
