"""The angular margin, and sub-center ArcFace compared with pytorch-metric-learning."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.losses import classification as c


def test_angular_margin_is_monotonic_with_finite_gradients() -> None:
    cosines = np.repeat(np.linspace(-1, 1, 201, dtype=np.float32)[:, None], 2, axis=1)
    margin = lambda z: c.angular_margin(z, jnp.zeros(201, jnp.int32), margin=0.5)  # noqa: E731
    assert np.all(np.diff(jax.jit(margin)(cosines)[:, 0]) > 0)
    assert np.isfinite(jax.jit(jax.grad(lambda z: margin(z).sum()))(cosines)).all()


def test_subcenter_arcface_of_pytorch_metric_learning(x64: None) -> None:
    """Values and gradients of version 2.9.0 in float64: ten random batches, one class, equal rows,
    far centers."""
    function = jax.jit(
        jax.value_and_grad(
            lambda x, p, y, m, s: c.subcenter_arcface(x, y, p, margin=m, scale=s), argnums=(0, 1)
        )
    )
    with np.load(Path(__file__).with_name("subcenter_arcface_pml.npz")) as z:
        for i in range(13):
            case = {
                key: jnp.asarray(z[f"{i}_{key}"])
                for key in ("x", "centers", "labels", "margin", "scale")
            }
            value, (of_x, of_centers) = function(*case.values())
            np.testing.assert_allclose(value, z[f"{i}_value"], rtol=1e-10)
            np.testing.assert_allclose(of_x, z[f"{i}_grad_x"], rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(of_centers, z[f"{i}_grad_centers"], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float16", "uint8"])
def test_logits_of_narrow_types_are_not_narrow(dtype: str) -> None:
    """Products of them would overflow."""
    x, kernel = (np.arange(12).reshape(3, 4) * 20 % 251, np.arange(12).reshape(4, 3) * 30 % 247)
    logits = x @ kernel + np.arange(3)
    labels, logits = np.array([2, 0, 1]), logits / 1.0 - logits.max(axis=1, keepdims=True)
    expected = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(3), labels]
    found = losses.softmax(x.astype(dtype), labels, kernel.astype(dtype), np.arange(3.0))
    assert float(found) == pytest.approx(expected.mean(), rel=1e-6)
