"""DiVA in training: test-time variants, warm start, frozen groups, many classes and accelerators."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from dml_jax.config import Config, resolve
from dml_jax.errors import CheckpointError
from dml_jax.files import write_json
from dml_jax.methods import baseline, diva
from dml_jax.train import experiment as experiments
from dml_jax.train import model, warm_start
from dml_jax.train.records import workdir
from tests.train.experiments import assert_equal, of_method, saved, started, values

pytestmark = pytest.mark.usefixtures("patches", "compiled_once")


def diva_config(select: str = "last", **evaluation: Any) -> Config:
    given = values(steps=4, select=select)
    groups = dict.fromkeys(diva.GROUPS, given["train"]["groups"]["backbone"])
    given["train"]["groups"] = groups
    given["method"] = {"name": "diva", "embedding_dim": 4, "psi_dim": 4, "queue_batches": 1}
    given["evaluation"] |= {
        "test_variants": {"a": {"ensemble": [1, 0, 0, 0]}, "b": {"ensemble": [0, 1, 1, 1]}},
        **evaluation,
    }
    return resolve(given)


def test_a_reading_is_the_method_with_its_options() -> None:
    """The reference is computed from DiVA's embeddings one by one."""
    config = diva_config()
    experiment = experiments.build(config)
    state = warm_start.initial_state(experiment)
    images = np.random.default_rng(0).integers(0, 256, (5, *experiment.shape, 3), dtype=np.uint8)

    @jax.jit
    def embed(params: Any, model_state: Any) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        encoded, _ = experiment.method.encode(params, model_state, images[None], train=False)
        return encoded.embeddings, {
            name: f(params, model_state, images) for name, f in experiment.test_variants.items()
        }

    embeddings, found = jax.device_get(embed(state.params, state.model_state))
    own, *others = (embeddings[task] for task in diva.TASKS)
    for name, parts in (("a", [own]), ("b", others)):
        expected = np.concatenate(parts, axis=1) / np.sqrt(len(parts))
        shown = found[name][:, np.abs(found[name]).max(axis=0) > 0]
        np.testing.assert_allclose(shown, expected, rtol=1e-4, atol=1e-6)
    assert {config.method.ensemble for config in (model.with_test_variant(config, "a"),)} == {(1.0, 0.0, 0.0, 0.0)}


def test_a_finished_run_is_read_again(tmp_path: Path) -> None:
    """With other weights or variants, but training goes on only as models were selected."""
    for select in ("last", "test"):
        config = diva_config(select)
        write_json(tmp_path / "config.json", workdir.provenance(config, "", ["a", "b", "c", "d"], 64, (8, 8)))
        other = replace(config, method=replace(config.method, ensemble=(1.0, 5.0, 5.0, 5.0)))
        other = replace(other, evaluation=replace(other.evaluation, test_variants={}, test_variant="best"))
        workdir.check_same_run(tmp_path, {"config": asdict(other)}, selecting=False)
        if select == "last":
            workdir.check_same_run(tmp_path, {"config": asdict(other)})
        else:
            with pytest.raises(
                CheckpointError, match=r"a different configuration: evaluation\.test_variants.*method\.ensemble"
            ):
                workdir.check_same_run(tmp_path, {"config": asdict(other)})


def test_the_reading_of_the_results_is_that_of_the_model(tmp_path: Path) -> None:
    config = diva_config()
    assert model.reading_in_results(config, tmp_path) == ""
    for name, expected in (("b", "b"), ("c", "")):
        write_json(tmp_path / "results.json", {"test_variant": name})
        assert model.reading_in_results(config, tmp_path) == expected


def test_the_key_network_is_a_copy_of_the_network(tmp_path: Path) -> None:
    """Also if another method has trained the network."""
    params = saved(of_method(baseline.make_config("proxy_anchor", embedding_dim=4)), tmp_path / "run")
    experiment = of_method(diva.Config(embedding_dim=4, queue_batches=1))
    state = started(experiment, tmp_path / "run")
    with experiment.batches(0, 1) as batches:
        batch = experiment.device_batch(*next(batches))
    filled = experiment.method.hooks.fill(state.params, state.model_state, [batch])
    assert_equal(filled["key"]["backbone"], params["backbone"])
    assert_equal(filled["key"]["heads"], state.params["heads"])
    assert_equal(filled["key"]["stats"], state.model_state["backbone"])
