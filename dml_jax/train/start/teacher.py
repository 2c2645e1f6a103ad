"""The trained model a run learns from: read from its work directory, never part of the student's checkpoints."""

from functools import partial
from pathlib import Path

import jax

from dml_jax import config as configs
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, UserError
from dml_jax.methods.contract import teaching
from dml_jax.train import model, step
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.experiment import Experiment, Teacher
from dml_jax.train.records import workdir
from dml_jax.train.state import fingerprint


def with_teacher(experiment: Experiment, console: Console) -> Experiment:
    """The experiment with the teacher that its method names, if it names one: the reported model of that run."""
    if not experiment.method.hooks.teacher:
        return experiment
    key = f"method.teacher={experiment.method.hooks.teacher!r}"
    source = Path(experiment.method.hooks.teacher).expanduser()
    try:
        facts = workdir.read_config(source)
        if facts["data_hash"] != experiment.data_hash:
            raise CheckpointError(
                f"was trained on other data, {facts['config']['data']['name']} with {facts['classes']} classes; this "
                f"run uses {experiment.config.data.name} with {len(experiment.splits['train'].classes)}, and the "
                "teacher needs the same images in the same splits"
            )
        if tuple(facts["shape"]) != experiment.shape:
            theirs, ours = ("x".join(map(str, shape)) for shape in (facts["shape"], experiment.shape))
            raise CheckpointError(f"was trained on images of {theirs} pixels, here they have {ours}")
        teacher = model.load(source, "reported", console.print)
    except UserError as error:
        raise CheckpointError(f"{key}: {error}") from error
    config = teacher.config
    variables = meshes.replicate(experiment.mesh, (teacher.params, teacher.model_state))
    origin = {"hash": configs.digest(config), "step": teacher.step, "sha256": fingerprint(variables)}
    origin |= {"finished": not teacher.unfinished}
    teach = jax.tree_util.Partial(teaching(teacher.method), *variables)
    experiment = experiment._replace(teacher=Teacher(teach, origin))
    state = experiment.template()
    batch = experiment.example_batch()._replace(teacher=teach)
    # The loss, which is traced and not computed, checks that the teacher's outputs fit it.
    loss = partial(step.loss, experiment.method)
    jax.eval_shape(loss, state.params, state.model_state, batch, state.step, jax.random.key(0))
    console.print(f"teacher: {config.method.name} of {source}, step {teacher.step}")
    return experiment
