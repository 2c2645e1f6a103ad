"""The train state and its update: encode the batch, loss, gradient, optimizer, `Hooks.after`."""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from dml_jax.config import Config
from dml_jax.data.arrays import Shape
from dml_jax.errors import DivergedError
from dml_jax.methods.contract import Aux, Batch, Method, PyTree, zeros
from dml_jax.train.distributed import device_mesh

Augment = Callable[[jax.Array, jax.Array], jax.Array]


class TrainState(NamedTuple):
    """The train state in a checkpoint."""

    step: jax.Array  # int32 [], number of updates so far
    params: Any  # trained parameters, nested dict
    model_state: Any  # non-trainable state (batch statistics, queue), nested dict
    opt_state: Any  # the optimizer's state


def digest(variables: Any) -> str:
    """SHA-256 of the paths, dtypes, shapes and values of all arrays in a tree."""
    sha256 = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(variables):
        sha256.update(f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}".encode())
        sha256.update(np.asarray(leaf).tobytes())
    return sha256.hexdigest()


def check_finite(state: TrainState) -> None:
    """Raises DivergedError with the name of an array of the state that is not finite."""
    paths = jax.tree_util.tree_leaves_with_path(state)
    leaves = {path: leaf for path, leaf in paths if jnp.issubdtype(leaf.dtype, jnp.floating)}
    if jax.device_get(_all_finite(list(leaves.values()))).all():
        return
    path = next(path for path, leaf in leaves.items() if not jnp.isfinite(leaf).all())
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    raise DivergedError(
        f"training diverged at step {int(state.step)}: {name} is not finite after the update; "
        "lower the learning rates and start again"
    )


@jax.jit
def _all_finite(arrays: list[jax.Array]) -> jax.Array:
    return jnp.stack([jnp.isfinite(array).all() for array in arrays])


def loss(
    method: Method,
    params: PyTree,
    model_state: PyTree,
    batch: Batch,
    step: jax.Array,
    key: jax.Array,
    augment: Augment | None = None,
) -> tuple[jax.Array, Aux]:
    """(scalar, Aux) of a batch after `step` (int32 []) updates; `augment` runs on the device."""
    key_augment, key_encode, key_loss = jax.random.split(key, 3)
    if augment is not None:
        batch = batch._replace(images=augment(batch.images, key_augment))
    images = batch.images
    encoded, model_state = method.encode(params, model_state, images, train=True, key=key_encode)
    return method.loss(params, model_state, encoded, batch, step, key_loss)


def build(
    method: Method, optimizer: optax.GradientTransformation, augment: Augment | None = None
) -> Callable[[TrainState, Batch, jax.Array], tuple[TrainState, dict[str, jax.Array]]]:
    """The training step as a pure function, to be jitted with its state donated.

    The batch is global: under `jit`, with rows sharded over the devices, batch statistics and pair
    losses cover all rows, and the gradient needs no factor. Metrics are float scalars: the loss and
    its terms.
    """

    def step(
        state: TrainState, batch: Batch, key: jax.Array
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        def objective(params: PyTree) -> tuple[jax.Array, Aux]:
            step_key = jax.random.fold_in(key, state.step)
            return loss(method, params, state.model_state, batch, state.step, step_key, augment)

        (value, aux), grads = jax.value_and_grad(objective, has_aux=True)(state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        after = method.hooks.after
        model_state = after(params, aux.model_state, aux.carry) if after else aux.model_state
        metrics = {"loss": value, **aux.metrics}
        return TrainState(state.step + 1, params, model_state, opt_state), metrics

    return step


def initial(
    method: Method, optimizer: optax.GradientTransformation, key: jax.Array, batch: Batch
) -> TrainState:
    """The state before the first step; `batch` gives the shapes."""
    params, model_state = method.init(key, batch)
    return TrainState(jnp.zeros((), jnp.int32), params, model_state, optimizer.init(params))


_initial = jax.jit(initial, static_argnums=(0, 1))  # JAX caches its shapes


def state_shapes(
    config: Config,
    method: Method,
    optimizer: optax.GradientTransformation,
    shape: Shape,
    mesh: Mesh,
) -> TrainState:
    """Shapes, dtypes and shardings of the state of a run on images of `shape` (H, W) in pixels."""
    batch = zeros(config.data.batch_size, shape, method.hooks.views)
    key = jax.eval_shape(lambda: jax.random.key(config.seed))
    if config.backbone.pretrained == "none":
        shapes = _initial.eval_shape(method, optimizer, key, batch)
    else:  # the jitted version would also cache the weights
        shapes = jax.eval_shape(partial(initial, method, optimizer), key, batch)
    everywhere = device_mesh.replicated(mesh)

    def placed(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere)

    return jax.tree.map(placed, shapes)
