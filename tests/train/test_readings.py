"""Several test-time readings of one model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from dml_jax import config as configs
from dml_jax.config import Config, Evaluation
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.evaluation import metrics
from dml_jax.files import write_json
from dml_jax.methods import crt, diva
from dml_jax.train import evaluations, model
from dml_jax.train import experiment as experiments
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import workdir
from tests.train.experiments import linear, on_patches, values
from tests.train.test_loop import checkpoints, compiled_once, train  # noqa: F401

OPTIONS: dict[str, dict[str, Any]] = {"whole": {}, "half": {}}


def diva_config(select: str = "last", **evaluation: Any) -> Config:
    given = values(steps=4, select=select)
    groups = dict.fromkeys(diva.GROUPS, given["train"]["groups"]["backbone"])
    given["train"]["groups"] = groups
    given["method"] = {"name": "diva", "embedding_dim": 4, "psi_dim": 4, "queue_batches": 1}
    given["evaluation"] |= {
        "readings": {"a": {"ensemble": [1, 0, 0, 0]}, "b": {"ensemble": [0, 1, 1, 1]}},
        **evaluation,
    }
    return configs.resolve(given)


@pytest.fixture
def experiment() -> Experiment:
    """A model with 8 dimensions, read whole or by the first 3."""
    config = linear(steps=8, evaluate_every=4, select="test")
    made = on_patches(replace(config, evaluation=replace(config.evaluation, readings=OPTIONS)))
    embed = made.method.embed
    return made._replace(
        readings={"whole": embed, "half": lambda params, state, images: embed(params, state, images)[:, :3]}
    )


def test_all_readings_are_evaluated_and_the_best_is_reported(experiment: Experiment) -> None:
    state, test = experiment.initial_state(), experiment.splits["test"]
    rows = experiment.embedder(experiment.method.embed).embed_split(state, test)
    expected = {
        name: metrics.retrieval(part, test.labels)["recall@1"]
        for name, part in (("whole", rows), ("half", rows[:, :3]))
    }
    assert expected["whole"] != expected["half"]
    results, embeddings = evaluations.final(experiment, state, "test", Console(active=False))
    assert {name: found["recall@1"] for name, found in results["readings"].items()} == pytest.approx(expected)
    best = max(expected, key=lambda name: expected[name])
    assert (results["reading"], results["recall@1"]) == (best, pytest.approx(expected[best]))
    np.testing.assert_allclose(embeddings["test"], rows if best == "whole" else rows[:, :3], rtol=1e-6)
    other = next(name for name in expected if name != best)
    options = replace(experiment.config.evaluation, reading=other)
    chosen = experiment._replace(config=replace(experiment.config, evaluation=options))
    results, _ = evaluations.final(chosen, state, "test", Console(active=False))
    assert (results["reading"], results["recall@1"]) == (other, pytest.approx(expected[other]))


def test_models_are_selected_by_the_best_reading(experiment: Experiment, tmp_path: Path) -> None:
    """At every evaluation; the lines of metrics have all readings."""
    train(experiment, tmp_path)
    lines = [line for line in workdir_lines(tmp_path) if "test/recall@1" in line]
    assert len(lines) == 2
    for line in lines:
        assert line["test/recall@1"] == max(line["test/recall@1 whole"], line["test/recall@1 half"])


def workdir_lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_a_reading_is_the_method_with_its_options() -> None:
    """Of DiVA, computed from its embeddings one by one."""
    config = diva_config()
    experiment = experiments.build(config)
    state = experiment.initial_state()
    images = np.random.default_rng(0).integers(0, 256, (5, *experiment.shape, 3), dtype=np.uint8)
    encoded, _ = experiment.method.encode(state.params, state.model_state, images[None], train=False)
    own, *others = (np.asarray(encoded.embeddings[task]) for task in diva.TASKS)
    found = {
        name: np.asarray(jax.jit(f)(state.params, state.model_state, images)) for name, f in experiment.readings.items()
    }
    for name, parts in (("a", [own]), ("b", others)):
        expected = np.concatenate(parts, axis=1) / np.sqrt(len(parts))
        shown = found[name][:, np.abs(found[name]).max(axis=0) > 0]
        np.testing.assert_allclose(shown, expected, rtol=1e-4, atol=1e-6)
    assert {config.method.ensemble for config in (model.read_as(config, "a"),)} == {(1.0, 0.0, 0.0, 0.0)}


def test_a_finished_run_is_read_again(tmp_path: Path) -> None:
    """With other weights or readings, but training goes on only as models were selected."""
    for select in ("last", "test"):
        config = diva_config(select)
        write_json(tmp_path / "config.json", workdir.provenance(config, "", ["a", "b", "c", "d"], 64, (8, 8)))
        other = replace(config, method=replace(config.method, ensemble=(1.0, 5.0, 5.0, 5.0)))
        other = replace(other, evaluation=replace(other.evaluation, readings={}, reading="best"))
        workdir.check_same_run(tmp_path, other, selecting=False)
        if select == "last":
            workdir.check_same_run(tmp_path, other)
        else:
            with pytest.raises(CheckpointError, match=r"another configuration: evaluation\.readings.*method\.ensemble"):
                workdir.check_same_run(tmp_path, other)


def test_the_reading_of_the_results_is_that_of_the_model(tmp_path: Path) -> None:
    config = diva_config()
    assert model.reading_in_results(config, tmp_path) == ""
    for name, expected in (("b", "b"), ("c", "")):
        write_json(tmp_path / "results.json", {"reading": name})
        assert model.reading_in_results(config, tmp_path) == expected


def test_invalid_readings() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.reading='c': must be one of best, a, b"):
        diva_config(reading="c")
    with pytest.raises(ConfigError, match="must not use the name 'best'"):
        Evaluation(readings={"best": {}})
    for options, message in (
        ({"rho": [1.0]}, r"evaluation\.readings\.a\.rho: method diva allows readings only of ensemble"),
        ({"ensemble": [1.0]}, r"evaluation\.readings\.a\.ensemble.*wrong number of values"),
    ):
        with pytest.raises(ConfigError, match=message):
            model.read_as(diva_config(readings={"a": options}), "a")
    config = linear(steps=4)
    config = replace(config, evaluation=replace(config.evaluation, readings={"a": {"x": 1}}))
    with pytest.raises(ConfigError, match="method baseline allows readings of no option"):
        model.read_as(config, "a")
    assert crt.TEST_TIME == ("tested_branch",)
