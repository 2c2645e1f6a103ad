"""Starting from the variables of another run or of a published checkpoint."""

import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax

from dml_jax.backbones.weights import pretrained
from dml_jax.config import Config
from dml_jax.config.fields import with_precision
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.methods.contract import Method, PyTree, TrainingSet, no_classes
from dml_jax.train import experiment as experiments
from dml_jax.train import on_devices, optimizers
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.evaluation import pretrained_features, readings
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import kept_models, workdir
from dml_jax.train.state import TrainState
from dml_jax.train.variants import class_tables, low_rank


class TrainedModel(NamedTuple):
    """The model of a run, without its data."""

    config: Config  # of the run
    method: Method  # the pure functions
    state: TrainState  # the model
    unfinished: str = ""  # says that the run has not finished; empty if it has


def load_trained(
    directory: Path,
    checkpoint: str,
    warn: Callable[[str], None] | None,
    *,
    dtype: str | None = None,
    trust_code: bool = False,
) -> TrainedModel:
    """A run's configuration, method and one of its states, or those of a published network.

    Warns if the reported model is asked for and the run has not finished.

    Args:
      directory: its work directory; what `export.hub` has pulled, which holds one model; or converted weights.
      checkpoint: "reported", "latest", "best" or a step.
      dtype: of the activations, instead of the configuration's.
      warn, trust_code: see `Checkpoints` and `dml_jax.load`.

    Raises:
      CheckpointError, WeightsError: no run or weights there, or no such checkpoint.
    """
    if pretrained_features.is_converted(directory):
        return TrainedModel(*pretrained_features.load(directory, checkpoint, dtype))
    facts = workdir.read_config(directory)
    run = workdir.identity(facts)
    given = workdir.run_config(directory, trust_code=trust_code)
    # The variables come from the checkpoint, so what they were initialised with need not exist any more.
    backbone = with_precision(replace(given.backbone, pretrained="none"), dtype)
    config = replace(given, backbone=backbone)
    if reading := readings.name_in_results(config, directory):
        config = experiments.read_as(config, reading)
    method = experiments.build_method(config, TrainingSet(facts["classes"], facts["images"]))
    optimizer = optimizers.build(config.train, method, lambda step: 1.0, warmup_steps=config.train.warmup_epochs)
    shape = (facts["shape"][0], facts["shape"][1])
    everywhere = method._replace(hooks=method.hooks._replace(class_axis=no_classes))
    template = on_devices.state_shapes(config, everywhere, optimizer, shape, meshes.make())
    if steps := kept_models.steps(directory / kept_models.MODEL):
        if checkpoint not in ("reported", str(steps[-1])):
            raise CheckpointError(f"checkpoint={checkpoint}: {directory} holds only the model of step {steps[-1]}")
        return TrainedModel(given, method, kept_models.read(directory / kept_models.MODEL, steps[-1], template, run))
    with closing(Checkpoints(directory / "checkpoints", lambda: template, warn, run=run, writing=False)) as checkpoints:
        state = checkpoints.select(checkpoint, config.train.select)
    unfinished = workdir.unfinished(directory, int(state.step), reported=checkpoint == "reported")
    if unfinished and checkpoint == "reported":
        warnings.warn(unfinished, stacklevel=4)  # the caller of `dml_jax.load`
    return TrainedModel(given, method, state, unfinished)


def image_shape(directory: Path) -> tuple[int, int]:
    """(height, width) in pixels of the images for the model that `load_trained` returns, whose errors it raises."""
    if pretrained_features.is_converted(directory):
        side = pretrained_features.image_side(directory)
        return side, side
    if not (directory / "config.json").exists():
        raise CheckpointError(
            f"{directory}: is not a work directory (no config.json) and holds no converted weights (no weights.json); "
            "give lite0, the weights of an installed package, or convert published ones with `dml-jax convert`"
        )
    height, width = workdir.read_config(directory)["shape"]
    return height, width


def initial_state(experiment: Experiment, console: Console) -> TrainState:
    """The state before the first step, with the variables in `experiment.start`.

    Raises UserError if they cannot be read, or the backbone there differs.
    """
    state = on_devices.initial_state(experiment)
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
        params, model_state, kept = pretrained.load_method(str(source), own, state.model_state)
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
        _, their_method, other, _ = load_trained(source, checkpoint, console.print)
        their_classes = workdir.read_config(source)["classes"]
    except CheckpointError as error:
        raise CheckpointError(f"init_from={source}: {error}") from error
    their_params = class_tables.unpadded(other.params, their_method.hooks.class_axis, their_classes)
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
