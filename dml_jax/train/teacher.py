"""The teacher of a method: the reported model of another run on the same images.

It is loaded from its work directory, and checkpoints do not contain it.
"""

from functools import partial
from pathlib import Path

import jax

from dml_jax.console import Console
from dml_jax.errors import CheckpointError, UserError
from dml_jax.methods.contract import teaching
from dml_jax.train import model, step
from dml_jax.train.distributed import device_mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import workdir


def with_teacher(experiment: Experiment, console: Console) -> Experiment:
    """The experiment with the teacher of its method, if it has one."""
    if not experiment.method.hooks.teacher:
        return experiment
    source = Path(experiment.method.hooks.teacher).expanduser()
    try:
        record = workdir.read_config(source)
        teacher_data = record["data_hash"], tuple(record["shape"])
        if teacher_data != (experiment.data_hash, experiment.shape):
            raise CheckpointError(
                "was trained on different data; a teacher needs the same images in the same splits"
            )
        teacher = model.load(source, "reported", console.print)
    except UserError as error:
        key = f"method.teacher={experiment.method.hooks.teacher!r}"
        raise CheckpointError(f"{key}: {error}") from error
    config = teacher.config
    variables = device_mesh.place(experiment.mesh, (teacher.params, teacher.model_state))
    origin = {
        "step": teacher.step,
        "sha256": step.digest(variables),
        "finished": not teacher.unfinished,
    }
    teach = jax.tree_util.Partial(teaching(teacher.method), *variables)
    experiment = experiment._replace(teach=teach, teacher=origin)
    state = experiment.template()
    batch = experiment.example_batch()._replace(teacher=teach)
    # Tracing the loss checks that it can use the teacher's outputs.
    loss = partial(step.loss, experiment.method)
    jax.eval_shape(loss, state.params, state.model_state, batch, state.step, jax.random.key(0))
    console.print(f"teacher: {config.method.name} of {source}, step {teacher.step}")
    return experiment
