"""Starting from the variables of another run: which of them are taken over."""

from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from dml_jax.methods import baseline
from dml_jax.train import model, step, warm_start
from dml_jax.train.records import model_files, workdir
from tests.train.experiments import assert_equal, of_method, saved, started

pytestmark = pytest.mark.usefixtures("patches")
MEMORY = baseline.make_config(loss="triplet", embedding_dim=4, memory=16)
PROXIES = baseline.make_config(loss="proxy_anchor", embedding_dim=4)


def test_the_values_are_those_of_one_program() -> None:
    """They are drawn on the host, and then on every device."""
    experiment = of_method(MEMORY)
    key = jax.random.fold_in(experiment.key, 2**31 - 1)
    program = jax.jit(step.initial, static_argnums=(0, 1))
    expected = program(experiment.method, experiment.optimizer, key, experiment.example_batch())
    found = warm_start.initial_state(experiment)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), found, expected)
    assert len(jax.tree.leaves(found)[0].devices()) == experiment.mesh.size
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(found))


def test_what_past_batches_have_left_is_not_taken_over(tmp_path: Path) -> None:
    """The labels in a memory are those of the other run's classes."""
    params = saved(of_method(MEMORY), tmp_path / "run")
    state = started(of_method(MEMORY), tmp_path / "run")
    assert_equal(state.params, params)
    assert (state.model_state["memory"]["labels"] == -1).all()
    assert int(state.model_state["seen"]) == 0


def test_proxies_of_other_classes_are_not_taken_over(tmp_path: Path) -> None:
    """Even if there are as many."""
    params = saved(of_method(PROXIES), tmp_path / "run")
    experiment = of_method(PROXIES)
    train = experiment.splits["train"]
    renamed = train._replace(classes=[f"other {name}" for name in train.classes])
    other = experiment._replace(splits=experiment.splits | {"train": renamed})
    found = started(other, tmp_path / "run")
    assert_equal(found.params["embedding"], params["embedding"])
    assert_equal(found.params["loss"], warm_start.initial_state(other).params["loss"])


def test_a_frozen_backbone_may_be_trained_later(tmp_path: Path) -> None:
    """Its variables are then parameters instead of state."""
    saved(of_method(PROXIES, feature_views=1), tmp_path / "run")
    stats = model.load(tmp_path / "run", "latest").model_state["backbone"]
    state = started(of_method(PROXIES), tmp_path / "run")
    np.testing.assert_array_equal(state.params["backbone"]["bn"]["scale"], stats["bn"]["scale"])


def test_the_one_model_of_a_run_from_the_hub(tmp_path: Path) -> None:
    run, pulled = tmp_path / "run", tmp_path / "pulled"
    params = saved(of_method(PROXIES), run)
    model_files.write(pulled / model_files.DIRECTORY, model.load(run, "latest"), workdir.read_config(run))
    (run / "config.json").rename(pulled / "config.json")
    assert_equal(started(of_method(PROXIES), pulled).params, params)
