"""The relation of classes: its values are checked once, and it reaches every part of a run."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.config import resolve
from dml_jax.config.modules import import_code
from dml_jax.data import relations
from dml_jax.errors import ConfigError
from dml_jax.methods import baseline
from dml_jax.train import experiment as experiments
from dml_jax.train import model_metrics, step
from tests import toys
from tests.plugins import graded
from tests.plugins.relation import shared_tags
from tests.train.experiments import values

PATH = "tests.plugins.relation.shared_tags"
NAMES = ["red round", "red square", "blue round", "grey"]


def test_weights_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [[1, 1 / 3, 1 / 3, 0], [1 / 3, 1, 0, 0], [1 / 3, 0, 1, 0], [0, 0, 0, 1]]
    weights = relations.class_weights(PATH, NAMES)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    assert relations.class_weights("", NAMES) is None
    neither = np.where(np.eye(4), 1, np.nan)
    monkeypatch.setattr("tests.plugins.relation.shared_tags", lambda a, b: neither)
    np.testing.assert_array_equal(relations.class_weights(PATH, NAMES), neither)


@pytest.mark.parametrize(
    ("relation", "message"),
    [
        (lambda a, b: -np.ones((4, 4)), r"returns float64 \[4, 4\]; give \[4, 4\] for 4 names, we"),
        (lambda a, b: np.full((4, 4), np.inf), "weights from 0 on or NaN"),
        (lambda a, b: np.ones(4), r"returns float64 \[4\]; give \[4, 4\] for 4 names"),
        (lambda a, b: np.full((4, 4), "a"), r"returns <U1 \[4, 4\]"),
    ],
)
def test_weights_that_are_none(relation: Callable[..., Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.plugins.relation.shared_tags", relation)
    with pytest.raises(ConfigError, match=message):
        relations.class_weights(PATH, NAMES)


def test_more_classes_than_have_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relations, "MOST", 3)
    message = "at most 3 training classes have weights, the data has 4; join classes"
    with pytest.raises(ConfigError, match=message):
        relations.class_weights(PATH, NAMES)


def test_a_method_that_compares_classes_only() -> None:
    options = values(steps=1)
    options["data"]["relation"] = PATH
    message = f"data.relation='{PATH}': method baseline compares only classes; use the baseline w"
    with pytest.raises(ConfigError, match=message):
        experiments.build(resolve(options))


def test_the_papers_protocol_needs_equal_classes() -> None:
    """It would fail at the first evaluation."""
    values = graded.get_config().to_dict()
    values["evaluation"]["protocol"] = "paper"
    import_code(values)
    message = f"evaluation.protocol='paper': drops the nearest image .* data.relation='{PATH}'"
    with pytest.raises(ConfigError, match=message):
        experiments.build(resolve(values))


def test_it_reaches_sampler_loss_memory_and_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's experiment: a step of it, and its metrics."""
    values = graded.get_config().to_dict()
    import_code(values)
    config = resolve(values)
    build, of_run = baseline.build, []
    with monkeypatch.context() as patched:
        patched.setattr(baseline, "build", lambda *arguments: of_run.append(arguments[2]) or build(*arguments))
        run = experiments.build(config)
    train = run.splits["train"]
    weights = shared_tags(train.classes, train.classes)
    np.testing.assert_allclose(of_run[0].relation, weights, rtol=1e-6)
    index = run.sampler.batch(0)
    classes = train.labels[index].reshape(-1, 4)[:, 0]
    assert all(weights[a, b] > 0 for a, b in classes.reshape(-1, 2))

    data = experiments.training_set(train)._replace(relation=weights)
    method = baseline.build(config.method, toys.linear(), data)
    batch = toys.batch(1, size=32)._replace(labels=np.asarray(train.labels[index], np.int32))
    params, model_state = toys.drawn(method)
    loss = jax.jit(lambda *arguments: step.loss(method, *arguments))
    _, aux = loss(params, model_state, batch, np.int32(0), jax.random.key(1))
    x = jax.jit(method.embed)(params, model_state, batch.images[0])
    pairs = weights[np.ix_(batch.labels, batch.labels)]
    expected = jax.jit(losses.sup_con)(x, positive=np.where(np.eye(32, dtype=bool), 0, pairs), negative=pairs == 0)
    assert float(aux.metrics["memory"]) == pytest.approx(float(expected), rel=1e-5)

    test = run.splits["test"]
    few = np.arange(0, len(test.labels), 5)
    rows = np.random.default_rng(0).normal(size=(len(few), 3)).astype(np.float32)
    part = test._replace(labels=test.labels[few], ids=[test.ids[i] for i in few])
    results = model_metrics.metrics(config, "cosine", {"test": part}, {"test": rows}, cluster=False)
    grades = shared_tags(test.classes, test.classes)[np.ix_(part.labels, part.labels)]
    cosine = rows @ rows.T / np.outer(*[np.linalg.norm(rows, axis=1)] * 2)
    np.fill_diagonal(cosine, -2)
    best = np.take_along_axis(grades, cosine.argmax(axis=1)[:, None], axis=1)[:, 0]
    np.fill_diagonal(grades, 0)
    assert results["ndcg@1"] == pytest.approx(np.mean(best / grades.max(axis=1)), rel=1e-6)
    assert "relevance by" in model_metrics.protocol_of(run, "test")
