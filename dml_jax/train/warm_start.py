"""The state before the first step: drawn from the seed, or from another run or published weights.

Values are drawn on the host by one small program for each shape; one program for the network takes
longer to compile than all others. Only with a table of classes that is spread over the devices, and
may not fit into one, each device computes what it holds.
"""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax
from flax import traverse_util

from dml_jax.backbones.weights import converted
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.methods.contract import Batch, PyTree, TrainingSet, no_classes
from dml_jax.train import class_tables, model, parameter_groups, step
from dml_jax.train.distributed import device_mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import model_files
from dml_jax.train.step import TrainState

UNOPTIMIZED = {"xla_backend_optimization_level": 0}  # for a program that runs once


def initial_state(experiment: Experiment, console: Console | None = None) -> TrainState:
    """The state before the first step, with the variables in `experiment.start`."""
    console = console or Console(active=False)
    state = _from_seed(experiment)
    if not experiment.start:
        return state
    source = Path(experiment.start).expanduser()
    if not source.is_dir():
        raise ConfigError(
            f"init_from={source}: there is no such directory; give a work directory or "
            "converted weights"
        )
    hooks, classes = experiment.method.hooks, len(experiment.splits["train"].classes)
    base, updates = parameter_groups.split(state.params)
    local = class_tables.unpadded(base, hooks.class_axis, classes), state.model_state
    if (source / "config.json").exists():
        params, model_state, kept = _from_run(source, *local, experiment, console)
    else:
        params, model_state, kept = converted.load_method(str(source), *local)
    params = parameter_groups.join(class_tables.padded(params, hooks.class_axis), updates)
    groups = ", ".join(sorted({name.split("/")[1] for name in kept}))
    console.print(f"starting from {source}" + (f"; newly initialised: {groups}" if groups else ""))
    params, model_state = device_mesh.place(
        experiment.mesh, (params, model_state), hooks.class_axis
    )
    return state._replace(params=params, model_state=model_state)


def _from_seed(experiment: Experiment) -> TrainState:
    batch, arguments = experiment.example_batch(), (experiment.method, experiment.optimizer)
    if experiment.method.hooks.class_axis is no_classes:
        with jax.default_device(_host()):
            key = jax.random.fold_in(experiment.key, 2**31 - 1)
            drawn = step.initial(*arguments, key, batch)
        return TrainState(*device_mesh.place(experiment.mesh, drawn))
    layout = jax.tree.map(lambda leaf: leaf.sharding, experiment.template())
    key = device_mesh.place(experiment.mesh, jax.random.fold_in(experiment.key, 2**31 - 1))
    compiled = partial(jax.jit, out_shardings=layout, compiler_options=UNOPTIMIZED)
    if experiment.config.backbone.pretrained == "none":
        state: TrainState = compiled(step.initial, static_argnums=(0, 1))(*arguments, key, batch)
        return state
    # Weights that are read while the program is traced would be constants in it; as arguments they
    # cost nothing.
    program, shapes = jax.make_jaxpr(partial(step.initial, *arguments), return_shape=True)(
        key, batch
    )

    def run(weights: list[Any], key: jax.Array, batch: Batch) -> TrainState:
        leaves = jax.core.eval_jaxpr(program.jaxpr, weights, *jax.tree.leaves((key, batch)))
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves)

    state = compiled(run)(program.consts, key, batch)
    return state


def _host() -> jax.Device | None:
    """This process's CPU; None, the default device, where JAX_PLATFORMS does not name it."""
    with suppress(RuntimeError):
        return jax.local_devices(backend="cpu")[0]
    return None


def _from_run(
    source: Path, params: PyTree, model_state: PyTree, experiment: Experiment, console: Console
) -> tuple[PyTree, PyTree, list[str]]:
    """(params, model_state, kept paths), with the variables of the same path and shape in a run.

    What a run has learnt of its classes, such as proxies, is only used for the same classes.
    """
    try:
        checkpoint = "reported" if model_files.steps(source / model_files.MODEL) else "latest"
        other = model.load(source, checkpoint, console.print)
    except CheckpointError as error:
        raise CheckpointError(f"init_from={source}: {error}") from error
    axis = other.method.hooks.class_axis
    their_params = class_tables.unpadded(other.params, axis, len(other.classes))
    theirs = traverse_util.flatten_dict({"params": their_params, "state": other.model_state})
    if list(other.classes) != experiment.class_names:
        count, batch = len(other.classes), experiment.example_batch()
        larger = model.build_method(other.config, TrainingSet(count + 1, 1))
        same = model.build_method(other.config, TrainingSet(count, 1))
        for path in class_tables.class_axes(same, larger, batch):
            theirs.pop(("params", *path), None)  # updates of low rank have been merged
    kept, history = [], experiment.method.hooks.history

    def choose(path: Any, here: jax.Array) -> jax.Array:
        name, (collection, entry, *rest) = "/".join(path), path
        found = theirs.get(path)
        if entry == "backbone" and found is None:  # frozen parts, such as blocks, are in the state
            found = theirs.get(("state" if collection == "params" else "params", entry, *rest))
        remembers = collection == "state" and entry in history
        if found is not None and found.shape == here.shape and not remembers:
            return found
        if entry == "backbone":
            shapes = found is not None and f"has shape {found.shape} there, {here.shape} here"
            raise ConfigError(
                f"init_from={source}: the backbones differ, {name} {shapes or 'is missing'}"
            )
        kept.append(name)
        return here

    both = traverse_util.path_aware_map(choose, {"params": params, "state": model_state})
    return both["params"], both["state"], kept
