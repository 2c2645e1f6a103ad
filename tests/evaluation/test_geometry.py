"""Density, spectral decay, effective rank and errors of pairs against their definitions."""

import numpy as np
import pytest

from dml_jax.errors import DataError
from dml_jax.evaluation import metrics, validation
from dml_jax.evaluation.geometry import pair_errors


def rows(seed, count=90, width=10):
    return np.random.default_rng(seed).normal(size=(count, width)) + 0.3


def units(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_density_needs_two_classes_and_a_pair():
    right, up, diagonal = [1.0, 0], [0, 2.0], [0.5**0.5, 0.5**0.5]
    between = 1 - np.cos(3 * np.pi / 8)  # the centre of the first class is at 22.5 degrees
    assert metrics.density(np.array([right, diagonal, up]), np.array([0, 0, 1])) == pytest.approx(
        (1 - np.sqrt(0.5)) / between, rel=1e-12
    )
    assert np.isnan(metrics.density(rows(1, 5), np.arange(5)))
    assert np.isnan(metrics.density(rows(1, 5), np.zeros(5, int)))


@pytest.mark.parametrize("scale", [1e-170, 1e-30, 1e30, 1e170])
def test_density_of_rows_of_any_length(scale):
    """Their squares leave the range of float64."""
    x, y = rows(4), np.arange(90) % 9
    unit, sums = units(x), [x[y == c].mean(axis=0) for c in range(9)]
    inside = [(10 - np.sum(unit[y == c] @ unit[y == c].T) / 10) / 9 for c in range(9)]
    centers = units(np.array(sums))
    between = (9 - np.sum(centers @ centers.T) / 9) / 8
    assert metrics.density(scale * x, y) == pytest.approx(np.mean(inside) / between, rel=1e-9)


@pytest.mark.parametrize("shape", [(90, 10), (6, 10)])
def test_spectrum(shape, monkeypatch):
    points = rows(2, *shape)
    expected = np.linalg.svd(points, compute_uv=False)
    np.testing.assert_allclose(metrics.singular_values(points), expected, rtol=1e-12)
    monkeypatch.setattr(validation, "BLOCK_ELEMENTS", 80)
    np.testing.assert_allclose(metrics.singular_values(points), expected, rtol=1e-12)
    share = expected / expected.sum()
    divergence = np.sum(np.log(1 / len(share) / share)) / len(share)
    assert metrics.spectral_decay(points) == pytest.approx(divergence, rel=1e-12)


def test_degenerate_spectra():
    assert metrics.spectral_decay(np.eye(8)) == pytest.approx(0, abs=1e-12)
    assert metrics.effective_rank(np.eye(8)) == pytest.approx(8, rel=1e-12)
    assert metrics.effective_rank(np.diag([3.0, 1, 0])) == pytest.approx(4 / 3**0.75, rel=1e-12)
    assert np.isnan(metrics.spectral_decay(np.zeros((5, 3))))
    assert metrics.effective_rank(np.zeros((3, 2))) == 1


@pytest.mark.parametrize("scale", [1, 1e-300, 1e-25, 1e20, 1e300])
def test_errors_of_pairs(scale):
    rng = np.random.default_rng(0)
    labels = np.array(["ant", "bee", "cat", "dog"])[rng.integers(0, 4, 700)]
    centres = {name: rng.standard_normal(8) for name in ("ant", "bee", "cat", "dog")}
    points = np.stack([centres[name] for name in labels]) + 0.9 * rng.standard_normal((700, 8))
    found = pair_errors(scale * points, labels)
    first, second = np.triu_indices(700, 1)
    cosines, same = (
        np.sum(units(points)[first] * units(points)[second], axis=1),
        labels[first] == labels[second],
    )
    threshold = found["equal_error_cosine"]
    rejected, accepted = (cosines[same] < threshold).mean(), (cosines[~same] >= threshold).mean()
    assert rejected == pytest.approx(accepted, abs=2e-3)
    assert found["equal_error_rate"] == pytest.approx((rejected + accepted) / 2, abs=1e-3)
    for rate in (0.01, 0.001):
        impostors = np.sort(cosines[~same])[::-1]
        threshold = impostors[int(rate * len(impostors))]  # so many are above it
        assert found[f"fnmr@{rate}"] == pytest.approx((cosines[same] <= threshold).mean(), abs=2e-3)


def test_errors_of_few_pairs():
    """Separable classes; rows of zeros, whose cosines are 0; and a rate of 1 in 100 pairs, which is
    met exactly."""
    assert (
        pair_errors(np.repeat(np.eye(3), 4, axis=0), np.repeat(np.arange(3), 4))["equal_error_rate"]
        == 0
    )
    assert (
        pair_errors(np.array([[0.0, 0], [3, 0], [0, 2]]), np.array([0, 0, 1]))["equal_error_rate"]
        == 0.5
    )
    axis = [0] * 9 + [2] + [1] * 9 + [2]
    found = pair_errors(np.eye(3)[axis], np.repeat([0, 1], 10))
    assert found["fnmr@0.01"] == pytest.approx(0.2)  # 9 of 45 pairs of a class
    with pytest.raises(DataError, match="at least one pair of the same class"):
        pair_errors(np.eye(3), np.arange(3))
