"""Matrix products of layers and classifiers, with operands in bfloat16 where `train.precision` says so.

Only the operands are rounded; sums, results and gradients are float32. Products whose differences matter, such as those
of distances, do not go through here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_ROUNDED = ContextVar("rounded", default=False)


@contextmanager
def in_bfloat16() -> Iterator[None]:
    """Within this context, `product` is traced with operands in bfloat16.

    A function that is jitted on its own keeps what it was traced with first.
    """
    token = _ROUNDED.set(True)
    try:
        yield
    finally:
        _ROUNDED.reset(token)


def product(equation: str, a: jax.Array, b: jax.Array, **options: Any) -> jax.Array:
    """`jnp.einsum` of two arrays; float32 operands are rounded to bfloat16 within `in_bfloat16`.

    Args:
      equation: every index of an operand is also one of the other operand or of the result.
      a, b: float, of any shapes.
      **options: of `jnp.einsum`, for operands that are not rounded.
    """
    if _ROUNDED.get() and a.dtype == b.dtype == jnp.float32:
        return _rounded_product(equation, a, b)
    return jnp.einsum(equation, a, b, **options)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rounded_product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    def in_float32(a: jax.Array, b: jax.Array) -> jax.Array:
        # XLA has no such product for CPUs. It would leave out a cast to bfloat16 and back, but not this.
        a, b = (lax.reduce_precision(x.astype(jnp.float32), exponent_bits=8, mantissa_bits=7) for x in (a, b))
        return jnp.einsum(equation, a, b)

    def native(a: jax.Array, b: jax.Array) -> jax.Array:
        a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
        return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)

    product: jax.Array = lax.platform_dependent(a, b, cpu=in_float32, default=native)
    return product


def _forward(equation: str, a: jax.Array, b: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    return _rounded_product(equation, a, b), (a, b)


def _backward(equation: str, saved: tuple[jax.Array, jax.Array], grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    # JAX's own rule would multiply the float32 gradient with an operand widened to float32.
    a, b = saved
    operands, result = equation.split("->")
    left, right = operands.split(",")
    return _rounded_product(f"{result},{right}->{left}", grad, b), _rounded_product(
        f"{left},{result}->{right}", a, grad
    )


_rounded_product.defvjp(_forward, _backward)
