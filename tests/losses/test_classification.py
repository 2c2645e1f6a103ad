"""Classification losses against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.losses import classification as c

RNG = np.random.default_rng(0)
PROXIES, X, LABELS = RNG.normal(size=(5, 3)), RNG.normal(size=(7, 3)), np.array([0, 4, 2, 2, 1, 3, 0])
ROWS = np.arange(7)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


COSINES = unit(X) @ unit(PROXIES).T


def softmax_loss(logits: np.ndarray) -> np.ndarray:
    return np.log(np.exp(logits).sum(1)) - logits[ROWS, LABELS]


def test_smoothed_cross_entropy(x64: None) -> None:
    log_p = COSINES - np.log(np.exp(COSINES).sum(1, keepdims=True))
    target = 0.9 * np.eye(5)[LABELS] + 0.1 / 5
    ours = c.cross_entropy(jnp.asarray(COSINES), jnp.asarray(LABELS), smoothing=0.1)
    np.testing.assert_allclose(ours, -(target * log_p).sum(1), rtol=1e-12)


def test_normalized_softmax(x64: None) -> None:
    ours = c.normalized_softmax(jnp.asarray(PROXIES), jnp.asarray(X), jnp.asarray(LABELS), temperature=0.05)
    np.testing.assert_allclose(ours, softmax_loss(COSINES / 0.05), rtol=1e-12)


def test_margins(x64: None) -> None:
    own = COSINES[ROWS, LABELS]
    angle = np.arccos(own)
    assert (angle + 1.3 > np.pi).any()
    for margin in (0.5, 1.3):
        bent = np.where(angle + margin < np.pi, np.cos(angle + margin), own - margin * np.sin(margin))
        logits = COSINES.copy()
        logits[ROWS, LABELS] = bent
        ours = c.arcface(jnp.asarray(PROXIES), jnp.asarray(X), jnp.asarray(LABELS), margin=margin, scale=16.0)
        np.testing.assert_allclose(ours, softmax_loss(16 * logits), rtol=1e-12)
    logits = COSINES.copy()
    logits[ROWS, LABELS] -= 0.35
    ours = c.cosface(jnp.asarray(PROXIES), jnp.asarray(X), jnp.asarray(LABELS), margin=0.35, scale=16.0)
    np.testing.assert_allclose(ours, softmax_loss(16 * logits), rtol=1e-12)


def test_the_angular_margin_falls_monotonically_and_has_a_gradient_at_both_ends() -> None:
    cosines = jnp.linspace(-1, 1, 201)[:, None] * jnp.ones((1, 2))
    zeros = jnp.zeros(201, jnp.int32)
    bent = c.angular_margin(cosines, zeros, margin=0.5)[:, 0]
    assert jnp.all(jnp.diff(bent) > 0)
    gradient = jax.grad(lambda z: c.angular_margin(z, zeros, margin=0.5).sum())(cosines)
    assert jnp.all(jnp.isfinite(gradient))
