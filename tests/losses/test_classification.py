"""Classification losses compared with NumPy in float64."""

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


def softmax_loss(logits: np.ndarray) -> float:
    return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[ROWS, LABELS]))


def given() -> tuple[jax.Array, jax.Array, jax.Array]:
    return jnp.asarray(X), jnp.asarray(LABELS), jnp.asarray(PROXIES)


def test_smoothed_cross_entropy(x64: None) -> None:
    log_p = COSINES - np.log(np.exp(COSINES).sum(1, keepdims=True))
    target = 0.9 * np.eye(5)[LABELS] + 0.1 / 5
    ours = c.cross_entropy(jnp.asarray(COSINES), jnp.asarray(LABELS), smoothing=0.1)
    np.testing.assert_allclose(ours, -(target * log_p).sum(1), rtol=1e-12)


def test_softmax(x64: None) -> None:
    bias = RNG.normal(size=5)
    ours = c.softmax(jnp.asarray(X), jnp.asarray(LABELS), jnp.asarray(PROXIES.T), jnp.asarray(bias))
    np.testing.assert_allclose(ours, softmax_loss(X @ PROXIES.T + bias), rtol=1e-12)


def test_normalized_softmax(x64: None) -> None:
    np.testing.assert_allclose(
        c.normalized_softmax(*given(), temperature=0.05), softmax_loss(COSINES / 0.05), rtol=1e-12
    )


def test_margins(x64: None) -> None:
    own = COSINES[ROWS, LABELS]
    angle = np.arccos(own)
    assert (angle + 1.3 > np.pi).any()
    for margin in (0.5, 1.3):
        shifted = np.where(angle + margin < np.pi, np.cos(angle + margin), own - margin * np.sin(margin))
        logits = COSINES.copy()
        logits[ROWS, LABELS] = shifted
        ours = c.arcface(*given(), margin=margin, scale=16.0)
        np.testing.assert_allclose(ours, softmax_loss(16 * logits), rtol=1e-12)
    logits = COSINES.copy()
    logits[ROWS, LABELS] -= 0.35
    ours = c.cosface(*given(), margin=0.35, scale=16.0)
    np.testing.assert_allclose(ours, softmax_loss(16 * logits), rtol=1e-12)


def test_angular_margin_is_monotonic_with_finite_gradients() -> None:
    cosines = np.repeat(np.linspace(-1, 1, 201, dtype=np.float32)[:, None], 2, axis=1)
    margin = lambda z: c.angular_margin(z, jnp.zeros(201, jnp.int32), margin=0.5)  # noqa: E731
    assert np.all(np.diff(jax.jit(margin)(cosines)[:, 0]) > 0)
    assert np.isfinite(jax.jit(jax.grad(lambda z: margin(z).sum()))(cosines)).all()
