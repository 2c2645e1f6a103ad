"""Doubtful labels: images nearer to the mean of a different class than to the mean of their own.

With rows x_i, labels y_i and class means m_c, the doubt about the label of an image is

    |x_i - m'_i| - min over c != y_i of |x_i - m_c|,

where m'_i is the mean of its class without the image. The class of the minimum is the proposed
label. The rows are first centred and half whitened (see `spread`).

To estimate the probability that a label is wrong, random labels are corrupted, and their doubts are
compared with the doubts of all labels; the most doubtful labels determine the share of wrong ones
(Blanchard, Lee and Scott, "Semi-supervised novelty detection", 2010). The estimate assumes that the
errors are random, too.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dml_jax.evaluation.unit_rows import unit_rows

FLOOR = 0.1  # fraction of the mean variance, added to all variances
SHARE, DRAWS = 0.05, 10  # share of labels corrupted per draw, and number of draws
FEWEST = 200  # images needed for probabilities
LEAST = 0.2  # least share of the corrupted labels above a limit of doubt


class Doubts(NamedTuple):
    """Doubts about N labels, from distances to the class means."""

    doubt: np.ndarray  # float32 [N], -inf without two classes to compare
    proposed: np.ndarray  # int64 [N], the nearest different class; -1 without one


def spread(rows: np.ndarray) -> np.ndarray:
    """Centres rows float32 [N, D], divides their principal components by the fourth root of the
    variance, and normalises them. This is a compromise between the cosine, which a few strong
    directions dominate, and whitening, which amplifies noise."""
    rows = rows - rows.mean(axis=0)
    variances, axes = np.linalg.eigh(rows.T @ rows / len(rows))
    variances = np.maximum(variances, 0) + FLOOR * max(variances.mean(), 1e-12)
    return unit_rows(rows @ (axes * variances**-0.25).astype(np.float32))


def find(rows: np.ndarray, labels: np.ndarray, groups: np.ndarray | None = None) -> Doubts:
    """Computes the doubts about the labels of rows float32 [N, D] (see `spread`).

    Args:
      labels: int [N], from 0; images with label -1 belong to no class.
      groups: int [N], such as sessions. The mean of an image's class then excludes all images of
        its group, not only the image.
    """
    labelled = np.flatnonzero(labels >= 0)
    doubt, proposed = np.full(len(rows), -np.inf, np.float32), np.full(len(rows), -1)
    if not len(labelled):
        return Doubts(doubt, proposed)
    x, own = rows[labelled], labels[labelled]
    sums, counts = _sums(x, own)
    groups_in_class = labelled if groups is None else groups[labelled]
    part = np.unique(np.stack([own, groups_in_class]), axis=1, return_inverse=True)[1].ravel()
    part_sums, part_counts = (values[part] for values in _sums(x, part))
    rest = counts[own] - part_counts
    near = np.linalg.norm(x - (sums[own] - part_sums) / np.maximum(rest, 1)[:, None], axis=1)
    means = sums / np.maximum(counts, 1)[:, None]
    squares = (x**2).sum(axis=1)[:, None] - 2 * x @ means.T + (means**2).sum(axis=1)
    squares[:, counts == 0] = squares[np.arange(len(x)), own] = np.inf
    best = squares.min(axis=1)
    comparable = (rest > 0) & np.isfinite(best)
    doubt[labelled[comparable]] = (near - np.sqrt(np.maximum(best, 0)))[comparable]
    proposed[labelled[np.isfinite(best)]] = squares.argmin(axis=1)[np.isfinite(best)]
    return Doubts(doubt, proposed)


def _sums(rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum float32 [C, D] and the number int [C] of the rows with each label."""
    from scipy.sparse import csr_array

    ones = np.ones(len(rows), np.float32)
    return csr_array((ones, (labels, np.arange(len(rows))))) @ rows, np.bincount(labels)


def calibrate(
    rows: np.ndarray, labels: np.ndarray, doubt: np.ndarray
) -> Callable[[np.ndarray], np.ndarray] | None:
    """Fits a function from doubts [N] to the probabilities that labels are wrong, float64 [N], to
    the `doubt` of `find`; None if fewer than `FEWEST` images can be compared."""
    from sklearn.isotonic import IsotonicRegression

    images, rng = np.flatnonzero(np.isfinite(doubt)), np.random.default_rng(0)
    if len(images) < FEWEST:
        return None
    classes, corrupted_doubts = np.unique(labels[images]), list[np.ndarray]()
    for _ in range(DRAWS):
        sample = rng.choice(images, round(SHARE * len(images)), replace=False)
        own = np.searchsorted(classes, labels[sample])
        different = (own + rng.integers(1, len(classes), len(sample))) % len(classes)
        corrupted = labels.copy()
        corrupted[sample] = classes[different]
        corrupted_doubts.append(find(rows, corrupted).doubt[sample])
    wrong, every = np.sort(np.concatenate(corrupted_doubts)), np.sort(doubt[images])
    wrong = wrong[np.isfinite(wrong)]  # without images that are alone in their new class
    # Shares of the corrupted labels and of all labels above each limit. Their ratio is an upper
    # bound on the share of wrong labels; it is tight where few right labels are that doubtful.
    above = [1 - np.searchsorted(doubts, every) / len(doubts) for doubts in (wrong, every)]
    share = np.min((above[1] / np.maximum(above[0], 1e-9))[above[0] >= LEAST])
    both, is_wrong = np.concatenate([wrong, every]), np.repeat([1, 0], [len(wrong), len(every)])
    weights = np.repeat([1 / len(wrong), 1 / len(every)], [len(wrong), len(every)])
    regression = IsotonicRegression(y_min=0, y_max=1 - 1e-9, out_of_bounds="clip")
    regression.fit(both, is_wrong, sample_weight=weights)

    def probability(doubts: np.ndarray) -> np.ndarray:
        ratio = regression.predict(np.maximum(doubts, both.min()))
        return np.where(np.isfinite(doubts), np.minimum(share * ratio / (1 - ratio), 1), 0)

    return probability
