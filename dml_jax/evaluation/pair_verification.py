"""Verification of image pairs (same class or not): error rates by cosine threshold, and their summary."""

from typing import NamedTuple

import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import check_inputs
from dml_jax.evaluation._engine.tiles import normalize

BLOCK = 512  # rows compared at once
PAIRED = 10_000  # rows sampled
FALSE_MATCH_RATES = (0.01, 0.001)


class Verification(NamedTuple):
    """Error rates of the rule "same class if the cosine reaches the threshold"."""

    thresholds: np.ndarray  # float64 [T], cosines, ascending
    false_accepts: np.ndarray  # float64 [T], fraction of pairs of different classes that reach the threshold
    false_rejects: np.ndarray  # float64 [T], fraction of pairs of the same class that do not
    equal_error_rate: float  # where the two curves cross
    threshold: float  # the cosine at which they cross

    def lowest(self, target: float) -> int:
        """Index of the lowest threshold whose false accept rate does not exceed the target."""
        return int(np.argmax(self.false_accepts <= target))

    def false_non_matches(self, false_match_rate: float) -> float:
        """FNMR@FMR: false reject rate at the lowest threshold whose false accept rate does not exceed the given one."""
        return float(self.false_rejects[self.lowest(false_match_rate)])


def summary(embeddings: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """ "equal_error_rate" and its cosine, "equal_error_cosine"; and "fnmr@F" for each F of `FALSE_MATCH_RATES`."""
    rates = sample_rates(embeddings, labels)
    found = {"equal_error_rate": rates.equal_error_rate, "equal_error_cosine": rates.threshold}
    return found | {f"fnmr@{rate}": rates.false_non_matches(rate) for rate in FALSE_MATCH_RATES}


def sample_rates(embeddings: np.ndarray, labels: np.ndarray) -> Verification:
    """Error rates over all pairs of at most `PAIRED` random rows."""
    points = check_inputs.embeddings(embeddings)
    classes = check_inputs.labels(labels, len(points))
    rows = np.random.default_rng(0).permutation(len(classes))[:PAIRED]
    return error_rates(points[rows], classes[rows])


def error_rates(embeddings: np.ndarray, labels: np.ndarray, *, bins: int = 4000) -> Verification:
    """Error rates over all pairs, from a histogram of their cosines, so that no N×N matrix is stored.

    There must be at least one pair of the same class and one of different classes.

    Args:
      embeddings: [N, D], rows of any length.
      labels: [N] integers or strings.
      bins: histogram bins over [-1, 1]; thresholds are exact to 2 / bins.
    """
    unit = check_inputs.embeddings(embeddings).astype(np.float64)
    labels = check_inputs.labels(labels, len(unit))
    normalize(unit)
    rows = unit.astype(np.float32)
    edges = np.linspace(-1, 1, bins + 1)
    same, different = np.zeros(bins, np.int64), np.zeros(bins, np.int64)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        cosines = block @ rows[start:].T
        once = np.arange(cosines.shape[1])[None, :] > np.arange(len(block))[:, None]  # each unordered pair
        equal = labels[start : start + BLOCK, None] == labels[None, start:]
        bin_of = np.clip(((cosines + 1) * (bins / 2)).astype(np.int64), 0, bins - 1)
        same += np.bincount(bin_of[once & equal], minlength=bins)
        different += np.bincount(bin_of[once & ~equal], minlength=bins)
    if not same.any() or not different.any():
        raise DataError("labels: need at least one pair of the same class and one pair of different classes")
    rejects = np.concatenate([[0], np.cumsum(same)]) / same.sum()
    # A single division, so that a rate of 1 in 100 is exactly the float 0.01 of `lowest`.
    accepts = np.concatenate([np.cumsum(different[::-1])[::-1], [0]]) / different.sum()
    crossing = int(np.argmax(rejects >= accepts))
    return Verification(
        thresholds=edges,
        false_accepts=accepts,
        false_rejects=rejects,
        equal_error_rate=float((rejects[crossing] + accepts[crossing]) / 2),
        threshold=float(edges[crossing]),
    )
