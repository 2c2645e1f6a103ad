"""Starting from the variables of another run: which of them are taken over."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from dml_jax.config import Group, plugin_module, resolve
from dml_jax.console import Console
from dml_jax.methods import baseline
from dml_jax.methods.contract import PyTree
from dml_jax.train import experiment as experiments
from dml_jax.train import model, step, warm_start
from dml_jax.train.distributed import device_mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import model_files, workdir
from tests.train.experiments import drawn, values, write_run

pytestmark = pytest.mark.usefixtures("patches")
MEMORY = baseline.make_config(loss="triplet", embedding_dim=4, memory=16)
PROXIES = baseline.make_config(loss="proxy_anchor", embedding_dim=4)


def build(method: Any, *, validation_share: float = 0.0, **train: Any) -> Experiment:
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


def test_the_values_are_those_of_one_program() -> None:
    """They are drawn on the host, and then on every device."""
    experiment = build(MEMORY)
    key = jax.random.fold_in(experiment.key, 2**31 - 1)
    program = jax.jit(step.initial, static_argnums=(0, 1))
    expected = program(experiment.method, experiment.optimizer, key, experiment.example_batch())
    found = warm_start.initial_state(experiment)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), found, expected)
    assert len(jax.tree.leaves(found)[0].devices()) == experiment.mesh.size
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(found))


def test_what_past_batches_have_left_is_not_taken_over(tmp_path: Path) -> None:
    """The labels in a memory are those of the other run's classes."""
    params = saved(build(MEMORY), tmp_path / "run")
    state = started(build(MEMORY), tmp_path / "run")
    assert_equal(state.params, params)
    assert (state.model_state["memory"]["labels"] == -1).all()
    assert int(state.model_state["seen"]) == 0


def test_proxies_of_other_classes_are_not_taken_over(tmp_path: Path) -> None:
    """Even if there are as many."""
    params = saved(build(PROXIES), tmp_path / "run")
    experiment = build(PROXIES)
    train = experiment.splits["train"]
    renamed = train._replace(classes=[f"other {name}" for name in train.classes])
    other = experiment._replace(splits=experiment.splits | {"train": renamed})
    found = started(other, tmp_path / "run")
    assert_equal(found.params["embedding"], params["embedding"])
    assert_equal(found.params["loss"], warm_start.initial_state(other).params["loss"])


def test_a_frozen_backbone_may_be_trained_later(tmp_path: Path) -> None:
    """Its variables are then parameters instead of state."""
    saved(build(PROXIES, feature_views=1), tmp_path / "run")
    stats = model.load(tmp_path / "run", "latest").model_state["backbone"]
    state = started(build(PROXIES), tmp_path / "run")
    np.testing.assert_array_equal(state.params["backbone"]["bn"]["scale"], stats["bn"]["scale"])


def test_the_one_model_of_a_run_from_the_hub(tmp_path: Path) -> None:
    run, pulled = tmp_path / "run", tmp_path / "pulled"
    params = saved(build(PROXIES), run)
    model_files.write(pulled / model_files.DIRECTORY, model.load(run, "latest"), workdir.read_config(run))
    (run / "config.json").rename(pulled / "config.json")
    assert_equal(started(build(PROXIES), pulled).params, params)
