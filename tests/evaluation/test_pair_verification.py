"""Verification error rates against an explicit enumeration of all pairs."""

import numpy as np
import pytest

from dml_jax.errors import DataError
from dml_jax.evaluation.geometry import error_rates, pair_errors


def test_against_every_pair() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 6, 700)
    centres = rng.standard_normal((6, 8))
    rows = centres[labels] + 0.9 * rng.standard_normal((700, 8))
    found = error_rates(rows, labels)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    first, second = np.triu_indices(700, 1)
    cosines = np.sum(unit[first] * unit[second], axis=1)
    same = labels[first] == labels[second]
    assert (found.false_rejects[0], found.false_rejects[-1]) == (0, 1)
    assert (found.false_accepts[0], found.false_accepts[-1]) == (1, 0)
    for i in (500, 2000, 3000, 3900):
        threshold = found.thresholds[i]
        assert found.false_rejects[i] == pytest.approx((cosines[same] < threshold).mean(), abs=1e-3)
        assert found.false_accepts[i] == pytest.approx((cosines[~same] >= threshold).mean(), abs=1e-3)
    rejected, accepted = (cosines[same] < found.threshold).mean(), (cosines[~same] >= found.threshold).mean()
    assert rejected == pytest.approx(accepted, abs=2e-3)
    assert found.equal_error_rate == pytest.approx((rejected + accepted) / 2, abs=1e-3)
    for scale in (1e-300, 1e-25, 1e-3, 1e20, 1e300):
        np.testing.assert_allclose(error_rates(rows * scale, labels).false_accepts, found.false_accepts, atol=1e-3)


def test_false_non_matches_at_a_false_match_rate() -> None:
    rng = np.random.default_rng(1)
    names = np.array(["ant", "bee", "cat"])[rng.integers(0, 3, 300)]
    rows = {name: rng.standard_normal(8) for name in ("ant", "bee", "cat")}
    points = np.stack([rows[name] for name in names]) + rng.standard_normal((300, 8))
    found = pair_errors(points, names)
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    first, second = np.triu_indices(300, 1)
    cosines, same = np.sum(unit[first] * unit[second], axis=1), names[first] == names[second]
    for rate in (0.01, 0.001):
        impostors = np.sort(cosines[~same])[::-1]
        threshold = impostors[int(rate * len(impostors))]  # so many are above it
        assert found[f"fnmr@{rate}"] == pytest.approx((cosines[same] <= threshold).mean(), abs=2e-3)


def test_rows_of_zeros() -> None:
    """Their cosine to every row is 0, so that a pair with one is accepted up to the threshold 0."""
    found = error_rates(np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 2.0]]), np.array([0, 0, 1]), bins=100)
    at = dict(zip(found.thresholds.round(4), zip(found.false_rejects, found.false_accepts, strict=True), strict=True))
    assert at[0.0] == (0, 1)  # one pair of the same class, two of different classes, all with cosine 0
    assert at[0.02] == (1, 0)


def test_separable_classes() -> None:
    found = error_rates(np.repeat(np.eye(3), 4, axis=0), np.repeat(np.arange(3), 4))
    assert found.equal_error_rate == 0
    assert 0 < found.threshold <= 1


def test_invalid_input() -> None:
    with pytest.raises(DataError, match="at least one pair of the same class"):
        error_rates(np.eye(3), np.arange(3))
    with pytest.raises(DataError, match="1 of 3 rows hold NaN or infinity, first row 1"):
        pair_errors(np.diag([1, np.nan, 1]), np.zeros(3, int))
    with pytest.raises(DataError, match=r"holds int64 of shape \[2\] for 3 rows of embeddings"):
        pair_errors(np.eye(3), np.zeros(2, int))


def test_a_rate_that_is_met_exactly() -> None:
    """One of 100 pairs of different classes is accepted: not more than 1 %."""
    axis = [0] * 9 + [2] + [1] * 9 + [2]
    rates = error_rates(np.eye(3)[axis], np.repeat([0, 1], 10))
    assert rates.false_accepts[rates.lowest(0.01)] == 0.01
    assert rates.false_rejects[rates.lowest(0.01)] == pytest.approx(0.2)  # 9 of 45 pairs of a class
