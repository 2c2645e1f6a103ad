"""Generalised mean pooling against its definition in NumPy, with the gradient written out."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.backbones.layers import PooledDense, global_pool
from dml_jax.methods import heads, hist


def with_gradients(function: Callable[..., jax.Array], cotangent: jax.Array, *inputs: jax.Array) -> Any:
    value, pull = jax.vjp(function, *inputs)
    return value, pull(cotangent)


@pytest.mark.usefixtures("x64")
def test_values_and_gradients() -> None:
    """d y / d x = (x / y)^2 / n for x > 1e-6, else 0; a map without positive features has small, finite gradients."""
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    x[1, :, :, 0] = -1.0
    clipped = np.maximum(x, 1e-6)
    expected = (clipped**3).mean(axis=(1, 2)) ** (1 / 3)
    cotangent = np.random.default_rng(1).standard_normal((2, 5))
    y, found = jax.jit(partial(with_gradients, lambda x: global_pool(x, "gem")))(cotangent, x)
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    gradient = np.where(x > 1e-6, (clipped / expected[:, None, None]) ** 2 / 12, 0) * cotangent[:, None, None]
    np.testing.assert_allclose(found[0], gradient, rtol=1e-10, atol=1e-14)


@pytest.mark.usefixtures("x64")
def test_a_learned_exponent() -> None:
    """With y = m^(1/p), m = mean(x^p): d y / d p = y (mean(x^p log x) / (p m) - log(m) / p^2)."""
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    layer = PooledDense(0, pooling="gem_learned")
    params = layer.init(jax.random.key(0), jnp.asarray(x))["params"]
    assert {name: leaf.tolist() for name, leaf in params.items()} == {"p": [3.0]}
    np.testing.assert_allclose(layer.apply({"params": params}, x), global_pool(jnp.asarray(x), "gem"), rtol=1e-6)
    p, clipped = 2.3, np.maximum(x, 1e-6)
    cotangent = np.random.default_rng(1).standard_normal((2, 5))
    learned = partial(with_gradients, lambda p, x: layer.apply({"params": {"p": p}}, x))
    y, (of_p, of_x) = jax.jit(learned)(cotangent, np.array([p]), x)
    mean = (clipped**p).mean(axis=(1, 2))
    np.testing.assert_allclose(y, mean ** (1 / p), rtol=1e-12)
    logs = (clipped**p * np.log(clipped)).mean(axis=(1, 2))
    expected = mean ** (1 / p) * (logs / (p * mean) - np.log(mean) / p**2)
    np.testing.assert_allclose(of_p, [(cotangent * expected).sum()], rtol=1e-10)
    slopes = np.where(x > 1e-6, clipped ** (p - 1) * (mean ** (1 / p - 1))[:, None, None] / 12, 0)
    np.testing.assert_allclose(of_x, slopes * cotangent[:, None, None], rtol=1e-10, atol=1e-14)


def test_the_exponent_belongs_to_the_embedding() -> None:
    """Of every head; with fixed pooling there is none."""
    maps = jnp.abs(jax.random.normal(jax.random.key(1), (2, 2, 2, 4)))
    for module in (
        heads.Embedding,
        lambda dim, pooling: hist.Embedding(hist.Config(embedding_dim=dim, pooling=pooling)),
    ):
        learned, fixed = (module(3, kind).init(jax.random.key(0), maps)["params"] for kind in ("gem_learned", "gem"))
        assert {name: set(leaves) for name, leaves in learned.items()} == {"embedding": {"p", "kernel", "bias"}}
        assert set(fixed["embedding"]) == {"kernel", "bias"}


def test_between_average_and_maximum() -> None:
    """In float32, also of features as small as the bound."""
    x = jnp.abs(jax.random.normal(jax.random.key(0), (2, 4, 4, 3))) * jnp.asarray([1e-6, 1.0, 1e3])[None, None, None]
    average, gem, largest = (np.asarray(global_pool(x, kind)) for kind in ("avg", "gem", "max"))
    assert np.isfinite(gem).all()
    assert (gem[:, 1:] > average[:, 1:]).all()
    assert (gem[:, 1:] < largest[:, 1:]).all()
