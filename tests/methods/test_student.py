"""Students: the teacher's term against NumPy in float64; the loss of a batch; outputs of teachers; errors."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.errors import ConfigError
from dml_jax.methods import student
from dml_jax.methods.contract import Method, Teaching
from tests import toys
from tests.methods.taught import DATA, check_logits, loss, softmax, teach, with_teacher

SMALL = student.Config(teacher="runs/teacher", embedding_dim=8)
KINDS = ("distillation", "distillation_kl", "imitation", "relational")
rng = np.random.default_rng(0)
EMBEDDINGS, TEACHER_EMBEDDINGS = 1.5 * rng.normal(size=(2, 6, 5))  # some differences exceed delta
LOGITS, TEACHER_LOGITS = 4 * rng.normal(size=(2, 6, 7))


def huber(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 1, x * x / 2, np.abs(x) - 0.5)


def relative_distances(x: np.ndarray) -> np.ndarray:
    distances = np.array([[huber(a - b).sum() for b in x] for a in x])
    return distances / distances.mean()


def reference(embeddings: np.ndarray, logits: np.ndarray, kind: str, tau: float) -> float:
    p, q = softmax(TEACHER_LOGITS / tau), softmax(logits / tau)
    match kind:
        case "distillation":
            return float(np.mean([-sum(a * np.log(b)) for a, b in zip(p, q, strict=True)]))
        case "distillation_kl":
            return float(np.sum(p * np.log(p / q)) / p.size)
        case "imitation":
            return float(huber(embeddings - TEACHER_EMBEDDINGS).sum() / embeddings.size)
        case _:
            theirs, ours = map(relative_distances, (TEACHER_EMBEDDINGS, embeddings))
            return float(np.abs(theirs - ours).sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tau", [1.0, 10.0])
def test_values_and_gradients(kind: Any, tau: float, x64: None) -> None:
    config = replace(SMALL, kind=kind, soft_temperature=tau)
    outputs = Teaching(jnp.asarray(TEACHER_EMBEDDINGS), jnp.asarray(TEACHER_LOGITS))
    term = jax.value_and_grad(lambda x, z: student.teacher_loss(x, z, outputs, config), (0, 1))
    value, gradients = jax.jit(term)(jnp.asarray(EMBEDDINGS), jnp.asarray(LOGITS))
    assert float(value) == pytest.approx(reference(EMBEDDINGS, LOGITS, kind, tau), rel=1e-12)
    delta = 1e-6
    for which, gradient in enumerate(gradients):
        for position in ((0, 0), (3, 4), (5, 2)):
            ends = []
            for sign in (1, -1):
                inputs = [EMBEDDINGS.copy(), LOGITS.copy()]
                inputs[which][position] += sign * delta
                ends.append(reference(*inputs, kind, tau))
            slope = (ends[0] - ends[1]) / (2 * delta)
            assert float(gradient[position]) == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_relational_loss_of_equal_embeddings() -> None:
    """Finite, and equal to the sum of the teacher's relative distances."""
    config = replace(SMALL, kind="relational")
    outputs = Teaching(jnp.asarray(TEACHER_EMBEDDINGS, jnp.float32))
    relational = jax.value_and_grad(lambda x: student.teacher_loss(x, x, outputs, config))
    value, gradient = jax.jit(relational)(jnp.ones((6, 5)))
    assert float(value) == pytest.approx(36)  # their mean is 1
    assert np.isfinite(gradient).all()


def build(config: student.Config) -> tuple[Method, Any, Any]:
    method = student.build(config, toys.backbone(), DATA)
    return method, *toys.drawn(method)


def test_loss_of_a_batch() -> None:
    """The teacher gets the images of the batch, and no gradient."""
    config = replace(SMALL, kind="imitation", weight=3.0, smoothing=0.0)
    method, params, state = build(config)
    batch = toys.batch(1)

    def teacher(scale: jax.Array, images: jax.Array) -> Teaching:
        return Teaching(scale * images.reshape(len(images), -1)[:, :8].astype(jnp.float32))

    def objective(params: Any, scale: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        taught = batch._replace(teacher=jax.tree_util.Partial(teacher, scale))
        return loss(method, params, state, taught)

    differentiate = jax.jit(jax.value_and_grad(objective, (0, 1), has_aux=True))
    (value, terms), gradients = differentiate(params, jnp.asarray(0.01))
    outputs = jax.jit(lambda params: teach(method, params, state, batch))(params)
    pixels = 0.01 * np.asarray(batch.images[0]).reshape(16, -1)[:, :8].astype(float)
    loss_teacher = huber(np.asarray(outputs.embeddings) - pixels).mean()
    p = softmax(np.asarray(outputs.logits, float) / 0.2)
    loss_labels = -np.log(p[np.arange(16), np.asarray(batch.labels)]).mean()
    assert float(terms["loss_teacher"]) == pytest.approx(loss_teacher, rel=1e-5)
    assert float(terms["loss_labels"]) == pytest.approx(loss_labels, rel=1e-5)
    assert float(value) == pytest.approx(loss_labels + 3 * loss_teacher, rel=1e-5)
    assert float(gradients[1]) == 0
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradients[0]))


def test_a_student_teaches_the_logits_of_its_loss() -> None:
    config = replace(SMALL, weight=0.0, temperature=1, smoothing=0)
    check_logits(student.build(config, toys.backbone(), DATA))


@pytest.mark.parametrize(
    ("kind", "outputs", "words"),
    [
        ("distillation", Teaching(jnp.ones((16, 8))), "has logits of 0 classes"),
        ("distillation_kl", Teaching(jnp.ones((16, 8))), "has logits of 0 classes"),
        ("distillation", Teaching(jnp.ones((16, 8)), jnp.ones((16, 5))), "5 classes, .* has 4"),
        ("imitation", Teaching(jnp.ones((16, 12))), "12 dimensions, .* method.embedding_dim=8"),
    ],
)
def test_unsuitable_teachers(kind: Any, outputs: Teaching, words: str) -> None:
    method = student.build(replace(SMALL, kind=kind), toys.backbone(), DATA)
    params, state = jax.eval_shape(method.init, jax.random.key(0), toys.batch(1))
    with pytest.raises(ConfigError, match=rf"method.teacher='runs/teacher': .*{words}"):
        jax.eval_shape(partial(loss, method), params, state, with_teacher(toys.batch(1), outputs))


def test_relational_loss_with_embeddings_of_different_sizes() -> None:
    method, params, state = build(replace(SMALL, kind="relational"))
    outputs = Teaching(rng.normal(size=(16, 3)).astype(np.float32))
    value, _ = jax.jit(partial(loss, method))(params, state, with_teacher(toys.batch(1), outputs))
    assert np.isfinite(value)
