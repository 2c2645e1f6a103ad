"""The Anti-Collapse loss against PyTorch in float64, and on degenerate batches."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import losses

# Ten batches of embeddings, with the log determinants and gradients of PyTorch 2.13.
REFERENCE = np.load(Path(__file__).with_name("anti_collapse_torch.npz"))
DIFFERENTIATED = jax.jit(jax.value_and_grad(losses.anti_collapse))


def test_values_and_gradients(x64: None) -> None:
    labels = jnp.asarray(REFERENCE["labels"])
    expected = zip(REFERENCE["x"], REFERENCE["anti_collapse"], REFERENCE["anti_collapse_gradient"], strict=True)
    for x, value, gradient in expected:
        found = DIFFERENTIATED(jnp.asarray(x), labels)
        np.testing.assert_allclose(found[0], value, rtol=1e-10)
        np.testing.assert_allclose(found[1], gradient, rtol=1e-7, atol=1e-10)


def test_more_rows_than_dimensions_or_fewer(x64: None) -> None:
    x = REFERENCE["x"][0]
    for rows in (x, x[:3]):
        z = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        expected = -np.linalg.slogdet(np.eye(5) + 5 / (len(z) * 0.25) * z.T @ z)[1] / 2
        found = jax.jit(losses.anti_collapse)(rows, np.arange(len(rows)))
        np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        pytest.param(np.zeros((12, 5)), 0.0, id="zeros"),
        pytest.param(np.tile(REFERENCE["x"][0][:1], (12, 1)), -np.log(1 + 5 / 0.25) / 2, id="copies"),
        pytest.param(1e6 * REFERENCE["x"][0], REFERENCE["anti_collapse"][0], id="very long"),
        pytest.param(1e-12 * REFERENCE["x"][0], None, id="very short"),
    ],
)
def test_degenerate_batches(x: np.ndarray, expected: float | None) -> None:
    value, gradient = DIFFERENTIATED(x.astype(np.float32), REFERENCE["labels"].astype(np.int32))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    if expected is not None:
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)
