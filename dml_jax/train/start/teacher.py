"""The trained model a run learns from: read from its work directory, never part of the student's checkpoints."""

from functools import partial
from pathlib import Path

import jax

from dml_jax import config as configs
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, UserError
from dml_jax.methods.contract import teaching
from dml_jax.train import experiment as experiments
from dml_jax.train import on_devices, step
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.experiment import Experiment, Teacher
from dml_jax.train.records import workdir
from dml_jax.train.start import warm_start
from dml_jax.train.state import fingerprint


def with_teacher(experiment: Experiment, console: Console) -> Experiment:
    """The experiment with the teacher that its method names, if it names one: the reported model of that run."""
    if not experiment.method.hooks.teacher:
        return experiment
    key = f"method.teacher={experiment.method.hooks.teacher!r}"
    source = Path(experiment.method.hooks.teacher).expanduser()
    try:
        facts = workdir.read_config(source)
        config = workdir.run_config(source)
    except UserError as error:
        raise CheckpointError(f"{key}: {error}") from error
    classes, (height, width) = len(experiment.splits["train"].classes), experiment.shape
    if facts["data_hash"] != experiments.data_hash(experiment.splits):
        raise CheckpointError(
            f"{key}: was trained on other data, {config.data.name} with {facts['classes']} classes; this run uses "
            f"{experiment.config.data.name} with {classes}, and the teacher needs the same images in the same splits"
        )
    if tuple(facts["shape"]) != experiment.shape:
        size = "x".join(map(str, facts["shape"]))
        raise CheckpointError(f"{key}: was trained on images of {size} pixels, here they have {height}x{width}")
    try:
        model = warm_start.load_trained(source, "reported", console.print)
    except UserError as error:
        raise CheckpointError(f"{key}: {error}") from error
    variables = meshes.replicate(experiment.mesh, (model.state.params, model.state.model_state))
    origin = {"hash": configs.digest(config), "step": int(model.state.step), "sha256": fingerprint(variables)}
    origin |= {"finished": not model.unfinished}
    teach = jax.tree_util.Partial(teaching(model.method), *variables)
    experiment = experiment._replace(teacher=Teacher(teach, origin))
    _check_teacher_fits(experiment)
    console.print(f"teacher: {config.method.name} of {source}, step {origin['step']}")
    return experiment


def _check_teacher_fits(experiment: Experiment) -> None:
    """Raises ConfigError if the method cannot use the teacher's outputs; the loss is traced, not computed."""
    assert experiment.teacher is not None
    state = on_devices.template(experiment)
    batch = on_devices.example_batch(experiment)._replace(teacher=experiment.teacher.teach)
    loss = partial(step.loss, experiment.method)
    jax.eval_shape(loss, state.params, state.model_state, batch, state.step, on_devices.run_key(0))
