"""Scores of a trained model for its training classes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dml_jax
from dml_jax import files
from dml_jax.config import Config
from dml_jax.errors import DataError
from dml_jax.methods import baseline
from dml_jax.train import experiment as experiments
from dml_jax.train.records import workdir
from tests.train.experiments import linear, small
from tests.train.test_teacher import trained

IMAGES = list(np.random.default_rng(0).integers(0, 256, (3, 24, 24, 3), np.uint8))


def with_loss(loss: str) -> Config:
    return replace(linear(steps=5), method=baseline.make_config(loss, embedding_dim=8))


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("loss", "scale"), [("normalized_softmax", 20.0), pytest.param("soft_triple", 1.0, marks=SLOW)]
)
def test_logits_are_those_of_the_loss(loss: str, scale: float, tmp_path: Path) -> None:
    """A classifier's cosines divided by its temperature; those to the nearest proxy of each class without one."""
    model = dml_jax.load(trained(tmp_path / "run", with_loss(loss)))
    names, logits, classes = model.classify(IMAGES)
    proxies = np.asarray(model.trained.params["loss"]["proxies"], float)
    proxies /= np.linalg.norm(proxies, axis=-1, keepdims=True)
    cosines = np.einsum("nd,ckd->nck", model.embed(IMAGES), proxies.reshape(len(classes), -1, 8)).max(axis=2)
    np.testing.assert_allclose(logits, scale * cosines, atol=1e-4)
    assert classes == workdir.read_config(model.directory)["class_names"]
    assert names == [classes[best] for best in cosines.argmax(axis=1)]
    words = [f"word {number}" for number in reversed(range(len(classes)))]
    stored = workdir.read_config(model.directory)
    files.write_json(model.directory / "config.json", stored | {"class_names": words})
    named = dml_jax.load(model.directory).classify(IMAGES[:1])
    assert (named.classes, named.names) == (words, [words[cosines[0].argmax()]])
    np.testing.assert_allclose(named.logits, logits[:1], atol=1e-4)
    # An index is of one fingerprint, whether it is made in Python or with --scales=1,2.
    whole, same = (dml_jax.load(model.directory, scales=scales) for scales in ((1, 2), (1.0, 2.0)))
    assert whole.fingerprint == same.fingerprint != model.fingerprint


def test_runs_record_the_names_of_their_training_classes() -> None:
    experiment = experiments.build(linear(steps=5))
    assert experiment.provenance()["class_names"] == list(experiment.splits["train"].classes)


@pytest.mark.parametrize(
    ("config", "message"), [(with_loss("triplet"), "triplet"), pytest.param(small(steps=5), "hist", marks=SLOW)]
)
def test_models_without_a_classifier(config: Config, message: str, tmp_path: Path) -> None:
    model = dml_jax.load(trained(tmp_path / "run", config))
    with pytest.raises(DataError, match=f"run: was trained with {message}, which learns no classifier; enroll"):
        model.classify(IMAGES)
