"""Starting from the variables of another run or of published weights."""

from pathlib import Path
from typing import Any

import jax

from dml_jax.backbones.weights import store
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.methods.contract import PyTree
from dml_jax.train import model
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import kept_models
from dml_jax.train.state import TrainState
from dml_jax.train.variants import class_tables, low_rank


def initial_state(experiment: Experiment, console: Console) -> TrainState:
    """The state before the first step, with the variables in `experiment.start`.

    Raises UserError if they cannot be read, or the backbone there differs.
    """
    state = experiment.initial_state()
    if not experiment.start:
        return state
    source = Path(experiment.start).expanduser()
    if not source.is_dir():
        raise ConfigError(
            f"init_from={source}: there is no such directory; give a work directory or one of converted weights"
        )
    method = experiment.method
    base, updates = low_rank.split(state.params)
    own = class_tables.unpadded(base, method.hooks.class_axis, len(experiment.splits["train"].classes))
    if (source / "config.json").exists():
        params, model_state, kept = _from_run(source, own, state.model_state, method.hooks.history, console)
    else:
        params, model_state, kept = store.load_method(str(source), own, state.model_state)
    variables = low_rank.join(class_tables.padded(params, method.hooks.class_axis), updates), model_state
    groups = sorted({name.split("/")[1] for name in kept})
    console.print(f"starting from {source}" + (f"; newly initialised: {', '.join(groups)}" if groups else ""))
    params, model_state = meshes.place(experiment.mesh, variables, method.hooks.class_axis)
    return state._replace(params=params, model_state=model_state)


def _from_run(
    source: Path, params: PyTree, model_state: PyTree, history: tuple[str, ...], console: Console
) -> tuple[PyTree, PyTree, list[str]]:
    """Initial variables, tables of classes without padding, replaced by those of the same path and shape in a run.

    The result is (params, model_state, paths of the variables that were not replaced); `history` as in `Hooks`.
    """
    try:
        checkpoint = "reported" if kept_models.steps(source / kept_models.MODEL) else "latest"
        other = model.load(source, checkpoint, console.print)
    except CheckpointError as error:
        raise CheckpointError(f"init_from={source}: {error}") from error
    their_params = class_tables.unpadded(other.params, other.method.hooks.class_axis, len(other.classes))
    theirs = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path({"params": their_params, "state": other.model_state})
    }
    kept = []

    def choose(path: Any, own: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        collection, entry, *rest = name.split("/")
        found = theirs.get(name)
        if entry == "backbone" and found is None:  # what is never trained, such as a frozen block, is in the state
            found = theirs.get("/".join([{"params": "state", "state": "params"}[collection], entry, *rest]))
        if found is not None and found.shape == own.shape and not (collection == "state" and entry in history):
            return found
        if entry == "backbone":
            problem = "is missing" if found is None else f"has shape {found.shape} there, {own.shape} here"
            raise ConfigError(f"init_from={source}: the backbones differ, {name} {problem}")
        kept.append(name)
        return own

    both = jax.tree_util.tree_map_with_path(choose, {"params": params, "state": model_state})
    return both["params"], both["state"], kept
