"""The state before the first step: drawn from the seed, or from another run or published weights.

Values are drawn on the host by one small program for each shape; one program for the network takes
longer to compile than all others.
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
            f"init_from={source}: there is no such directory; give a work directory or "
            "converted weights"
        )
    local = state.params, state.model_state
    if (source / "config.json").exists():
        params, model_state, kept = _from_run(source, *local, experiment, console)
    else:
        params, model_state, kept = converted.load_method(str(source), *local)
    groups = ", ".join(sorted({name.split("/")[1] for name in kept}))
    console.print(f"starting from {source}" + (f"; newly initialised: {groups}" if groups else ""))
    params, model_state = device_mesh.place(experiment.mesh, (params, model_state))
    return state._replace(params=params, model_state=model_state)


def _from_seed(experiment: Experiment) -> TrainState:
    batch, arguments = experiment.example_batch(), (experiment.method, experiment.optimizer)
    with jax.default_device(_host()):
        key = jax.random.fold_in(experiment.key, 2**31 - 1)
        drawn = step.initial(*arguments, key, batch)
    return TrainState(*device_mesh.place(experiment.mesh, drawn))


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
        checkpoint = "reported" if (source / model_files.DIRECTORY).exists() else "latest"
        other = model.load(source, checkpoint, console.print)
    except CheckpointError as error:
        raise CheckpointError(f"init_from={source}: {error}") from error
    theirs = traverse_util.flatten_dict({"params": other.params, "state": other.model_state})
    if list(other.classes) != experiment.class_names:
        for path in _class_tables(other, experiment.example_batch()):
            theirs.pop(("params", *path), None)
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


def _class_tables(trained: TrainedModel, batch: Batch) -> Iterator[tuple[str, ...]]:
    """The paths of the parameters that are larger if there is one more training class."""

    def shapes(classes: int) -> dict[Any, Any]:
        method = model.build_method(trained.config, TrainingSet(classes, 1))
        params, _ = jax.eval_shape(method.init, jax.random.key(0), batch)
        return {path: leaf.shape for path, leaf in traverse_util.flatten_dict(params).items()}

    count = len(trained.classes)
    larger = shapes(count + 1)
    return (path for path, shape in shapes(count).items() if shape != larger[path])
