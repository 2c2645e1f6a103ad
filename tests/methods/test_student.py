"""Students: values and gradients of what a teacher adds, against NumPy in float64; teachers that do not fit."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.config_schema import close
from dml_jax.errors import ConfigError
from dml_jax.losses.norms import unit
from dml_jax.methods import baseline, hist, mpn, student
from dml_jax.methods.baseline import options
from dml_jax.methods.contract import Method, Teaching
from tests import toys

CLASSES = 4
SMALL = student.Config(teacher="runs/mpn", embedding_dim=8)
KINDS = ("distillation", "distillation_kl", "imitation", "relational")
rng = np.random.default_rng(0)
EMBEDDINGS, TAUGHT = 1.5 * rng.normal(size=(2, 6, 5))  # some differences beyond the 1 where the Huber loss bends
LOGITS, TAUGHT_LOGITS = 4 * rng.normal(size=(2, 6, 7))


def huber(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 1, x * x / 2, np.abs(x) - 0.5)


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)


def relations(x: np.ndarray) -> np.ndarray:
    apart = np.array([[huber(a - b).sum() for b in x] for a in x])
    return apart / apart.mean()


def reference(embeddings: np.ndarray, logits: np.ndarray, kind: str, tau: float) -> float:
    p, q = softmax(TAUGHT_LOGITS / tau), softmax(logits / tau)
    match kind:
        case "distillation":
            return float(np.mean([-sum(a * np.log(b)) for a, b in zip(p, q, strict=True)]))
        case "distillation_kl":
            return float(np.sum(p * np.log(p / q)) / p.size)
        case "imitation":
            return float(huber(embeddings - TAUGHT).sum() / embeddings.size)
        case _:
            return float(np.abs(relations(TAUGHT) - relations(embeddings)).sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tau", [1.0, 10.0])
def test_values_and_gradients(kind: Any, tau: float, x64: None) -> None:
    config = replace(SMALL, kind=kind, soft_temperature=tau)
    taught = Teaching(jnp.asarray(TAUGHT), jnp.asarray(TAUGHT_LOGITS))
    value = jax.value_and_grad(lambda x, z: student.term(x, z, taught, config), (0, 1))
    found, gradients = value(jnp.asarray(EMBEDDINGS), jnp.asarray(LOGITS))
    assert float(found) == pytest.approx(reference(EMBEDDINGS, LOGITS, kind, tau), rel=1e-12)
    step = 1e-6
    for which, gradient in enumerate(gradients):
        for place in ((0, 0), (3, 4), (5, 2)):
            ends = []
            for sign in (1, -1):
                given = [EMBEDDINGS.copy(), LOGITS.copy()]
                given[which][place] += sign * step
                ends.append(reference(given[0], given[1], kind, tau))
            assert float(gradient[place]) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-8)


def test_relations_of_what_coincides() -> None:
    """A student that maps all images to one point: finite, and as far from the teacher as its relations are large."""
    same = jnp.ones((6, 5))
    value, gradient = jax.value_and_grad(lambda x: student.relational(x, jnp.asarray(TAUGHT)).sum())(same)
    assert float(value) == pytest.approx(36)  # their mean is 1
    assert np.isfinite(gradient).all()


def built(config: student.Config) -> tuple[Method, Any, Any]:
    made = student.build(config, toys.backbone(), CLASSES)
    return made, *made.init(jax.random.key(0), toys.batch(1))


def saying(taught: Teaching) -> Any:
    """A teacher that says the same of every batch."""
    return jax.tree_util.Partial(lambda given, images: given, taught)


def test_the_loss_of_a_batch() -> None:
    """The teacher hears the images of the batch, and learns nothing from the student."""
    config = replace(SMALL, kind="imitation", weight=3.0, label_weight=0.5, smoothing=0.0)
    made, params, state = built(config)
    batch = toys.batch(1)

    def describe(scale: jax.Array, images: jax.Array) -> Teaching:
        return Teaching(scale * images.reshape(len(images), -1)[:, :8].astype(jnp.float32))

    scale = jnp.asarray(0.01)
    loss = lambda params, scale: made.loss(  # noqa: E731
        params, state, batch._replace(teacher=jax.tree_util.Partial(describe, scale)), jax.random.key(1)
    )
    ((value, (_, terms)), gradients) = jax.value_and_grad(loss, (0, 1), has_aux=True)(params, scale)
    own = made.teach(params, state, batch.images[0])  # type: ignore[misc]
    pixels = 0.01 * np.asarray(batch.images[0]).reshape(16, -1)[:, :8].astype(float)
    told = huber(np.asarray(own.embeddings) - pixels).mean()
    p = softmax(np.asarray(own.logits, float) / 0.2)
    labels = -np.log(p[np.arange(16), np.asarray(batch.labels)]).mean()
    assert float(terms["loss_teacher"]) == pytest.approx(told, rel=1e-5)
    assert float(terms["loss_labels"]) == pytest.approx(labels, rel=1e-5)
    assert float(value) == pytest.approx(0.5 * labels + 3 * told, rel=1e-5)
    assert float(gradients[1]) == 0
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(gradients[0]))


def plain(name: str) -> Method:
    """Methods whose loss is nothing but the cross-entropy of what they teach, for one image alone."""
    body = toys.backbone()
    match name:
        case "mpn":
            config = mpn.Config(
                embedding_dim=8, layers=2, equations="paper", losses="mpn", dropout=0, temperature=1, smoothing=0
            )
            return mpn.build(config, body, CLASSES)
        case "mpn without a network":
            config = mpn.Config(embedding_dim=8, losses="auxiliary", temperature=1, smoothing=0)
            return mpn.build(config, body, CLASSES)
        case "student":
            return student.build(replace(SMALL, weight=0.0, temperature=1, smoothing=0), body, CLASSES)
        case "arcface":
            return baseline.build(
                baseline.Config(loss=name, embedding_dim=8, arcface=options.ArcFace(margin=0.0)), body, CLASSES
            )
        case "cosface":
            return baseline.build(
                baseline.Config(loss=name, embedding_dim=8, cosface=options.CosFace(margin=0.0)), body, CLASSES
            )
        case _:
            return baseline.build(baseline.Config(loss=name, embedding_dim=8), body, CLASSES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["mpn", "mpn without a network", "student", "cross_entropy", "normalized_softmax", "arcface", "cosface"],
)
def test_what_classifiers_teach_are_the_logits_they_are_trained_by(name: str) -> None:
    made, batch = plain(name), toys.batch(1)
    params, state = made.init(jax.random.key(0), batch)
    taught = made.teach(params, state, batch.images[0])  # type: ignore[misc]
    if name == "student":
        batch = batch._replace(teacher=saying(taught))
    p = softmax(np.asarray(taught.logits, float))
    expected = -np.log(p[np.arange(16), np.asarray(batch.labels)]).mean()
    assert float(made.loss(params, state, batch, jax.random.key(1))[0]) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(np.linalg.norm(taught.embeddings, axis=1), 1, rtol=1e-5)


def test_an_mpn_teaches_refined_embeddings() -> None:
    """In the authors' form, with dropout in training: what message passing makes of the batch without it."""
    config = mpn.Config(embedding_dim=8, layers=2, concatenate=True, dropout=0.5)
    made, batch = mpn.build(config, toys.backbone(), CLASSES), toys.batch(1)
    params, state = made.init(jax.random.key(0), batch)
    hidden = mpn.nodes(params["mpn"], made.embed(params, state, batch.images[0]))
    outputs = []
    for i in (1, 2):
        hidden, _ = mpn.step(params["mpn"][f"layer{i}"], hidden, hidden, config)
        outputs.append(hidden)
    h = np.asarray(jnp.concatenate(outputs, axis=1), float)
    # The neck of a network just made has statistics 0 and 1.
    logits = h / np.sqrt(1 + 1e-5) @ np.asarray(params["mpn"]["classifier"]["kernel"], float)
    taught = made.teach(params, state, batch.images[0])  # type: ignore[misc]
    np.testing.assert_allclose(taught.embeddings, h / np.linalg.norm(h, axis=1, keepdims=True), atol=1e-5)
    assert taught.logits is not None
    np.testing.assert_allclose(taught.logits, logits, atol=1e-5)


def test_pair_losses_teach_no_logits() -> None:
    made = baseline.build(baseline.Config(loss="triplet", embedding_dim=8), toys.backbone(), CLASSES)
    batch = toys.batch(1)
    params, state = made.init(jax.random.key(0), batch)
    taught = made.teach(params, state, batch.images[0])  # type: ignore[misc]
    assert taught.logits is None
    np.testing.assert_array_equal(taught.embeddings, made.embed(params, state, batch.images[0]))
    assert hist.build(hist.Config(embedding_dim=8, hidden_dim=8), toys.backbone(), CLASSES).teach is None


@pytest.mark.parametrize(
    ("kind", "taught", "words"),
    [
        ("distillation", Teaching(jnp.ones((16, 8))), "gives no class probabilities"),
        ("distillation_kl", Teaching(jnp.ones((16, 8))), "gives no class probabilities"),
        ("distillation", Teaching(jnp.ones((16, 8)), jnp.ones((16, 5))), "tells 5 classes apart, the data has 4"),
        ("imitation", Teaching(jnp.ones((16, 12))), "12 dimensions; .* method.embedding_dim=8"),
    ],
)
def test_teachers_that_do_not_fit(kind: Any, taught: Teaching, words: str) -> None:
    made, params, state = built(replace(SMALL, kind=kind))
    with pytest.raises(ConfigError, match=rf"method.teacher='runs/mpn': .*{words}"):
        jax.eval_shape(made.loss, params, state, toys.batch(1)._replace(teacher=saying(taught)), jax.random.key(0))


def test_relations_need_no_common_size() -> None:
    made, params, state = built(replace(SMALL, kind="relational"))
    taught = Teaching(unit(jnp.asarray(rng.normal(size=(16, 3)), jnp.float32)))
    value, _ = made.loss(params, state, toys.batch(1)._replace(teacher=saying(taught)), jax.random.key(0))
    assert np.isfinite(value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"teacher": ""}, "method.teacher='': name the work directory"),
        ({"kind": "imitate"}, "method.kind='imitate': did you mean imitation?"),
        ({"weight": -1.0}, "method.weight=-1.0: must not be negative"),
        ({"weight": 0.0, "label_weight": 0.0}, "method.weight=0.0: with method.label_weight=0.0 there is nothing"),
        ({"soft_temperature": 0.0}, "method.soft_temperature=0.0: must be positive"),
        ({"temperature": 0.0}, "method.temperature=0.0: must be positive"),
        ({"smoothing": 1.0}, "method.smoothing=1.0: must be in [0, 1)"),
        ({"embedding_dim": 0}, "method.embedding_dim=0: must be positive"),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        close(student.Config, {"teacher": "runs/mpn"} | options, "method")
    assert words in str(caught.value)
