"""Starting from what another run, or a published checkpoint, has learnt."""

from pathlib import Path
from typing import Any

import jax

from dml_jax import config as configs
from dml_jax.backbones.weights import initialise
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.methods.contract import TrainingSet
from dml_jax.train import experiment as experiments
from dml_jax.train import mesh as meshes
from dml_jax.train import optimizers, workdir
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.experiment import Experiment
from dml_jax.train.state import TrainState


def begin(experiment: Experiment, console: Console) -> TrainState:
    """The state before the first step, `init_from` taken into account.

    Raises:
      UserError: there is nothing to start from, or its backbone is another.
    """
    state = experiments.initial(experiment)
    source = Path(experiment.config.init_from).expanduser()
    if not experiment.config.init_from:
        return state
    if not source.is_dir():
        raise ConfigError(f"init_from={source}: there is no such directory; give a run's or one of converted weights")
    if (source / "config.json").exists():
        params, model_state, fresh = _transplanted(experiment, state, source, console)
    else:
        params, model_state, fresh = initialise.load_method(str(source), state.params, state.model_state)
    groups = sorted({name.split("/")[1] for name in fresh})
    console.say(f"starting from {source}" + (f"; drawn afresh: {', '.join(groups)}" if groups else ""))
    return state._replace(
        params=meshes.replicate(experiment.mesh, params), model_state=meshes.replicate(experiment.mesh, model_state)
    )


def trained(directory: Path, checkpoint: str, warn: Any) -> tuple[configs.Config, Any, TrainState]:
    """A run's configuration, method and one of its states, without its data.

    Args:
      directory: its work directory.
      checkpoint: "reported", "latest", "best" or a step.
      warn: told one sentence about each checkpoint that cannot be read.

    Raises:
      CheckpointError: no run there, or no such checkpoint.
    """
    facts = workdir.read_config(directory)
    config = configs.resolve(facts["config"])
    method = experiments.build_method(config, TrainingSet(facts["classes"], facts["images"]))
    optimizer = optimizers.build(config.train, method, lambda step: 1.0, warmup_steps=config.train.warmup_epochs)
    shape = (facts["shape"][0], facts["shape"][1])
    template = experiments.template(config, method, optimizer, shape, meshes.make())
    store = Checkpoints(directory / "checkpoints", lambda: template, warn, writing=False)
    try:
        return config, method, store.selected(checkpoint, config.train.select)
    finally:
        store.close()


def _transplanted(
    experiment: Experiment, state: TrainState, source: Path, console: Console
) -> tuple[Any, Any, list[str]]:
    """The leaves of another run's latest model that have a place of the same shape in this one's."""
    try:
        _, _, other = trained(source, "latest", console.say)
    except CheckpointError as error:
        raise CheckpointError(f"init_from={source}: {error}") from error
    theirs = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path({"params": other.params, "state": other.model_state})
    }
    fresh = []

    def choose(path: Any, own: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in theirs and theirs[name].shape == own.shape:
            return theirs[name]
        if name.split("/")[1] == "backbone":
            found = f"has the shape {theirs[name].shape} there, {own.shape} here" if name in theirs else "is not there"
            raise ConfigError(f"init_from={source}: the backbones differ, {name} {found}")
        fresh.append(name)
        return own

    both = jax.tree_util.tree_map_with_path(choose, {"params": state.params, "state": state.model_state})
    return both["params"], both["state"], fresh
