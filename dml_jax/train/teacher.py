"""The trained model a run learns from: read from its work directory, never part of the student's checkpoints."""

from pathlib import Path
from typing import Any

import jax

from dml_jax import config as configs
from dml_jax.console import Screen
from dml_jax.errors import CheckpointError, UserError
from dml_jax.methods.contract import Method, Teaching
from dml_jax.train import experiment, warm_start, workdir
from dml_jax.train import mesh as meshes
from dml_jax.train.experiment import Experiment, Teacher
from dml_jax.train.state import fingerprint


def attended(parts: Experiment, screen: Screen) -> Experiment:
    """The experiment with the teacher its method names, if it does: that run's reported model, or its latest so far.

    Raises:
      CheckpointError: there is no such run, or it was trained on other images.
      ConfigError: its outputs are not what the method wants.
    """
    if not parts.method.teacher:
        return parts
    key = f"method.teacher={parts.method.teacher!r}"
    source = Path(parts.method.teacher).expanduser()
    try:
        facts = workdir.read_config(source)
        config = configs.resolve(facts["config"])
    except UserError as error:
        raise CheckpointError(f"{key}: {error}") from error
    classes, (height, width) = len(parts.splits["train"].classes), parts.shape
    if facts["data_hash"] != experiment.data_hash(parts):
        raise CheckpointError(
            f"{key}: was trained on other data, {config.data.name} with {facts['classes']} classes; this run has "
            f"{parts.config.data.name} with {classes}, and a teacher must know the same images, split alike"
        )
    if tuple(facts["shape"]) != parts.shape:
        size = "x".join(map(str, facts["shape"]))
        raise CheckpointError(f"{key}: was trained on images of {size} pixels, here they have {height}x{width}")
    try:
        _, method, state = warm_start.trained(source, "reported", screen.say)
    except UserError as error:
        raise CheckpointError(f"{key}: {error}") from error
    variables = meshes.replicate(parts.mesh, (state.params, state.method))
    origin = {"hash": configs.digest(config), "step": int(state.step), "sha256": fingerprint(variables)}
    parts = parts._replace(teacher=Teacher(jax.tree_util.Partial(_outputs(method), *variables), origin))
    _listened(parts)
    screen.say(f"teacher: {config.method.name} of {source}, step {origin['step']}")
    return parts


def _outputs(method: Method) -> Any:
    """(params, state, images) -> Teaching: the method's own, or its embedding."""
    if method.teach is not None:
        return method.teach
    return lambda params, state, images: Teaching(method.embed(params, state, images))


def _listened(parts: Experiment) -> None:
    """Traces the loss, in which a method complains of its teacher; computes nothing."""
    shapes = experiment.template(parts.config, parts.method, parts.optimizer, parts.shape, parts.mesh)
    assert parts.teacher is not None
    batch = experiment.example(parts.config, parts.method, parts.shape)._replace(teacher=parts.teacher.teach)
    jax.eval_shape(parts.method.loss, shapes.params, shapes.method, batch, experiment.key(parts.config))
