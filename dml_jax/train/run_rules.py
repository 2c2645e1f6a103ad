"""Options without effect in a run of this data and length, as the `RunRule`s of `dml_jax.config.fields` state."""

from collections.abc import Collection

import jax
import jax.numpy as jnp

from dml_jax.config import Train, fields
from dml_jax.console import Console
from dml_jax.errors import ConfigError
from dml_jax.train import experiment as experiments
from dml_jax.train.distributed import mesh
from dml_jax.train.experiment import Experiment


def check(experiment: Experiment, typed: Collection[str], console: Console, of: str = "") -> None:
    """Warns of options whose keys begin with `of` and that have no effect in this run.

    Raises ConfigError if the command line sets one (`typed`), or the embeddings have too few dimensions for
    `evaluation.prefixes`.
    """
    config = experiment.config
    if config.evaluation.prefixes:
        _check_prefixes(experiment)
    params = experiment.template().params if config.train.shard_classes else {}
    paths = (mesh.dict_keys(path) for path, _ in jax.tree_util.tree_leaves_with_path(params))
    tables = any(experiment.method.hooks.class_axis(path) is not None for path in paths)
    run = _run(experiment, config.train, tables=tables)
    head = _run(experiment, config.head, tables=True) if config.head else None  # unknown, and of little interest
    found = [problem for problem in fields.broken(config, run, head) if problem[0].startswith(of)]
    fields.report(found, typed, lambda text: console.print(f"warning: {text}"))


def _check_prefixes(experiment: Experiment) -> None:
    state, image = experiment.template(), jax.ShapeDtypeStruct((1, *experiment.shape, 3), jnp.uint8)
    for embed in experiment.readings.values() or [experiment.method.embed]:
        width = jax.eval_shape(embed, state.params, state.model_state, image).shape[1]
        longest = max(experiment.config.evaluation.prefixes)
        if longest > width:
            raise ConfigError(f"evaluation.prefixes: {longest}, but the embeddings have {width} dimensions")


def _run(experiment: Experiment, train: Train, *, tables: bool) -> fields.Run:
    """What is known of the run, or of the training of its head, which has the same batches."""
    sampler, test = experiment.sampler, experiment.splits["test"]
    steps = experiments.length(train, sampler)
    first = train.evaluate_every or (sampler.first_step(1) if train.epochs else steps)
    return fields.Run(
        steps=steps,
        epoch_end=lambda epoch: sampler.first_step(train.warmup_epochs + epoch),
        first_evaluation=first if first < steps else 0,
        candidates=len(test.labels) - 1 if test.gallery is None else len(test.gallery.labels),
        tables=tables,
    )
