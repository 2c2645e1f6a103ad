"""Initialisers that PyTorch and the authors of the networks use."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer


@partial(jax.jit, static_argnums=1)
def _draw(key: jax.Array, size: int) -> jax.Array:
    return jax.random.normal(key, (size,))


@partial(jax.jit, static_argnums=2)
def _scaled(values: jax.Array, std: float, shape: tuple[int, ...]) -> jax.Array:
    return std * values[: math.prod(shape)].reshape(shape)


def normal(key: jax.Array, shape: tuple[int, ...], std: float) -> jax.Array:
    """Draws N(0, std^2) of the given shape.

    Sizes are rounded up to powers of two: compiling a generator for each of a network's shapes takes longer than
    drawing all its parameters.
    """
    return _scaled(_draw(key, 1 << (math.prod(shape) - 1).bit_length()), std, shape)


def normal_init(std: float) -> Initializer:
    """N(0, std^2)."""
    return lambda key, shape, dtype=jnp.float32: normal(key, shape, std).astype(dtype)


def he_fan_out(key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32) -> jax.Array:
    """He et al. (2015), "fan out", for a kernel [k, k, C_in / groups, C_out] or [inputs, outputs].

    std = sqrt(2 / (k k C_out / groups)); a kernel with one input channel per group is depthwise.
    """
    depthwise = len(shape) == 4 and shape[2] == 1
    fan = math.prod(shape[:-2]) * (1 if depthwise else shape[-1])
    return normal(key, shape, math.sqrt(2 / fan)).astype(dtype)


def he_fan_in(key: jax.Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32) -> jax.Array:
    """He et al. (2015), "fan in", for a kernel [k, k, C_in, C_out]: std = sqrt(2 / (k k C_in))."""
    return normal(key, shape, math.sqrt(2 / math.prod(shape[:-1]))).astype(dtype)


def uniform_fan_in(inputs: int) -> Initializer:
    """U(±1/sqrt(inputs)), PyTorch's default for kernels and biases of linear layers."""
    bound = inputs**-0.5
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -bound, bound)
