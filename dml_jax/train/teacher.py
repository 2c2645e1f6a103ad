"""The trained model a run learns from: read from its work directory, never part of the student's checkpoints."""

from functools import partial
from pathlib import Path

import jax

from dml_jax import config as configs
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, UserError
from dml_jax.methods.contract import teaching
from dml_jax.train import experiment as experiments
from dml_jax.train import mesh as meshes
from dml_jax.train import step, warm_start, workdir
from dml_jax.train.experiment import Experiment, Teacher
from dml_jax.train.state import fingerprint


def attended(experiment: Experiment, console: Console) -> Experiment:
    """The experiment with the teacher its method names, if it does: that run's reported model, or its latest so far.

    Raises:
      CheckpointError: there is no such run, or it was trained on other images.
      ConfigError: its outputs are not what the method wants.
    """
    if not experiment.method.teacher:
        return experiment
    key = f"method.teacher={experiment.method.teacher!r}"
    source = Path(experiment.method.teacher).expanduser()
    try:
        facts = workdir.read_config(source)
        config = configs.resolve(facts["config"])
    except UserError as error:
        raise CheckpointError(f"{key}: {error}") from error
    classes, (height, width) = len(experiment.splits["train"].classes), experiment.shape
    if facts["data_hash"] != experiments.data_hash(experiment):
        raise CheckpointError(
            f"{key}: was trained on other data, {config.data.name} with {facts['classes']} classes; this run has "
            f"{experiment.config.data.name} with {classes}, and a teacher must know the same images, split alike"
        )
    if tuple(facts["shape"]) != experiment.shape:
        size = "x".join(map(str, facts["shape"]))
        raise CheckpointError(f"{key}: was trained on images of {size} pixels, here they have {height}x{width}")
    try:
        _, method, state = warm_start.trained(source, "reported", console.say)
    except UserError as error:
        raise CheckpointError(f"{key}: {error}") from error
    variables = meshes.replicate(experiment.mesh, (state.params, state.model_state))
    origin = {"hash": configs.digest(config), "step": int(state.step), "sha256": fingerprint(variables)}
    experiment = experiment._replace(teacher=Teacher(jax.tree_util.Partial(teaching(method), *variables), origin))
    check_teacher_fits(experiment)
    console.say(f"teacher: {config.method.name} of {source}, step {origin['step']}")
    return experiment


def check_teacher_fits(experiment: Experiment) -> None:
    """Raises ConfigError if the teacher does not fit: traces the loss, which computes nothing."""
    shapes = experiments.template(
        experiment.config, experiment.method, experiment.optimizer, experiment.shape, experiment.mesh
    )
    assert experiment.teacher is not None
    batch = experiments.example(experiment.config, experiment.method, experiment.shape)._replace(
        teacher=experiment.teacher.teach
    )
    loss = partial(step.loss, experiment.method)
    jax.eval_shape(loss, shapes.params, shapes.model_state, batch, shapes.step, experiments.key(experiment.config))
