"""Initialisers that PyTorch and the authors of the networks use."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from flax.typing import Dtype, Initializer

BLOCK = 2**16
CAPACITY = 2**22  # numbers in the largest kernels of most networks


@jax.jit
def _draw(key: jax.Array, blocks: int) -> jax.Array:
    """N(0, 1) in the first `blocks` * BLOCK of CAPACITY places."""

    def fill(index: jax.Array, values: jax.Array) -> jax.Array:
        block = jax.random.normal(jax.random.fold_in(key, index), (BLOCK,), jnp.float32)
        return jax.lax.dynamic_update_slice(values, block, (index * BLOCK,))

    return jax.lax.fori_loop(0, blocks, fill, jnp.zeros(CAPACITY, jnp.float32))


@partial(jax.jit, static_argnums=2)
def _scaled(values: jax.Array, std: float, shape: tuple[int, ...]) -> jax.Array:
    return std * values[: math.prod(shape)].reshape(shape)


def normal(key: jax.Array, shape: tuple[int, ...], std: float) -> jax.Array:
    """Draws N(0, std^2) of the given shape.

    One compiled loop over blocks serves all shapes up to CAPACITY: compiling a generator for each shape of a network
    takes longer than drawing all its parameters. Of a larger array, such as a table of classes that is spread over the
    devices, each device draws its own part; in a loop, all of them would hold and exchange the whole.
    """
    size = math.prod(shape)
    if size > CAPACITY:
        return std * jax.random.normal(key, shape, jnp.float32)
    return _scaled(_draw(key, -(-size // BLOCK)), std, shape)


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
