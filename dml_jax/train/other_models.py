"""Trained models that a run starts or learns from: variables of another run or of published
weights, and a teacher.

A teacher is read from its work directory and is never part of the student's checkpoints.
"""

from functools import partial
from pathlib import Path
from typing import Any

import jax
from flax import traverse_util

from dml_jax import config as configs
from dml_jax.backbones.weights import converted
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, ConfigError, UserError
from dml_jax.methods.contract import PyTree, teaching
from dml_jax.train import class_tables, model, parameter_groups, step
from dml_jax.train.distributed import device_mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import model_files, workdir
from dml_jax.train.step import TrainState, fingerprint


def with_teacher(experiment: Experiment, console: Console) -> Experiment:
    """The experiment with the teacher of its method: the reported model of a run."""
    if not experiment.method.hooks.teacher:
        return experiment
    key = f"method.teacher={experiment.method.hooks.teacher!r}"
    source = Path(experiment.method.hooks.teacher).expanduser()
    try:
        facts = workdir.read_config(source)
        there, here = (
            (facts["data_hash"], tuple(facts["shape"])),
            (experiment.data_hash, experiment.shape),
        )
        if there != here:
            raise CheckpointError(
                "was trained on other data; a teacher needs the same images in the same splits"
            )
        teacher = model.load(source, "reported", console.print)
    except UserError as error:
        raise CheckpointError(f"{key}: {error}") from error
    config = teacher.config
    variables = device_mesh.place(experiment.mesh, (teacher.params, teacher.model_state))
    origin = {
        "hash": configs.digest(config),
        "step": teacher.step,
        "sha256": fingerprint(variables),
    }
    origin |= {"finished": not teacher.unfinished}
    teach = jax.tree_util.Partial(teaching(teacher.method), *variables)
    experiment = experiment._replace(teach=teach, teacher=origin)
    state = experiment.template()
    batch = experiment.example_batch()._replace(teacher=teach)
    # The loss, which is traced and not computed, checks that the teacher's outputs fit it.
    loss = partial(step.loss, experiment.method)
    jax.eval_shape(loss, state.params, state.model_state, batch, state.step, jax.random.key(0))
    console.print(f"teacher: {config.method.name} of {source}, step {teacher.step}")
    return experiment


def initial_state(experiment: Experiment, console: Console) -> TrainState:
    """The state before the first step, with the variables in `experiment.start`."""
    state = experiment.initial_state()
    if not experiment.start:
        return state
    source = Path(experiment.start).expanduser()
    if not source.is_dir():
        raise ConfigError(
            f"init_from={source}: there is no such directory; give a work directory or one of "
            "converted "
            "weights"
        )
    method = experiment.method
    base, updates = parameter_groups.split(state.params)
    own = class_tables.unpadded(
        base, method.hooks.class_axis, len(experiment.splits["train"].classes)
    )
    if (source / "config.json").exists():
        params, model_state, kept = _from_run(
            source, own, state.model_state, method.hooks.history, console
        )
    else:
        params, model_state, kept = converted.load_method(str(source), own, state.model_state)
    variables = (
        parameter_groups.join(class_tables.padded(params, method.hooks.class_axis), updates),
        model_state,
    )
    groups = sorted({name.split("/")[1] for name in kept})
    console.print(
        f"starting from {source}" + (f"; newly initialised: {', '.join(groups)}" if groups else "")
    )
    params, model_state = device_mesh.place(experiment.mesh, variables, method.hooks.class_axis)
    return state._replace(params=params, model_state=model_state)


def _from_run(
    source: Path, params: PyTree, model_state: PyTree, history: tuple[str, ...], console: Console
) -> tuple[PyTree, PyTree, list[str]]:
    """(params, model_state, kept paths), with the variables of the same path and shape in a run."""
    try:
        checkpoint = "reported" if model_files.steps(source / model_files.MODEL) else "latest"
        other = model.load(source, checkpoint, console.print)
    except CheckpointError as error:
        raise CheckpointError(f"init_from={source}: {error}") from error
    their_params = class_tables.unpadded(
        other.params, other.method.hooks.class_axis, len(other.classes)
    )
    theirs = traverse_util.flatten_dict({"params": their_params, "state": other.model_state})
    kept = []

    def choose(path: Any, own: jax.Array) -> jax.Array:
        name, (collection, entry, *rest) = "/".join(path), path
        found = theirs.get(path)
        if entry == "backbone" and found is None:  # frozen parts, such as blocks, are in the state
            found = theirs.get(("state" if collection == "params" else "params", entry, *rest))
        if (
            found is not None
            and found.shape == own.shape
            and not (collection == "state" and entry in history)
        ):
            return found
        if entry == "backbone":
            problem = (
                "is missing"
                if found is None
                else f"has shape {found.shape} there, {own.shape} here"
            )
            raise ConfigError(f"init_from={source}: the backbones differ, {name} {problem}")
        kept.append(name)
        return own

    both = traverse_util.path_aware_map(choose, {"params": params, "state": model_state})
    return both["params"], both["state"], kept
