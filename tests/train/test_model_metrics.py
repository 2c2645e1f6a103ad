"""Evaluations: samples of the training classes, the final results, test-time refinement and test-time variants."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dml_jax.config import Data, Evaluation
from dml_jax.console import Console
from dml_jax.data.split import Split
from dml_jax.evaluation import metrics
from dml_jax.train import model_metrics, warm_start
from dml_jax.train.experiment import Experiment
from tests.train.experiments import on_patches, small
from tests.train.test_loop import checkpoints, compiled_once, train  # noqa: F401

pytestmark = pytest.mark.usefixtures("patches")
OPTIONS = Evaluation(cluster=False, ks=(1,))
CONFIG: Any = SimpleNamespace(evaluation=OPTIONS, data=Data())


def split(classes: int, each: int) -> Split:
    labels = np.repeat(np.arange(classes), each)
    read = lambda i, rng: np.full((1, 1, 3), labels[i], np.uint8)  # noqa: E731
    return Split(labels, [str(i) for i in range(len(labels))], read, [str(c) for c in range(classes)])


@pytest.mark.parametrize(
    ("train", "like", "classes"),
    [((40, 5), (10, 5), 10), ((40, 5), (80, 5), 40), ((40, 10), (30, 10), 20), ((40, 5), (30, 2), 12)],
)
def test_a_sample_of_training_classes(
    train: tuple[int, int], like: tuple[int, int], classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole classes, no more than there are to compare with, and SEEN images at most."""
    monkeypatch.setattr(model_metrics, "SEEN", 200)
    sampled: list[Split] = []

    def embed_split(model: Any, part: Split, on_progress: Any) -> np.ndarray:
        sampled.append(part)
        rows = np.eye(train[0], dtype=np.float32)[[part.read(i, None)[0, 0, 0] for i in range(len(part.labels))]]
        rows[0] = rows[-1]  # an image like those of another class
        return rows

    none: Any = None
    tested = model_metrics.VariantsEmbedder(SimpleNamespace(embed_split=embed_split), {"": slice(None)})  # type: ignore[arg-type]
    run: Any = SimpleNamespace(
        config=CONFIG, method=SimpleNamespace(distance="cosine"), splits={"train": split(*train)}
    )
    found = model_metrics.training_class_metrics(run, tested, "", none, split(*like), none)
    (part,) = sampled
    assert len(np.unique(part.labels)) == classes
    assert set(np.bincount(part.labels)) <= {0, train[1]}
    assert set(found) == {"train/recall@1", "train/map@r"}
    # That image is wrong and, as the first of equals, the nearest of all of the other class.
    assert found["train/recall@1"] == pytest.approx(1 - (1 + train[1]) / len(part.labels), abs=1e-9)


def test_the_distance_of_the_method_ranks() -> None:
    rows = np.array([[1.0, 0.0], [9.0, 0.0], [1.0, 1.0], [9.0, 1.0]], np.float32)
    by_second, by_first = split(2, 2), split(2, 2)._replace(labels=np.array([0, 1, 0, 1]))
    for part, cosine, euclidean in ((by_second, 0.75, 0.0), (by_first, 0.0, 1.0)):
        for distance, expected in (("cosine", cosine), ("euclidean", euclidean)):
            found = model_metrics.metrics(CONFIG, distance, {"test": part}, {"test": rows}, cluster=False)  # type: ignore[arg-type]
            assert found["recall@1"] == expected, distance


def test_controls_search_the_gallery() -> None:
    """Raw pixels and the untrained network get queries and gallery, as the model does."""
    config = small(steps=1)
    run = on_patches(replace(config, evaluation=replace(config.evaluation, controls=True)))
    test = run.splits["test"]

    def every_other(start: int) -> Split:
        rows = np.arange(start, 100, 2)
        return Split(
            test.labels[rows], [test.ids[i] for i in rows], lambda i, rng: test.read(rows[i], rng), test.classes
        )

    queries, gallery = every_other(0), every_other(1)
    run.splits.update(test=queries, gallery=gallery)
    state = warm_start.initial_state(run)
    results, _ = model_metrics.final(run, state, "last", Console(active=False))
    rows = []
    for split in (queries, gallery):
        pixels = np.stack([split.read(i, None) for i in range(50)]).reshape(50, -1).astype(np.float64)
        rows.append(pixels / np.linalg.norm(pixels, axis=1, keepdims=True))
    nearest = np.argmax(rows[0] @ rows[1].T, axis=1)
    expected = np.mean(queries.labels == gallery.labels[nearest])
    assert results["controls"]["raw pixels"]["recall@1"] == expected
    assert results["controls"]["untrained"]["recall@1"] == results["recall@1"]


TEST_VARIANTS: dict[str, dict[str, Any]] = {"whole": {}, "half": {}}


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    """A model with 8 dimensions, read whole or by the first 3."""
    config = small(steps=8, evaluate_every=4, select="test")
    made = on_patches(replace(config, evaluation=replace(config.evaluation, test_variants=TEST_VARIANTS)))
    embed = made.method.embed
    return made._replace(
        test_variants={"whole": embed, "half": lambda params, state, images: embed(params, state, images)[:, :3]}
    )


def test_all_readings_are_evaluated_and_the_best_is_reported(experiment: Experiment) -> None:
    state, test = warm_start.initial_state(experiment), experiment.splits["test"]
    rows = experiment.embedder(experiment.method.embed).embed_split(state, test)
    expected = {
        name: metrics.retrieval(part, test.labels)["recall@1"]
        for name, part in (("whole", rows), ("half", rows[:, :3]))
    }
    assert expected["whole"] != expected["half"]
    results, embeddings = model_metrics.final(experiment, state, "test", Console(active=False))
    assert {name: found["recall@1"] for name, found in results["test_variants"].items()} == pytest.approx(expected)
    best = max(expected, key=lambda name: expected[name])
    assert (results["test_variant"], results["recall@1"]) == (best, pytest.approx(expected[best]))
    np.testing.assert_allclose(embeddings["test"], rows if best == "whole" else rows[:, :3], rtol=1e-6)
    other = next(name for name in expected if name != best)
    options = replace(experiment.config.evaluation, test_variant=other)
    chosen = experiment._replace(config=replace(experiment.config, evaluation=options))
    results, _ = model_metrics.final(chosen, state, "test", Console(active=False))
    assert (results["test_variant"], results["recall@1"]) == (other, pytest.approx(expected[other]))


def test_models_are_selected_by_the_best_reading(experiment: Experiment, tmp_path: Path) -> None:
    """At every evaluation; the lines of metrics have all test-time variants."""
    train(experiment, tmp_path)
    lines = [line for line in workdir_lines(tmp_path) if "test/recall@1" in line]
    assert len(lines) == 2
    for line in lines:
        assert line["test/recall@1"] == max(line["test/recall@1 whole"], line["test/recall@1 half"])


def workdir_lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
