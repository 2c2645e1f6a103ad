"""Doubtful labels: images that are nearer to the mean of another class than to that of their own.

With rows x_i of labels y_i and the means m_c of the classes, the doubt of an image is

    |x_i - m'_i| - min over c != y_i of |x_i - m_c|,

where m'_i is the mean of its own class without the image itself, and the class of the minimum is
the one that is proposed. The rows are centred first and half whitened (see `spread`).

The probability that a label is wrong compares the doubts of all labels with those of labels made
wrong on purpose, whose share among all is estimated from the most doubtful ones (Blanchard, Lee and
Scott, "Semi-supervised novelty detection", 2010). It holds for errors that are as random.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dml_jax.evaluation.unit_rows import unit_rows

FLOOR = 0.1  # of the mean variance, added to all variances
SHARE, DRAWS = 0.05, 10  # labels that are made wrong, and how often
FEWEST = 200  # images for probabilities
LEAST = 0.2  # share of the wrong labels that must be among the most doubtful ones


class Doubts(NamedTuple):
    """What the means of the classes say about N labels."""

    doubt: np.ndarray  # float32 [N], -inf where nothing can be compared
    proposed: np.ndarray  # int64 [N], the nearest other class; -1 where there is none


def spread(rows: np.ndarray) -> np.ndarray:
    """Rows float32 [N, D], centred, divided along their principal axes by the fourth root of the
    variance, and of unit length: between the cosine, which a few strong directions decide, and
    whitening, which makes noise as strong as them."""
    rows = rows - rows.mean(axis=0)
    variances, axes = np.linalg.eigh(rows.T @ rows / len(rows))
    variances = np.maximum(variances, 0) + FLOOR * max(variances.mean(), 1e-12)
    return unit_rows(rows @ (axes * variances**-0.25).astype(np.float32))


def find(rows: np.ndarray, labels: np.ndarray, groups: np.ndarray | None = None) -> Doubts:
    """The doubts about the labels of rows float32 [N, D] (see `spread`).

    Args:
      labels: int [N], from 0; images of label -1 belong to no class.
      groups: int [N], e.g. sessions: the mean of an image's class is then that without the images
        of its group, instead of that without itself.
    """
    used = np.flatnonzero(labels >= 0)
    doubt, proposed = np.full(len(rows), -np.inf, np.float32), np.full(len(rows), -1)
    if not len(used):
        return Doubts(doubt, proposed)
    x, own = rows[used], labels[used]
    sums, counts = _sums(x, own)
    kinds = used if groups is None else groups[used]
    part = np.unique(np.stack([own, kinds]), axis=1, return_inverse=True)[1].ravel()
    left_out, sizes = (each[part] for each in _sums(x, part))
    others = counts[own] - sizes
    near = np.linalg.norm(x - (sums[own] - left_out) / np.maximum(others, 1)[:, None], axis=1)
    means = sums / np.maximum(counts, 1)[:, None]
    squares = (x**2).sum(axis=1)[:, None] - 2 * x @ means.T + (means**2).sum(axis=1)
    squares[:, counts == 0] = squares[np.arange(len(x)), own] = np.inf
    best = squares.min(axis=1)
    comparable = (others > 0) & np.isfinite(best)
    doubt[used[comparable]] = (near - np.sqrt(np.maximum(best, 0)))[comparable]
    proposed[used[np.isfinite(best)]] = squares.argmin(axis=1)[np.isfinite(best)]
    return Doubts(doubt, proposed)


def _sums(rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sum of the rows of each label float32 [C, D], and their numbers int [C]."""
    from scipy.sparse import csr_array

    ones = np.ones(len(rows), np.float32)
    return csr_array((ones, (labels, np.arange(len(rows))))) @ rows, np.bincount(labels)


def calibrate(
    rows: np.ndarray, labels: np.ndarray, doubt: np.ndarray
) -> Callable[[np.ndarray], np.ndarray] | None:
    """The function from doubts [N] to the probabilities that labels are wrong, float64 [N], fitted
    to the `doubt` of `find`; None if there are fewer than `FEWEST` images to compare."""
    from sklearn.isotonic import IsotonicRegression

    compared, rng = np.flatnonzero(np.isfinite(doubt)), np.random.default_rng(0)
    if len(compared) < FEWEST:
        return None
    classes, planted = np.unique(labels[compared]), list[np.ndarray]()
    for _ in range(DRAWS):
        chosen = rng.choice(compared, round(SHARE * len(compared)), replace=False)
        own = np.searchsorted(classes, labels[chosen])
        other = (own + rng.integers(1, len(classes), len(chosen))) % len(classes)
        changed = labels.copy()
        changed[chosen] = classes[other]
        planted.append(find(rows, changed).doubt[chosen])
    wrong, every = np.sort(np.concatenate(planted)), np.sort(doubt[compared])
    wrong = wrong[np.isfinite(wrong)]  # without those that are alone in their new class
    # Shares of wrong and of all labels that are at least as doubtful: their ratio bounds the share
    # of wrong labels from above, the closer the fewer right labels are as doubtful.
    above = [1 - np.searchsorted(each, every) / len(each) for each in (wrong, every)]
    share = np.min((above[1] / np.maximum(above[0], 1e-9))[above[0] >= LEAST])
    both, is_wrong = np.concatenate([wrong, every]), np.repeat([1, 0], [len(wrong), len(every)])
    weights = np.repeat([1 / len(wrong), 1 / len(every)], [len(wrong), len(every)])
    fitted = IsotonicRegression(y_min=0, y_max=1 - 1e-9, out_of_bounds="clip")
    fitted.fit(both, is_wrong, sample_weight=weights)

    def probability(doubts: np.ndarray) -> np.ndarray:
        ratio = fitted.predict(np.maximum(doubts, both.min()))
        return np.where(np.isfinite(doubts), np.minimum(share * ratio / (1 - ratio), 1), 0)

    return probability
