"""Lengths, unit vectors and logarithms of sums, with finite values and gradients for every finite input."""

import jax
import jax.numpy as jnp


def at_least_float32(x: jax.Array) -> jax.Array:
    """Widens low-precision input to float32; float64 stays."""
    return jnp.asarray(x, jnp.promote_types(x.dtype, jnp.float32))


def root(x: jax.Array) -> jax.Array:
    """sqrt(max(x, 0)) with gradient 0 where x <= 0."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def unit(x: jax.Array, axis: int = -1, floor: float = 1e-12) -> jax.Array:
    """x / max(|x|, floor) along `axis`, in at least float32; the zero vector stays zero, with gradient 0."""
    x = at_least_float32(x)
    length = root(jnp.sum(x * x, axis=axis, keepdims=True))
    return jnp.where(length > 0, x / jnp.maximum(length, floor), 0)


def log_sum_exp(values: jax.Array, where: jax.Array, axis: int) -> jax.Array:
    """log of the sum of exp(values) over the entries in `where`; a very negative number with gradient 0 for none."""
    lowest = jnp.finfo(values.dtype).min / 4
    return jax.nn.logsumexp(jnp.where(where, values, lowest), axis=axis)


def log1p_sum_exp(values: jax.Array, where: jax.Array, axis: int) -> jax.Array:
    """log(1 + the sum of exp(values) over the entries in `where`), without overflow."""
    values = jnp.where(where, values, -jnp.inf)
    shift = jax.lax.stop_gradient(jnp.max(values, axis=axis, initial=0.0))
    return shift + jnp.log(jnp.exp(-shift) + jnp.sum(jnp.exp(values - jnp.expand_dims(shift, axis)), axis=axis))
