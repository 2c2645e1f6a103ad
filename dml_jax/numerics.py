"""Norms with finite gradients, precise matrix products, and conversion of users' arrays."""

import operator
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.errors import DataError


def as_numpy(name: str, values: Any) -> np.ndarray:
    """Converts a caller's argument to a NumPy array; DataError if that fails."""
    try:
        return np.asarray(values)
    except (RuntimeError, TypeError, ValueError) as error:  # tensors with gradients, ragged lists
        reason = str(error).partition("\n")[0].rstrip(".")
        remedy = "give a NumPy or JAX array; for torch, x.detach().float().numpy()"
        raise DataError(f"{name}: cannot be converted to an array ({reason}); {remedy}") from None


def as_labels(name: str, values: Any) -> Any:
    """A caller's labels: arrays unchanged; lists and object arrays as integers or text.

    NumPy would turn mixed numbers, text and missing labels into text. DataError names the first row
    without a label, or two rows of different kinds.
    """
    dtype = getattr(values, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind != "O":
        return values
    rows = list(values) if hasattr(values, "__len__") and not isinstance(values, str) else []
    kinds = list(map(_kind_of_label, rows))
    for i, (row, kind) in enumerate(zip(rows, kinds, strict=True)):
        if kind == "missing":
            raise DataError(f"{name}: row {i} has no label ({row}); leave the row out")
        if {kind, kinds[0]} == {"text", "integer"}:
            conflict = f"row 0 holds {rows[0]!r} and row {i} {row!r}"
            raise DataError(f"{name}: {conflict}; give all as integers or all as text")
    if {*kinds} == {"integer"}:
        for dtype in (np.dtype(np.int64), np.dtype(np.uint64)):  # NumPy may choose float64
            with suppress(OverflowError):
                return np.array([operator.index(row) for row in rows], dtype)
    return as_numpy(name, list(map(str, rows)) if {*kinds} == {"text"} else values)


def _kind_of_label(label: Any) -> str:
    if label is None or type(label).__name__ in ("NAType", "NaTType"):  # from pandas
        return "missing"
    if isinstance(label, float | np.floating):
        return "missing" if label != label else "number"
    whole = hasattr(label, "__index__") and not isinstance(label, bool | np.ndarray | jax.Array)
    return "text" if isinstance(label, str) else "integer" if whole else ""


def at_least_float32(x: jax.Array) -> jax.Array:
    """Converts low-precision input to float32; keeps float64."""
    return jnp.asarray(x, jnp.promote_types(x.dtype, jnp.float32))


def root(x: jax.Array) -> jax.Array:
    """sqrt(max(x, 0)) with gradient 0 where x <= 0; NaN stays NaN."""
    low = x <= 0
    return jnp.where(low, 0, jnp.sqrt(jnp.where(low, 1, x)))


def unit(x: jax.Array) -> jax.Array:
    """x / max(|x|, 1e-12) along the last axis, in at least float32; 0 stays 0, with gradient 0."""
    x = at_least_float32(x)
    length = root(jnp.sum(x * x, axis=-1, keepdims=True))
    return jnp.where(length == 0, 0, x / jnp.maximum(length, 1e-12))


def log_sum_exp(values: jax.Array, where: jax.Array, axis: int) -> jax.Array:
    """log of the sum of exp(values) over `where`; if empty, very negative with gradient 0."""
    lowest = jnp.finfo(values.dtype).min / 4
    return jax.nn.logsumexp(jnp.where(where, values, lowest), axis=axis)


def log1p_sum_exp(values: jax.Array, where: jax.Array, axis: int) -> jax.Array:
    """log(1 + the sum of exp(values) over `where`), without overflow."""
    values = jnp.where(where, values, -jnp.inf)
    shift = jax.lax.stop_gradient(jnp.max(values, axis=axis, initial=0.0))
    mass = jnp.sum(jnp.exp(values - jnp.expand_dims(shift, axis)), axis=axis)
    return shift + jnp.log(jnp.exp(-shift) + mass)


_HEADS = ContextVar("heads", default="float32")


@contextmanager
def within(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Context in which a variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def heads_in(precision: str) -> AbstractContextManager[None]:
    """Context in which `product` is traced in "float32", "tensorfloat32" or "bfloat16".

    A separately jitted function keeps the precision of its first trace. Products in bfloat16 have
    no forward-mode derivatives, because JAX's own rule would round gradients differently.
    """
    return within(_HEADS, precision)


def product(equation: str, a: jax.Array, b: jax.Array, **options: Any) -> jax.Array:
    """`jnp.einsum` of two arrays with the precision of `heads_in`; by default, full precision.

    Args:
      equation: every index of an operand must also occur in the other operand or in the result.
      **options: options of `jnp.einsum`, used unless the operands are rounded to bfloat16.
    """
    precision = _HEADS.get()
    if precision == "bfloat16" and a.dtype == b.dtype == jnp.float32:
        return _rounded_product(equation, a, b)
    full = precision == "float32" or a.dtype == jnp.bfloat16
    options = {"precision": "highest" if full else "tensorfloat32", **options}
    return jnp.einsum(equation, a, b, **options)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rounded_product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    def in_float32(a: jax.Array, b: jax.Array) -> jax.Array:
        # XLA has no such product for CPUs, and would drop a cast to bfloat16 and back.
        wide = (x.astype(jnp.float32) for x in (a, b))
        return jnp.einsum(equation, *(lax.reduce_precision(x, 8, 7) for x in wide))

    def native(a: jax.Array, b: jax.Array) -> jax.Array:
        a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
        return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)

    return lax.platform_dependent(a, b, cpu=in_float32, default=native)


def _forward(
    equation: str, a: jax.Array, b: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    return _rounded_product(equation, a, b), (a, b)


def _backward(
    equation: str, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    # JAX's own rule would multiply the float32 gradient by an operand converted to float32.
    a, b = saved
    operands, result = equation.split("->")
    left, right = operands.split(",")
    left_gradient = _rounded_product(f"{result},{right}->{left}", grad, b)
    return left_gradient, _rounded_product(f"{left},{result}->{right}", a, grad)


_rounded_product.defvjp(_forward, _backward)
