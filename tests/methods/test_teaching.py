"""What trained models teach: logits of their loss, or embeddings alone."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.methods import baseline
from dml_jax.methods.contract import Batch, Method, Teaching, TrainingSet, teaching
from tests import toys
from tests.plugins import method as plugin

CLASSES = 4
DATA = TrainingSet(CLASSES, 16)


def teach(method: Method, params: Any, state: Any, batch: Batch) -> Teaching:
    return jax.jit(teaching(method))(params, state, batch.images[0])


def with_teacher(batch: Batch, outputs: Teaching) -> Batch:
    """The batch with a teacher whose outputs are constant."""
    return batch._replace(teacher=jax.tree_util.Partial(lambda outputs, images: outputs, outputs))


def loss(method: Method, params: Any, state: Any, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """(value, terms), with the running batch statistics of the backbone, as for `teach`."""
    encoded, state = method.encode(params, state, batch.images, train=False)
    value, aux = method.loss(params, state, encoded, batch, jnp.int32(0), jax.random.key(1))
    return value, aux.metrics


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)


def check_logits(method: Method) -> None:
    """The loss of the method, or its term "classification", is the cross-entropy of the logits that it teaches."""
    batch = toys.batch(1)
    params, state = toys.drawn(method)
    outputs = teach(method, params, state, batch)
    p = softmax(np.asarray(outputs.logits, float))
    expected = -np.log(p[np.arange(16), np.asarray(batch.labels)]).mean()
    value, terms = jax.jit(partial(loss, method))(params, state, with_teacher(batch, outputs))
    assert float(terms.get("classification", value)) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(np.linalg.norm(outputs.embeddings, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("name", ["cross_entropy", "normalized_softmax", "arcface", "cosface"])
def test_classifiers_teach_the_logits_of_their_loss(name: str) -> None:
    options = {"margin": 0.0} if name in ("arcface", "cosface") else {}
    config = baseline.make_config(name, options, embedding_dim=8)
    check_logits(baseline.build(config, toys.backbone(), DATA))


def test_methods_without_a_classifier_teach_no_logits() -> None:
    """A baseline of pairs, and a method without the hook."""
    pairs = baseline.build(baseline.make_config("triplet", embedding_dim=8), toys.backbone(), DATA)
    for method in (pairs, plugin.build(plugin.Config(embedding_dim=8), toys.backbone(), DATA)):
        batch = toys.batch(1)
        params, state = toys.drawn(method)
        outputs = teach(method, params, state, batch)
        assert outputs.logits is None
        embeddings = jax.jit(method.embed)(params, state, batch.images[0])
        np.testing.assert_allclose(outputs.embeddings, embeddings, rtol=1e-6)
