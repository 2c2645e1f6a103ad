"""Small experiments on the built-in digits, for tests of the training."""

from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from dml_jax import files
from dml_jax.backbones import resnet
from dml_jax.config import Config, Group, Train, plugin_module, resolve
from dml_jax.console import Console
from dml_jax.methods import baseline
from dml_jax.methods.contract import PyTree
from dml_jax.train import experiment as experiments
from dml_jax.train import warm_start
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import device_mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import workdir
from dml_jax.train.step import TrainState
from tests import toys


def values(**train: Any) -> dict[str, Any]:
    """A configuration that trains with proxies on digits, with a few thousand parameters."""
    groups = {group: Group(1e-3, weight_decay=1e-4) for group in baseline.GROUPS}
    return {
        "name": "small",
        "data": {"name": "digits", "batch_size": 16, "images_per_class": 4, "threads": 1},
        "backbone": asdict(resnet.Config(block="basic", depths=(1,), widths=(4,), stem="small")),
        "method": asdict(baseline.make_config("proxy_anchor", embedding_dim=8)),
        "train": asdict(Train(groups=groups, **train)),
        "evaluation": {"cluster": False, "ks": (1,), "batch_size": 448},
    }


def small(*, data: Any = (), **train: Any) -> Config:
    """The same, resolved."""
    given = values(**train)
    given["data"] |= dict(data)
    return resolve(given)


def on_patches(config: Config) -> Experiment:
    """On `toys.backbone` and one device, with a test split of a hundred images; compiles in a fraction of a second."""
    experiment = experiments.build(config)
    train, test = experiment.splits["train"], experiment.splits["test"]
    few = test._replace(labels=test.labels[:100], ids=test.ids[:100])
    method = baseline.build(config.method, toys.backbone(4), experiments.training_set(train))
    mesh = Mesh(np.asarray(jax.devices()[:1]), ("data",))
    return experiment._replace(mesh=mesh, method=method, splits=experiment.splits | {"test": few})


def drawn(shapes: Any, seed: int = 0) -> Any:
    """Random positive numbers of the given shapes and types; variances may not be negative."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.uniform(1, 2, x.shape).astype(x.dtype), shapes)


def write_run(directory: Path, experiment: Experiment, state: TrainState) -> Checkpoints:
    """Makes a work directory with a state as its only checkpoint; returns the checkpoints, which are closed."""
    directory.mkdir(exist_ok=True)
    facts = experiment.provenance()
    files.write_json(directory / "config.json", facts)
    with closing(Checkpoints(directory / "checkpoints", lambda: state, pytest.fail, run=facts)) as store:
        store.save("latest", state, {})
    return store


def of_method(method: Any, *, validation_share: float = 0.0, **train: Any) -> Experiment:
    given = values(steps=3, **train)
    given["method"] = asdict(method)
    given["train"]["groups"] = {name: asdict(Group(1e-3)) for name in plugin_module("method", method.name).GROUPS}
    if train.get("feature_views"):
        given["train"]["groups"]["backbone"]["freeze"] = True
    given["data"]["validation_share"] = validation_share
    return experiments.build(resolve(given))


def saved(experiment: Experiment, directory: Path) -> PyTree:
    """Random variables as the only checkpoint of a run; returns the parameters."""
    state = drawn(experiment.template())._replace(step=np.int32(3))
    write_run(directory, experiment, device_mesh.place(experiment.mesh, state))
    return state.params


def started(experiment: Experiment, source: Path) -> Any:
    return warm_start.initial_state(experiment._replace(start=str(source)), Console(quiet=True))


def assert_equal(a: PyTree, b: PyTree) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def trained(directory: Path, config: Config, step: int = 5) -> Path:
    """A work directory with a checkpoint of a random model."""
    experiment = experiments.build(config)
    state = device_mesh.place(experiment.mesh, drawn(experiment.template(), config.seed)._replace(step=np.int32(step)))
    write_run(directory, experiment, state)
    length = {"steps": config.train.steps, "epochs": config.train.epochs}
    made = experiment.model(state).identity()
    results = {"step": step, "length": length, "identity": made.sha256}
    files.write_json(directory / "results.json", results)
    workdir.finish(directory, f"checkpoints/latest/{step}", made)
    return directory
