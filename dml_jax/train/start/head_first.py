"""A head is trained on frozen features before the whole network (`head` of a configuration)."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from dml_jax import buckets, files
from dml_jax import config as configs
from dml_jax.config import Config
from dml_jax.console import Console
from dml_jax.train import loop, on_devices
from dml_jax.train.distributed import device_memory, mesh
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import facts, outputs
from dml_jax.train.records.jsonl import JsonLines
from dml_jax.train.start import frozen_features

DIRECTORY = "head"  # in the work directory: that of the head


def head_config(config: Config) -> Config:
    """The configuration of the training on frozen features that precedes a run."""
    assert config.head is not None
    made = replace(config, name=f"{config.name}-{DIRECTORY}", train=config.head, head=None)
    return configs.settled(made)  # without the augmentation that features do not have


def with_head(experiment: Experiment, directory: Path, console: Console, stop: Stop) -> Experiment:
    """Trains everything but the backbone in `<workdir>/head`; returns the experiment that starts from there."""
    head = directory / DIRECTORY
    console.print(f"training all but the backbone first, on frozen features: {head}")
    first = facts.build(head_config(experiment.config))
    run = facts.of_run(first)
    if mesh.is_main_process():
        head.mkdir(exist_ok=True)
        files.write_json(head / "config.json", run)
        buckets.push(head)
    first = frozen_features.with_features(first, head, console, stop)
    metrics = JsonLines(head / "metrics.jsonl", mesh.is_main_process())
    recorded = outputs.opened(head, run, partial(on_devices.template, first), console, metrics)
    with recorded as out, device_memory.of_training(first.config):
        loop.train(first, out, stop)
    buckets.pull(directory)  # on the other processes, which have written nothing
    return experiment._replace(start=str(head))
