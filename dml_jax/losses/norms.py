"""Lengths, directions and distances with finite gradients everywhere."""

import jax
import jax.numpy as jnp


def at_least_float32(x: jax.Array) -> jax.Array:
    """At least float32: low-precision input is widened, float64 stays."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def root(x: jax.Array) -> jax.Array:
    """sqrt(max(x, 0)) with gradient 0 where x <= 0."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def unit(x: jax.Array, axis: int = -1, floor: float = 1e-12) -> jax.Array:
    """x / max(|x|, floor) along `axis`, in at least float32; the zero vector stays zero, with a finite gradient."""
    x = at_least_float32(x)
    length = root(jnp.sum(x * x, axis=axis, keepdims=True))
    return x / jnp.maximum(length, floor)
