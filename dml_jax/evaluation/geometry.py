"""Statistics of embeddings: density, spectral decay, effective rank, verification errors."""

import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import validation
from dml_jax.evaluation._engine.tiles import normalize
from dml_jax.evaluation.validation import ArrayLike

PAIR_BLOCK = 512  # rows compared at once
SAMPLED_ROWS = 10_000  # for `pair_errors`
BINS = 4000  # in the histogram of cosines
FALSE_MATCH_RATES = (0.01, 0.001)


def density(embeddings: ArrayLike, labels: ArrayLike) -> float:
    """Mean intra-class over mean inter-class cosine distance (Roth et al., ICML 2020), in float64.

    Intra-class: the mean over the pairs of different rows in a class, then over the classes with at
    least two rows. Inter-class: the mean distance between the mean rows of two classes. NaN if no
    class has two rows or there is only one class.
    """
    points = validation.embeddings(embeddings)
    classes = validation.labels(labels, len(points))
    _, members, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    if len(sizes) < 2 or sizes.max() < 2:
        return float("nan")
    sums, unit_sums = np.zeros((2, len(sizes), points.shape[1]))
    unit_squares = np.zeros(len(sizes))
    for part in validation.slices(*points.shape):
        block = np.asarray(points[part], np.float64)
        directions = block.copy()
        normalize(directions)
        np.add.at(sums, members[part], block)
        np.add.at(unit_sums, members[part], directions)
        np.add.at(unit_squares, members[part], np.sum(directions**2, axis=1))
    # The sum of the cosines over ordered pairs of different rows is |sum|^2 - sum of the squares.
    several = sizes >= 2
    cosines = (np.sum(unit_sums**2, axis=1) - unit_squares)[several]
    intra = float(np.mean(1 - cosines / (sizes * (sizes - 1.0))[several]))
    centers = sums / sizes[:, None]
    normalize(centers)
    pairs = len(sizes) * (len(sizes) - 1.0)
    inter = 1 - float(np.sum(np.sum(centers, axis=0) ** 2) - np.sum(centers**2)) / pairs
    return intra / max(inter, 1e-8)


def singular_values(embeddings: ArrayLike) -> np.ndarray:
    """Singular values of the embedding matrix, not centred: float64 [min(N, D)], largest first."""
    points = validation.embeddings(embeddings)
    # Repeated QR decompositions keep small values accurate, unlike the eigenvalues of X'X.
    factor = np.zeros((0, points.shape[1]))
    for part in validation.slices(*points.shape):
        rows = np.concatenate([factor, np.asarray(points[part], np.float64)])
        factor = np.asarray(np.linalg.qr(rows, mode="r"))
    return np.linalg.svd(factor, compute_uv=False)[: min(points.shape)]


def spectral_decay(embeddings: ArrayLike) -> float:
    """rho = KL(uniform || s / sum(s)) over the singular values s, in nats (Roth et al., ICML 2020).

    Lower values mean that the variance is spread over more directions. Shares below 1e-12 count as
    1e-12, so that rho is finite if some directions are unused. NaN if all rows are zero.
    """
    values = singular_values(embeddings)
    if values[0] == 0:
        return float("nan")
    share = np.maximum(values / values.sum(), 1e-12)
    return float(-np.log(len(values)) - np.mean(np.log(share)))


def effective_rank(embeddings: ArrayLike) -> float:
    """exp of the entropy of s / sum(s) over the singular values s (Roy & Vetterli, EUSIPCO 2007).

    A value from 1, if all rows are multiples of one vector or zero, to min(N, D).
    """
    values = singular_values(embeddings)
    if values[0] == 0:
        return 1.0
    share = values / values.sum()
    return float(np.exp(-np.sum(share * np.log(np.where(share > 0, share, 1)))))


def pair_errors(embeddings: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Errors of the rule "same class if the cosine reaches a threshold", over all pairs of rows.

    The pairs come from at most `SAMPLED_ROWS` random rows, of any length; there must be one of the
    same class and one of different classes. Thresholds are exact to 2 / `BINS`.

    Returns:
      "equal_error_rate", the error rate at the threshold "equal_error_cosine", which rejects the
      same fraction of pairs of one class as it accepts of pairs of two classes; and "fnmr@F" for
      each F of `FALSE_MATCH_RATES`, the fraction of pairs of one class that are rejected by the
      lowest threshold that accepts at most a fraction F of pairs of two classes.
    """
    points = validation.embeddings(embeddings)
    labels = validation.labels(labels, len(points))
    if len(points) > SAMPLED_ROWS:
        sample = np.random.default_rng(0).permutation(len(points))[:SAMPLED_ROWS]
        points, labels = points[sample], labels[sample]
    unit = points.astype(np.float64)
    normalize(unit)
    rows = unit.astype(np.float32)
    same, different = np.zeros((2, BINS), np.int64)
    for start in range(0, len(rows), PAIR_BLOCK):
        block = rows[start : start + PAIR_BLOCK]
        cosines = block @ rows[start:].T
        once = np.arange(cosines.shape[1])[None, :] > np.arange(len(block))[:, None]
        equal = labels[start : start + PAIR_BLOCK, None] == labels[None, start:]
        bin_of = np.clip(((cosines + 1) * (BINS / 2)).astype(np.int64), 0, BINS - 1)
        same += np.bincount(bin_of[once & equal], minlength=BINS)
        different += np.bincount(bin_of[once & ~equal], minlength=BINS)
    if not same.any() or not different.any():
        pairs = "one pair of the same class and one pair of different classes"
        raise DataError(f"labels need at least {pairs}")
    # By threshold, from -1 to 1. A single division gives exactly 0.01 for 1 in 100.
    rejects = np.concatenate([[0], np.cumsum(same)]) / same.sum()
    accepts = np.concatenate([np.cumsum(different[::-1])[::-1], [0]]) / different.sum()
    crossing = int(np.argmax(rejects >= accepts))
    errors = {
        "equal_error_rate": float((rejects[crossing] + accepts[crossing]) / 2),
        "equal_error_cosine": 2 * crossing / BINS - 1,
    }
    lowest = {rate: np.argmax(accepts <= rate) for rate in FALSE_MATCH_RATES}
    return errors | {f"fnmr@{rate}": float(rejects[i]) for rate, i in lowest.items()}
