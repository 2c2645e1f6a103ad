"""What the rules of options have to know of a run, see `options.needs`."""

import jax

from dml_jax.options.needs import Run
from dml_jax.train import experiment as experiments
from dml_jax.train import mesh
from dml_jax.train.experiment import Experiment


def of(experiment: Experiment) -> Run:
    """The facts of a run whose data is known."""
    train, sampler, test = experiment.config.train, experiment.sampler, experiment.splits["test"]
    params = experiments.template(experiment).params if train.shard_classes else {}
    paths = (mesh.dict_keys(path) for path, _ in jax.tree_util.tree_leaves_with_path(params))
    first = train.evaluate_every or (sampler.first_step(1) if train.epochs else experiment.steps)
    return Run(
        steps=experiment.steps,
        epoch_end=lambda epoch: sampler.first_step(train.warmup_epochs + epoch),
        first_evaluation=first if first < experiment.steps else 0,
        candidates=len(test.labels) - 1 if test.gallery is None else len(test.gallery.labels),
        tables=any(experiment.method.class_axis(path) is not None for path in paths),
    )
