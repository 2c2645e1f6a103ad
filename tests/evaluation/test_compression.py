"""Compressed embeddings, compared with NumPy in float64."""

import numpy as np
import pytest

from dml_jax.errors import DataError
from dml_jax.evaluation import compression

RNG = np.random.default_rng(4)
MIXING = RNG.normal(size=(12, 12))
TRAINING = (RNG.normal(size=(200, 12)) @ MIXING + 1).astype(np.float32)
CENTERS = RNG.normal(size=(6, 12)) @ MIXING
LABELS = np.repeat(np.arange(6), 10)
ROWS = (CENTERS[LABELS] + 0.7 * RNG.normal(size=(60, 12)) @ MIXING).astype(np.float32)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_pca_whitening() -> None:
    """Whitened training rows have the identity as their covariance; fewer dimensions are the first
    of more."""
    fitted = compression.fit(TRAINING, 12, whiten=True)
    white = (TRAINING - fitted.mean) @ fitted.matrix
    np.testing.assert_allclose(white.T @ white / 200, np.eye(12), atol=1e-4)
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-4)
    variances = 1 / (np.linalg.norm(fitted.matrix, axis=0) ** 2)
    assert (np.diff(variances) < 0).all()
    few = compression.fit(TRAINING, 5, whiten=True)
    np.testing.assert_allclose(few.matrix, fitted.matrix[:, :5], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        few.reduced(ROWS), unit((ROWS - fitted.mean) @ fitted.matrix[:, :5]), atol=1e-5
    )


def test_codes() -> None:
    fitted = compression.fit(TRAINING, 10)
    rows = fitted.reduced(ROWS)
    np.testing.assert_allclose(rows, unit(ROWS[:, :10]), atol=1e-6)
    training = unit(TRAINING[:, :10].astype(float))
    limits, center = np.abs(training).max(0), training.mean(0)
    codes = fitted.int8(rows)
    assert codes.dtype == np.int8
    np.testing.assert_array_equal(
        codes, np.clip(np.round(127 * rows / limits.astype(np.float32)), -127, 127)
    )
    inside = np.abs(rows) < limits
    assert (np.abs(fitted.decoded(codes) - rows) <= limits / 254 + 1e-6)[inside].all()
    bits = fitted.binary(rows)
    assert bits.shape == (60, 2)
    expected = [sum(int(rows[i, j] > center[j]) << (7 - j) for j in range(8)) for i in range(60)]
    np.testing.assert_array_equal(bits[:, 0], expected)
    np.testing.assert_array_equal(fitted.signs(bits), np.where(rows > center, 1, -1))


def test_what_cannot_be_fitted() -> None:
    for dimensions in (13, -1, 2.5):
        with pytest.raises(DataError, match=rf"dimensions={dimensions}: must be .* in 1\.\.12"):
            compression.fit(TRAINING, dimensions)
    with pytest.raises(DataError, match=r"dimensions=12: 8 training rows vary in fewer"):
        compression.fit(TRAINING[:8], 12, whiten=True)
