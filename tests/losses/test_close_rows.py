"""Euclidean distances and their derivatives, of close and of equal rows, against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dml_jax.losses import pairwise

DISTANCES = (1e-4, 1e-3, 1e-2, 0.1, 1.0)


def close_rows(distance: float, width: int = 128) -> np.ndarray:
    """24 unit rows in three groups, in each of which they are about `distance` apart; two are
    equal."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, width))[np.arange(24) % 3]
    x = x + distance / 2**0.5 * rng.normal(size=(24, width))
    x[23] = x[20]
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances_and_their_gradients(dtype: type, x64: None) -> None:
    """Under jit, and with a batch that is divided among devices."""
    weights = np.random.default_rng(1).normal(size=(24, 24))
    by_rows = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    rounding = np.finfo(dtype).eps

    @jax.jit
    def of_rows(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        squares = lambda x: pairwise.squared_distances(x, x)  # noqa: E731
        gradient = jax.grad(lambda x: jnp.vdot(jnp.asarray(weights, dtype), squares(x)))(x)
        return squares(x), pairwise.distances(x, x), gradient

    for distance in DISTANCES:
        x = close_rows(distance).astype(dtype)
        differences = x[:, None].astype(float) - x[None]
        exact = (differences**2).sum(axis=2)
        kept = exact > 16 * rounding  # 8 times the sum of both squared lengths, 2
        expected = np.einsum("ij,ijd->id", 2 * kept * (weights + weights.T), differences)
        for rows in (jnp.asarray(x), jax.device_put(x, by_rows)):
            squares, distances, gradient = of_rows(rows)
            assert squares.dtype == gradient.dtype == dtype
            sure = np.abs(exact / (16 * rounding) - 1) > 0.5  # not rounded to the other side
            np.testing.assert_allclose(squares, exact * kept, rtol=0, atol=24 * rounding)
            assert (np.asarray(squares > 0) == kept)[sure].all()
            np.testing.assert_array_equal(distances, np.sqrt(squares))
            if sure.all():
                limit = max(1e-7, 8 * rounding) * np.abs(weights).sum(axis=1).max()
                np.testing.assert_allclose(gradient, expected, rtol=0, atol=limit)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_derivatives_of_equal_rows_are_zero(dtype: type, x64: None) -> None:
    """And so are those of rows that are too close; second derivatives of others are finite."""
    x = jnp.asarray(close_rows(1e-4 if dtype == np.float32 else 1e-9)[::3], dtype)

    @jax.jit
    def derivatives(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        of_pair = lambda x: pairwise.distances(x, x)[0, 1:].sum()  # noqa: E731
        return jax.grad(of_pair)(x), jax.hessian(lambda x: pairwise.distances(x, x).sum())(x)

    gradient, hessian = derivatives(x)
    assert not gradient.any()
    assert not hessian.any()
    gradient, hessian = derivatives(x.at[:4].add(1.0))
    assert np.isfinite(gradient).all()
    assert gradient.any()
    assert np.isfinite(hessian).all()
    assert hessian.any()
