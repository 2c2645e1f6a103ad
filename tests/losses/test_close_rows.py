"""Rows that nearly coincide: distances, losses and gradients in float32 against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dml_jax.losses import pairwise
from tests.losses.test_duplicates import LOSSES

CLOSE = ["contrastive", "triplet, hard", "lifted structure, any norm"]
SLOW = ["contrastive, memory", "margin", "lifted_structure"]  # the same distances


def close_rows(distance: float, width: int) -> np.ndarray:
    """24 unit rows float32 in three groups, in each of which they are about `distance` apart; two
    rows are equal."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, width))[np.arange(24) % 3] + distance / 2**0.5 * rng.normal(
        size=(24, width)
    )
    x[23] = x[20]
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("width", [128, 512])
def test_distances_and_their_gradients(width: int) -> None:
    """Under jit, and with a batch that is divided among devices."""
    weights = np.random.default_rng(1).normal(size=(24, 24)).astype(np.float32)
    by_rows = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))

    def weighted(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        distances = pairwise.distances(x, x)
        return jnp.sum(weights * distances), distances

    function = jax.jit(jax.grad(weighted, has_aux=True))
    for distance in (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0):
        x = close_rows(distance, width)
        exact = np.linalg.norm(x[:, None].astype(np.float64) - x[None], axis=-1)
        both = np.where(exact > 0, (weights + weights.T) / np.where(exact > 0, exact, 1), 0)
        expected = np.einsum("ij,ijd->id", both, x[:, None].astype(np.float64) - x[None])
        for rows in (jnp.asarray(x), jax.device_put(x, by_rows)):
            gradient, distances = function(rows)
            np.testing.assert_allclose(distances, exact, rtol=1e-4, atol=1e-12)
            error = np.linalg.norm(gradient - expected) / np.linalg.norm(expected)
            assert error < 1e-4, distance


@pytest.mark.parametrize(
    "name", [*CLOSE, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_losses(name: str, x64: None) -> None:
    function = jax.jit(
        jax.value_and_grad(
            lambda x: LOSSES[name](x, jnp.asarray(np.arange(12) // 2)).astype(x.dtype)
        )
    )
    for distance in (1e-4, 1e-3, 1e-2):
        x = close_rows(distance, 128)[:12]
        (value, gradient), (exact_value, exact) = (
            function(jnp.asarray(x)),
            function(jnp.asarray(x, jnp.float64)),
        )
        np.testing.assert_allclose(value, exact_value, rtol=1e-5)
        assert np.linalg.norm(gradient - exact) < 1e-3 * np.linalg.norm(exact), distance
