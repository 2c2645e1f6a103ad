"""Lengths and logarithms of sums compared with NumPy, with extreme values, and without any."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from dml_jax import numerics

VALUES = np.random.default_rng(0).normal(size=(4, 6), scale=3)
WHERE = np.random.default_rng(1).random((4, 6)) < 0.5
WHERE[2] = False


@pytest.mark.parametrize("axis", [0, 1])
def test_logarithms_of_sums(axis: int, x64: None) -> None:
    functions = (jax.jit(partial(f, axis=axis)) for f in (numerics.log_sum_exp, numerics.log1p_sum_exp))
    log_sum_exp, log1p_sum_exp = functions
    for shift in (-1000.0, -3.0, 0.0, 3.0, 1000.0):
        values = VALUES + shift
        expected = logsumexp(np.where(WHERE, values, -np.inf), axis=axis)
        found = np.asarray(log_sum_exp(values, WHERE))
        some = WHERE.any(axis)
        np.testing.assert_allclose(found[some], expected[some], rtol=1e-12)
        np.testing.assert_array_less(found[~some], -1e100)
        np.testing.assert_allclose(log1p_sum_exp(values, WHERE), np.logaddexp(0, expected), rtol=1e-12)


def test_gradient_of_an_empty_sum_is_zero() -> None:
    for function in (numerics.log_sum_exp, numerics.log1p_sum_exp):
        gradient = jax.jit(jax.grad(lambda x, f=function: f(x, jnp.asarray(WHERE), 1).sum()))(jnp.asarray(VALUES))
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient[2], 0)


def test_unit_vectors() -> None:
    x = np.array([[3.0, 4], [0, 0], [3e-13, 4e-13]], np.float32)
    found = numerics.unit(jnp.asarray(x))
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0], [0.3, 0.4]], rtol=1e-6)
    gradient = jax.jit(jax.grad(lambda x: numerics.unit(x)[1].sum()))(jnp.asarray(x))
    np.testing.assert_array_equal(gradient[1], 0)
    assert numerics.unit(jnp.ones((2, 2), jnp.bfloat16)).dtype == jnp.float32


def test_root() -> None:
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(numerics.root)))(jnp.array([-1.0, 0, 1e-6, 4]))
    np.testing.assert_allclose(values, [0, 0, 1e-3, 2], rtol=1e-6)
    np.testing.assert_allclose(gradients, [0, 0, 500, 0.25], rtol=1e-6)
