"""The train state: everything that one step passes to the next."""

import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.errors import DivergedError
from dml_jax.train import parameter_groups


class TrainState(NamedTuple):
    """What a checkpoint holds."""

    step: jax.Array  # int32 [], number of updates so far
    params: Any  # trained parameters, nested dict
    model_state: Any  # what is not trained by gradients (batch statistics, queue, momentum encoder), nested dict
    opt_state: Any  # the optimizer's state
    average: Any = None  # moving averages of params and model_state, a pair; None unless `train.ema` is set


def inference_state(state: TrainState) -> TrainState:
    """The state whose model is evaluated, exported and reported.

    It is the moving average, where there is one, with low-rank updates merged.
    """
    if state.average is not None:
        state = state._replace(params=state.average[0], model_state=state.average[1])
    return state._replace(params=parameter_groups.merged(state.params))


def fingerprint(variables: Any) -> str:
    """SHA-256 of the paths, dtypes, shapes and values of all arrays of a tree."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(variables)):
        digest.update(f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}".encode())
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def check_finite(state: TrainState) -> None:
    """Raises DivergedError, which names an array, if parameters, model state or optimizer state are not finite."""
    leaves = {path: leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state) if _is_floating(leaf)}
    if jax.device_get(_all_finite(list(leaves.values()))).all():
        return
    path = next(path for path, leaf in leaves.items() if not jnp.isfinite(leaf).all())
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    raise DivergedError(
        f"training diverged at step {int(state.step)}: {name} is not finite after the update; lower the learning rates "
        "and start again"
    )


def _is_floating(leaf: Any) -> bool:
    return bool(jax.dtypes.issubdtype(leaf.dtype, np.floating))


@jax.jit
def _all_finite(arrays: list[jax.Array]) -> jax.Array:
    """Whether each array is finite, bool; computed where the arrays are."""
    return jnp.stack([jnp.isfinite(array).all() for array in arrays])
