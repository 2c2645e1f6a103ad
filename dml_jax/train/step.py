"""One update: loss, gradient, optimizer, what the method does afterwards."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from dml_jax.methods.contract import Batch, Method
from dml_jax.train.state import TrainState


def build(
    method: Method, optimizer: optax.GradientTransformation
) -> Callable[[TrainState, Batch, jax.Array], tuple[TrainState, dict[str, jax.Array]]]:
    """The step as a pure function, to be jitted with its state donated.

    The batch is the global one: under `jit` with its rows sharded over the devices, batch statistics and pair losses
    keep their global meaning and the gradient needs no factor.

    Returns:
      (state, batch, key) -> (state, terms). `key` is the run's; the step is folded in. Terms are float scalars: the
      loss, the method's parts of it and `grad_norm`, the global L2 norm of the gradient.
    """

    def step(state: TrainState, batch: Batch, key: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        key = jax.random.fold_in(key, state.step)
        gradient = jax.value_and_grad(method.loss, has_aux=True)
        (loss, (model_state, terms)), grads = gradient(state.params, state.model_state, batch, key)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        model_state = method.after(params, model_state, terms)
        scalars = {name: term for name, term in terms.items() if jnp.ndim(term) == 0}
        logged = {"loss": loss, **scalars, "grad_norm": optax.tree.norm(grads)}
        return TrainState(state.step + 1, params, model_state, opt_state), logged

    return step


def initial(method: Method, optimizer: optax.GradientTransformation, key: jax.Array, batch: Batch) -> TrainState:
    """The state before the first step; `batch` gives the shapes."""
    params, model_state = method.init(key, batch)
    return TrainState(jnp.zeros((), jnp.int32), params, model_state, optimizer.init(params))
