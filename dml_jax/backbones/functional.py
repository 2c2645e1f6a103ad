"""Linen modules as pure functions of their parameters and batch statistics."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


def init(module: nn.Module, key: jax.Array, *shapes: Any) -> tuple[Any, Any]:
    """Initial variables of a module, without running it.

    Args:
      module: a Linen module.
      key: of its parameters.
      *shapes: its arguments, with arrays or `jax.ShapeDtypeStruct`s.

    Returns:
      (params, batch statistics), nested dicts of float32 arrays; either may be empty.
    """
    variables = module.lazy_init(key, *shapes)
    return dict(variables.get("params", {})), dict(variables.get("batch_stats", {}))


def apply(
    module: nn.Module,
    params: Any,
    stats: Any,
    *inputs: Any,
    rngs: dict[str, jax.Array] | None = None,
    mutable: bool = False,
) -> tuple[Any, Any]:
    """A module as a pure function.

    Args:
      module: a Linen module.
      params, stats: its variables.
      *inputs: its arguments.
      rngs: keys by name, e.g. of dropout.
      mutable: the batch statistics may change.

    Returns:
      (outputs, batch statistics).
    """
    variables = {"params": params, "batch_stats": stats}
    outputs, changed = module.apply(variables, *inputs, rngs=rngs, mutable=["batch_stats"] if mutable else [])
    return outputs, dict(changed.get("batch_stats", stats))


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    """The shape of a float32 input, for `init`."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)
