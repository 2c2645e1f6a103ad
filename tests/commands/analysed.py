"""Runs to be analysed, and what an analysis has written."""

import csv
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from dml_jax import files
from dml_jax.config import Config, Group, Train, resolve
from dml_jax.methods import baseline
from dml_jax.train import experiment as experiments
from dml_jax.train import warm_start
from tests.train.experiments import values, write_run


def write(directory: Path, config: Config) -> Path:
    """What a finished run leaves, with the untrained model as its checkpoints of steps 2 and 4."""
    experiment = experiments.build(config)
    state = warm_start.initial_state(experiment)
    for step in (2, 4):
        write_run(directory, experiment, state._replace(step=jnp.asarray(step, jnp.int32)))
    lines: list[dict[str, Any]] = [{"step": step, "loss": 1.0} for step in (2, 4)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files.write_json(
        directory / "results.json", {"model": "last", "step": 4, "recall@1": 0.5, "map@r": 0.1, "protocol": "clean"}
    )
    return directory


def table(directory: Path, name: str, folder: str = "analysis") -> list[dict[str, str]]:
    with (directory / folder / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def figures(report: str) -> list[str]:
    """The names of the figures of a page."""
    return re.findall('<figure [^>]*?id="([\\w-]+)"', report)


def tiny() -> Config:
    """A linear embedding of digits, trained for four steps, keeping two models."""
    train = Train(groups={group: Group(1e-3) for group in baseline.GROUPS}, steps=4, keep_every=2, log_every=2)
    method = asdict(baseline.make_config("proxy_anchor", embedding_dim=8))
    return resolve(values(steps=4) | {"name": "tiny", "method": method, "train": asdict(train)})
