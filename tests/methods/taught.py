"""What a trained model teaches, and whether it is the logits of its loss."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.methods.contract import Batch, Method, Teaching, TrainingSet, teaching
from tests import toys

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
