"""The Group Loss beside NumPy in float64, written from its equations in plain probabilities, one image at a time."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.errors import ConfigError
from dml_jax.methods import group_loss
from dml_jax.methods.group_loss import Config
from tests import toys

COUNT, DIM, CLASSES = 9, 5, 6
LABELS = np.array([4, 1, 4, 4, 1, 0, 0, 0, 1])
ANCHORS = {1: [0, 1, 5], 2: [0, 1, 2, 4, 5, 6]}  # positions of the first images of each class


def sample(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return 3 * rng.normal(size=(COUNT, CLASSES)), rng.normal(size=(COUNT, DIM))


def reference(logits: np.ndarray, embeddings: np.ndarray, anchors: list[int], iterations: int, t: float) -> np.ndarray:
    w = np.maximum(np.corrcoef(embeddings), 0)
    x = np.exp(logits / t) / np.exp(logits / t).sum(1, keepdims=True)
    x[anchors] = np.eye(CLASSES)[LABELS[anchors]]
    for _ in range(iterations):
        grown = np.array([[x[i, c] * (w[i] @ x[:, c]) for c in range(CLASSES)] for i in range(COUNT)])
        x = grown / grown.sum(1, keepdims=True)
    return -np.log(x[np.arange(COUNT), LABELS])


@pytest.mark.parametrize(
    ("anchors", "iterations", "temperature"), [(1, 1, 24.0), (2, 3, 1.0), (0, 2, 0.5), (1, 0, 2.0)]
)
def test_values_and_gradients(anchors: int, iterations: int, temperature: float) -> None:
    logits, embeddings = sample()
    config = Config(anchors=anchors, iterations=iterations, temperature=temperature)
    known = ANCHORS.get(anchors, [])

    def total(inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        each = group_loss.group_loss(*inputs, jnp.asarray(LABELS), config)
        return each.sum(), each

    inputs = (logits, embeddings)
    with jax.enable_x64(True):
        gradients, each = jax.jit(jax.grad(total, has_aux=True))(jax.tree.map(jnp.asarray, inputs))
    expected = reference(*inputs, known, iterations, temperature)
    np.testing.assert_allclose(each, expected, rtol=1e-10, atol=1e-12)
    assert not expected[known].any()
    rng = np.random.default_rng(1)
    for chosen in range(2):  # central differences in a random direction
        along = [1e-6 * rng.normal(size=v.shape) * (i == chosen) for i, v in enumerate(inputs)]
        ends = [
            reference(logits + sign * along[0], embeddings + sign * along[1], known, iterations, temperature).sum()
            for sign in (1, -1)
        ]
        slope = sum(float((np.asarray(g) * d).sum()) for g, d in zip(gradients, along, strict=True))
        assert slope == pytest.approx((ends[0] - ends[1]) / 2, rel=1e-5, abs=1e-13)


def test_agreement_lowers_the_loss() -> None:
    """Like images of one class pull a wrong guess to the anchor's label; unlike ones do not."""
    labels = jnp.asarray([0, 0, 1, 1])
    logits = jnp.asarray([[9.0, 0], [0, 1], [0, 9], [0, 1]])
    apart = jnp.asarray([[1.0, -1, 0], [1, -1, 0.1], [-1, 1, 0], [-1, 1, 0.1]])
    mixed = apart[jnp.asarray([0, 2, 1, 3])]
    second = jax.jit(lambda x, config: group_loss.group_loss(logits, x, labels, config)[1], static_argnums=1)
    config = Config(anchors=1, temperature=1.0)
    before = second(apart, replace(config, iterations=0))
    assert second(apart, config) < before < second(mixed, config)


def test_nothing_to_compare_keeps_the_priors() -> None:
    """Embeddings without a direction, and guesses so sure that float32 holds no others."""
    logits, _ = sample()
    config = Config(anchors=1, temperature=1.0)
    blank = jnp.zeros((COUNT, DIM))
    losses = jax.jit(lambda e, x: group_loss.group_loss(e, x, jnp.asarray(LABELS), config))
    kept = losses(jnp.asarray(logits), blank)
    expected = reference(logits, np.random.default_rng(0).normal(size=(COUNT, DIM)), ANCHORS[1], 0, 1.0)
    np.testing.assert_allclose(kept, expected, rtol=1e-5, atol=1e-6)
    sure = jax.jit(jax.grad(lambda e, x: losses(e, x).sum(), (0, 1)))
    for gradient in sure(jnp.asarray(1000 * logits), jnp.asarray(sample()[1])) + sure(jnp.asarray(logits), blank):
        assert jnp.isfinite(gradient).all()


def test_pooled_features_are_the_embedding_without_a_layer() -> None:
    made = group_loss.build(Config(), toys.backbone(), CLASSES)
    batch = toys.batch(1)
    params, state = jax.eval_shape(lambda: made.init(jax.random.key(0), batch))
    assert set(params) == {"backbone", "classifier"}
    assert jax.eval_shape(made.embed, params, state, batch.images[0]).shape == (16, 12)


def test_teaches_its_embedding_and_logits() -> None:
    made = group_loss.build(Config(embedding_dim=DIM), toys.backbone(), CLASSES)
    batch = toys.batch(1)
    params, state = made.init(jax.random.key(0), batch)
    assert made.teach is not None
    taught = made.teach(params, state, batch.images[0])
    np.testing.assert_allclose(taught.embeddings, made.embed(params, state, batch.images[0]), rtol=1e-6)
    seen = np.asarray(taught.logits) - np.asarray(params["classifier"]["bias"])
    wanted = np.asarray(taught.embeddings) @ np.asarray(params["classifier"]["kernel"])
    lengths = np.linalg.norm(seen, axis=1) / np.linalg.norm(wanted, axis=1)
    np.testing.assert_allclose(seen, lengths[:, None] * wanted, atol=1e-5)


@pytest.mark.parametrize("key", ["embedding_dim", "anchors", "iterations", "temperature", "weight"])
def test_mistakes(key: str) -> None:
    with pytest.raises(ConfigError, match=f"method.{key}"):
        Config(**{key: -1})


def test_one_class() -> None:
    with pytest.raises(ConfigError, match="needs two training classes"):
        group_loss.build(Config(), toys.backbone(), 1)
