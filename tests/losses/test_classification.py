"""Classification losses compared with NumPy in float64."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.losses import classification as c

RNG = np.random.default_rng(0)
PROXIES, X, LABELS = RNG.normal(size=(5, 3)), RNG.normal(size=(7, 3)), np.array([0, 4, 2, 2, 1, 3, 0])


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


COSINES = unit(X) @ unit(PROXIES).T


def test_smoothed_cross_entropy(x64: None) -> None:
    log_p = COSINES - np.log(np.exp(COSINES).sum(1, keepdims=True))
    target = 0.9 * np.eye(5)[LABELS] + 0.1 / 5
    ours = jax.jit(partial(c.cross_entropy, smoothing=0.1))(COSINES, LABELS)
    np.testing.assert_allclose(ours, -(target * log_p).sum(1), rtol=1e-12)


def test_angular_margin_is_monotonic_with_finite_gradients() -> None:
    cosines = np.repeat(np.linspace(-1, 1, 201, dtype=np.float32)[:, None], 2, axis=1)
    margin = lambda z: c.angular_margin(z, jnp.zeros(201, jnp.int32), margin=0.5)  # noqa: E731
    assert np.all(np.diff(jax.jit(margin)(cosines)[:, 0]) > 0)
    assert np.isfinite(jax.jit(jax.grad(lambda z: margin(z).sum()))(cosines)).all()


def test_subcenter_arcface_of_pytorch_metric_learning(x64: None) -> None:
    """Values and gradients of version 2.9.0 in float64: ten random batches, one class, equal rows, far centers."""
    function = jax.jit(
        jax.value_and_grad(lambda x, p, y, m, s: c.subcenter_arcface(x, y, p, margin=m, scale=s), argnums=(0, 1))
    )
    with np.load(Path(__file__).with_name("subcenter_arcface_pml.npz")) as z:
        for i in range(13):
            case = {key: jnp.asarray(z[f"{i}_{key}"]) for key in ("x", "centers", "labels", "margin", "scale")}
            value, (of_x, of_centers) = function(*case.values())
            np.testing.assert_allclose(value, z[f"{i}_value"], rtol=1e-10)
            np.testing.assert_allclose(of_x, z[f"{i}_grad_x"], rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(of_centers, z[f"{i}_grad_centers"], rtol=1e-7, atol=1e-9)


def reference(
    x: np.ndarray, labels: np.ndarray, centers: np.ndarray, sizes: np.ndarray, scale: float
) -> tuple[float, np.ndarray]:
    """Sub-center ArcFace with the margins 0.5 n^-0.25 + 0.05, and its gradient for the embeddings, row by row."""
    total, gradient = 0.0, np.zeros_like(x)
    for i, y in enumerate(labels):
        length = np.linalg.norm(x[i])
        row = x[i] / length if length else x[i]
        w = centers / np.linalg.norm(centers, axis=-1, keepdims=True)
        nearest = w[np.arange(len(w)), (w @ row).argmax(1)]
        z, slopes = nearest @ row, np.ones(len(w))
        margin = 0.5 * sizes[y] ** -0.25 + 0.05
        angle = np.arccos(np.clip(z[y], -1, 1))
        if angle < np.pi - margin:
            slopes[y] = np.sin(angle + margin) / max(np.sin(angle), 1e-300)
            z[y] = np.cos(angle + margin)
        else:
            z[y] -= margin * np.sin(margin)
        p = np.exp(scale * z - (scale * z).max())
        p /= p.sum()
        total -= np.log(p[y])
        p[y] -= 1
        if length:
            by_unit = scale * (p * slopes) @ nearest
            gradient[i] = (by_unit - row * (row @ by_unit)) / length
    return total / len(x), gradient / len(x)


def test_margins_by_class_size(x64: None) -> None:
    """Ten random batches; one class, equal rows, a zero row, and rows opposite to their centers."""
    sizes = np.array([1, 4, 16, 100, 5000])
    margins = c.dynamic_margins(jnp.asarray(sizes))
    np.testing.assert_allclose(margins, 0.5 * sizes.astype(float) ** -0.25 + 0.05, rtol=1e-12)
    np.testing.assert_allclose(c.dynamic_margins(jnp.asarray([0]), a=0.4, power=2.0, b=0.1), [0.5], rtol=1e-12)
    function = jax.jit(jax.value_and_grad(lambda x, y, p: c.subcenter_arcface(x, y, p, margin=margins, scale=16.0)))
    for case in range(14):
        rng = np.random.default_rng(case)
        x, labels, centers = rng.normal(size=(8, 6)), rng.integers(0, 5, 8), rng.normal(size=(5, 3, 6))
        if case == 10:
            labels[:] = 2
        if case == 11:
            x[1:] = x[0]
        if case == 12:
            x[3] = 0
        if case == 13:
            centers[:, 1:] = centers[:, :1] * np.array([2.0, 3.0])[None, :, None]
            x = -centers[labels, 0]
        value, gradient = function(*map(jnp.asarray, (x, labels, centers)))
        expected, slopes = reference(x, labels, centers, sizes, 16.0)
        np.testing.assert_allclose(value, expected, rtol=1e-10)
        np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-8)
