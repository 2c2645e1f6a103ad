"""The facts that make up a run: what `config.json` holds, and what all processes must agree on."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dml_jax import config as configs
from dml_jax.config import Config
from dml_jax.console import Console
from dml_jax.errors import CheckpointError
from dml_jax.train import experiment as experiments
from dml_jax.train.distributed import process_group
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import workdir

PER_PROCESS = ("data.path", "data.threads", "data.workers")  # may differ between processes


def build(config: Config) -> Experiment:
    """`experiment.build`, with a check that all processes have built the same.

    They may differ in where they read the data and how (`PER_PROCESS`), not in anything else.
    """
    experiment = experiments.build(config)
    options = {key: value for key, value in configs.flatten(asdict(config)).items() if key not in PER_PROCESS}
    libraries = {f"version of {name}": number for name, number in workdir.versions().items()}
    digests = {"data (SHA-256)": experiments.data_hash(experiment.splits), "code (SHA-256)": workdir.source_digest()}
    process_group.check_same(options | libraries | digests)
    return experiment


def of_run(experiment: Experiment) -> dict[str, Any]:
    """The contents of `config.json`, except for the teacher; `Model.classify` reads the names of the classes."""
    split, data_hash = experiment.splits["train"], experiments.data_hash(experiment.splits)
    sizes = len(split.classes), len(split.labels)
    names = {"class_names": [str(name) for name in split.classes]}
    return workdir.provenance(experiment.config, data_hash, *sizes, experiment.shape) | names


def check_data_fits(directory: Path, facts: Mapping[str, Any], experiment: Experiment, console: Console) -> None:
    """Raises CheckpointError if the data cannot be that of the run; warns if it differs but has the same sizes."""
    data, split = experiment.config.data, experiment.splits["train"]
    sizes = {"classes": len(split.classes), "images": len(split.labels), "shape": list(experiment.shape)}
    for key, here in sizes.items():
        if facts[key] != here:
            raise CheckpointError(
                f"data.path={data.path}: has training {key} {here}, the run in {directory} had {facts[key]}; give the "
                "data of the run, or evaluate other data with dml-jax embed and dml-jax evaluate"
            )
    if facts["data_hash"] != experiments.data_hash(experiment.splits):
        console.print(f"warning: data.path={data.path}: not the images that the run in {directory} was trained on")
