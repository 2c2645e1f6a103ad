"""Linen modules as pure functions of their parameters and batch statistics."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from dml_jax.backbones.contract import PyTree


def init(module: nn.Module, key: jax.Array, *inputs: Any) -> tuple[PyTree, PyTree]:
    """(params, batch statistics) of a module, nested dicts of float32 arrays, without running it.

    Equals `module.init`, but evaluates only the initialisers. (`module.lazy_init` does the same and compiles many small
    parts of the forward pass on the way.) Arrays among the inputs may be given by their shapes (`struct`).
    """

    def variables(key: jax.Array) -> PyTree:
        arrays = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x, inputs
        )
        return module.init(key, *arrays)

    traced, shapes = jax.make_jaxpr(variables, return_shape=True)(key)
    initialisers, _ = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.out_avals), instantiate=True)
    leaves = jax.core.eval_jaxpr(initialisers, traced.consts, key)
    tree = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    return tree.get("params", {}), tree.get("batch_stats", {})


def apply(
    module: nn.Module,
    params: PyTree,
    stats: PyTree,
    *inputs: Any,
    rngs: dict[str, jax.Array] | None = None,
    mutable: bool = False,
) -> tuple[PyTree, PyTree]:
    """(outputs, batch statistics) of a module, as a pure function of what `init` returns and of its inputs.

    `rngs` are random keys by name, e.g. "dropout". Batch statistics are updated if `mutable`.
    """
    variables = {"params": params, "batch_stats": stats}
    outputs, changed = module.apply(variables, *inputs, rngs=rngs, mutable=["batch_stats"] if mutable else [])
    return outputs, changed.get("batch_stats", stats)


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    """The shape of a float32 input, for `init`."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)
