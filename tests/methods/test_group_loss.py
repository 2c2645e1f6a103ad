"""The Group Loss against NumPy in float64 (its equations in probabilities, one image at a time)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.methods import group_loss
from dml_jax.methods.contract import TrainingSet
from dml_jax.methods.group_loss import Config
from tests import toys
from tests.methods import taught

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
        grown = x * (w @ x)
        x = grown / grown.sum(1, keepdims=True)
    return -np.log(x[np.arange(COUNT), LABELS])


@pytest.mark.parametrize(("anchors", "iterations", "temperature"), [(1, 1, 24.0), (2, 3, 1.0), (0, 2, 0.5)])
def test_values_and_gradients(anchors: int, iterations: int, temperature: float) -> None:
    logits, embeddings = sample()
    config = Config(anchors=anchors, iterations=iterations, temperature=temperature)
    positions = ANCHORS.get(anchors, [])

    def total(inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        losses = group_loss.group_loss(*inputs, jnp.asarray(LABELS), config)
        return losses.sum(), losses

    inputs = (logits, embeddings)
    with jax.enable_x64(True):
        gradients, losses = jax.jit(jax.grad(total, has_aux=True))(inputs)
    expected = reference(*inputs, positions, iterations, temperature)
    np.testing.assert_allclose(losses, expected, rtol=1e-10, atol=1e-12)
    assert not expected[positions].any()
    rng = np.random.default_rng(1)
    for which in range(2):  # central differences in a random direction
        delta = [1e-6 * rng.normal(size=v.shape) * (i == which) for i, v in enumerate(inputs)]
        ends = []
        for sign in (1, -1):
            moved = logits + sign * delta[0], embeddings + sign * delta[1]
            ends.append(reference(*moved, positions, iterations, temperature).sum())
        slope = sum(float((np.asarray(g) * d).sum()) for g, d in zip(gradients, delta, strict=True))
        assert slope == pytest.approx((ends[0] - ends[1]) / 2, rel=1e-5, abs=1e-13)


def test_no_support_and_extreme_logits() -> None:
    """Constant embeddings keep the priors; gradients stay finite where probabilities underflow in float32."""
    logits, embeddings = sample()
    config = Config(anchors=1, temperature=1.0)
    constant = jnp.zeros((COUNT, DIM))
    losses = jax.jit(lambda z, x: group_loss.group_loss(z, x, jnp.asarray(LABELS), config))
    expected = reference(logits, embeddings, ANCHORS[1], 0, 1.0)
    found = losses(jnp.asarray(logits), constant)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    gradient = jax.jit(jax.grad(lambda z, x: losses(z, x).sum(), (0, 1)))
    for inputs in ((1000 * logits, embeddings), (logits, constant)):
        for leaf in gradient(*map(jnp.asarray, inputs)):
            assert jnp.isfinite(leaf).all()


def test_pooled_features_are_the_embedding_without_a_layer() -> None:
    method = group_loss.build(Config(), toys.backbone(), TrainingSet(2, 16))  # the fewest classes
    batch = toys.batch(1)
    params, state = jax.eval_shape(lambda: method.init(jax.random.key(0), batch))
    assert set(params) == {"backbone", "classifier"}
    assert jax.eval_shape(method.embed, params, state, batch.images[0]).shape == (16, 12)


def test_it_teaches_the_logits_of_its_loss() -> None:
    config = Config(embedding_dim=8)
    taught.check_logits(group_loss.build(config, toys.backbone(), taught.DATA))
