"""Embedding the images of a split; evaluations: samples of the training classes, final results, test-time variants."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from dml_jax.config import Data, Evaluation
from dml_jax.console import Console
from dml_jax.data.split import Split
from dml_jax.errors import DataError
from dml_jax.evaluation import metrics
from dml_jax.train import embedding, model_metrics, warm_start
from dml_jax.train import experiment as experiments
from dml_jax.train.experiment import Experiment
from tests.train.experiments import on_patches, small
from tests.train.loops import train

pytestmark = pytest.mark.usefixtures("patches", "compiled_once")
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


@pytest.mark.parametrize("total", [1, 447, 448, 449, 896])
def test_each_image_is_read_once_in_order(total: int) -> None:
    """Whatever the last batch holds; the function returns the pixels."""
    experiment = experiments.build(small(steps=1))
    whole = experiment.splits["test"]
    read: list[int] = []
    split = whole._replace(labels=whole.labels[:total], read=lambda i, rng: (read.append(i), whole.read(i, rng))[1])
    state: Any = SimpleNamespace(params={}, model_state={})
    embedder = experiment.embedder(lambda params, model_state, images: images.reshape(len(images), -1))
    found = embedder.embed_split(state, split)
    assert sorted(read) == list(range(total))
    np.testing.assert_array_equal(found, [whole.read(i, None).ravel() for i in range(total)])


@pytest.mark.parametrize("size", [23, 999])
def test_an_image_that_does_not_fit_is_named(size: int) -> None:
    experiment = experiments.build(small(steps=1))
    whole = experiment.splits["test"]
    split = whole._replace(read=lambda i, rng: np.zeros((3 if i == 7 else 24, size if i == 7 else 24, 3), np.uint8))
    state: Any = SimpleNamespace(params={}, model_state={})
    with pytest.raises(DataError, match=rf"^{whole.ids[7]}: is {size}x3 pixels, but the model takes images of 24x24"):
        experiment.embedder(lambda params, model_state, images: images[:, 0, 0]).embed_split(state, split)


IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 12, 3)).astype(np.uint8)


def projected(params: Any, model_state: Any, images: jax.Array) -> jax.Array:
    """Sums of the pixels of any size, weighted by their place; not of unit length."""
    across, down = (jnp.linspace(0, 1, side) for side in (images.shape[2], images.shape[1]))
    places = jnp.stack([across[None] + 0 * down[:, None], down[:, None] ** 2 + 0 * across[None]])
    return jnp.einsum("bhwc,phw->bpc", images / 255, places).reshape(len(images), 6)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("flip", [False, True])
def test_the_mean_over_versions(flip: bool) -> None:
    averaged = jax.jit(embedding.averaged(projected, flip=flip, scales=(1.0, 2.0, 0.5)))
    total = np.zeros((3, 6))
    for size in ((12, 8), (24, 16), (6, 4)):
        resized = np.stack(
            [np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR)) for image in IMAGES]
        )
        for version in (resized, resized[:, :, ::-1])[: 1 + flip]:
            total += unit(np.asarray(projected({}, {}, jnp.asarray(version))))
    found = np.asarray(averaged({}, {}, jnp.asarray(IMAGES)))
    np.testing.assert_allclose(found, unit(total), atol=2e-3)  # pixels may round to the next number
    if flip:
        np.testing.assert_allclose(averaged({}, {}, jnp.asarray(IMAGES[:, :, ::-1])), found, atol=2e-3)
