"""The state before the first step: random, or from another run or published weights.

Random values are drawn on the host by a small program for each shape, because one program for the
whole network would take longer to compile than all others.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
from flax import traverse_util

from dml_jax.backbones.weights import converted
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.methods.contract import Batch, PyTree, TrainingSet
from dml_jax.train import model, step
from dml_jax.train.distributed import device_mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.model import TrainedModel
from dml_jax.train.records import model_files
from dml_jax.train.step import TrainState


def initial_state(experiment: Experiment, console: Console | None = None) -> TrainState:
    """The state before the first step, with the variables in `experiment.start`."""
    console = console or Console(active=False)
    state = _from_seed(experiment)
    if not experiment.start:
        return state
    source = Path(experiment.start).expanduser()
    if not source.is_dir():
        raise ConfigError(
            f"init_from={source}: no such directory; give a work directory or converted weights"
        )
    local = state.params, state.model_state
    if (source / "config.json").exists():
        params, model_state, initialised = _from_run(source, *local, experiment, console)
    else:
        params, model_state, initialised = converted.load_method(str(source), *local)
    groups = ", ".join(sorted({name.split("/")[1] for name in initialised}))
    console.print(f"starting from {source}" + (f"; newly initialised: {groups}" if groups else ""))
    params, model_state = device_mesh.place(experiment.mesh, (params, model_state))
    return state._replace(params=params, model_state=model_state)


def _from_seed(experiment: Experiment) -> TrainState:
    batch, arguments = experiment.example_batch(), (experiment.method, experiment.optimizer)
    with jax.default_device(_host()):
        key = jax.random.fold_in(experiment.key, 2**31 - 1)
        state = step.initial(*arguments, key, batch)
    return TrainState(*device_mesh.place(experiment.mesh, state))


def _host() -> jax.Device | None:
    """This process's CPU; None (the default device) if JAX_PLATFORMS excludes it."""
    with suppress(RuntimeError):
        return jax.local_devices(backend="cpu")[0]
    return None


def _from_run(
    source: Path, params: PyTree, model_state: PyTree, experiment: Experiment, console: Console
) -> tuple[PyTree, PyTree, list[str]]:
    """(params, model_state, paths that keep initial values), with a run's variables where path and
    shape agree.

    Variables per class, such as proxies, are only used if the classes are the same.
    """
    try:
        checkpoint = "reported" if (source / model_files.DIRECTORY).exists() else "latest"
        trained = model.load(source, checkpoint, console.print)
    except CheckpointError as error:
        raise CheckpointError(f"init_from={source}: {error}") from error
    stored = traverse_util.flatten_dict({"params": trained.params, "state": trained.model_state})
    if list(trained.classes) != experiment.class_names:
        for path in _class_tables(trained, experiment.example_batch()):
            stored.pop(("params", *path), None)
    initialised, history = [], experiment.method.hooks.history

    def choose(path: Any, initial: jax.Array) -> jax.Array:
        name, (collection, entry, *rest) = "/".join(path), path
        value = stored.get(path)
        if entry == "backbone" and value is None:  # frozen parts are in the model state
            value = stored.get(("state" if collection == "params" else "params", entry, *rest))
        remembers = collection == "state" and entry in history
        if value is not None and value.shape == initial.shape and not remembers:
            return value
        if entry == "backbone":
            shapes = value is not None and f"has shape {value.shape} there, {initial.shape} here"
            raise ConfigError(
                f"init_from={source}: the backbones differ, {name} {shapes or 'is missing'}"
            )
        initialised.append(name)
        return initial

    chosen = traverse_util.path_aware_map(choose, {"params": params, "state": model_state})
    return chosen["params"], chosen["state"], initialised


def _class_tables(trained: TrainedModel, batch: Batch) -> Iterator[tuple[str, ...]]:
    """The paths of the parameters whose size depends on the number of training classes."""

    def shapes(classes: int) -> dict[Any, Any]:
        method = model.build_method(trained.config, TrainingSet(classes, 1))
        params, _ = jax.eval_shape(method.init, jax.random.key(0), batch)
        return {path: leaf.shape for path, leaf in traverse_util.flatten_dict(params).items()}

    count = len(trained.classes)
    larger = shapes(count + 1)
    return (path for path, shape in shapes(count).items() if shape != larger[path])
