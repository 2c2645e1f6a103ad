"""Generalised mean pooling against its definition in NumPy, with the gradient written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.backbones.layers import global_pool


@pytest.mark.usefixtures("x64")
def test_values_and_gradients() -> None:
    """d y / d x = (x / y)^2 / n for x > 1e-6, else 0; a map without positive features has small, finite gradients."""
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    x[1, :, :, 0] = -1.0
    clipped = np.maximum(x, 1e-6)
    expected = (clipped**3).mean(axis=(1, 2)) ** (1 / 3)
    y, pull = jax.vjp(lambda x: global_pool(x, "gem"), jnp.asarray(x))
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    cotangent = np.random.default_rng(1).standard_normal(y.shape)
    gradient = np.where(x > 1e-6, (clipped / expected[:, None, None]) ** 2 / 12, 0) * cotangent[:, None, None]
    np.testing.assert_allclose(pull(jnp.asarray(cotangent))[0], gradient, rtol=1e-10, atol=1e-14)


def test_between_average_and_maximum() -> None:
    """In float32, also of features as small as the bound."""
    x = jnp.abs(jax.random.normal(jax.random.key(0), (2, 4, 4, 3))) * jnp.asarray([1e-6, 1.0, 1e3])[None, None, None]
    average, gem, largest = (np.asarray(global_pool(x, kind)) for kind in ("avg", "gem", "max"))
    assert np.isfinite(gem).all()
    assert (gem[:, 1:] > average[:, 1:]).all()
    assert (gem[:, 1:] < largest[:, 1:]).all()
