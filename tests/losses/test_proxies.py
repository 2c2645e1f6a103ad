"""Proxy losses compared with NumPy in float64, written from the papers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.losses import proxies

RNG = np.random.default_rng(1)
PROXIES, X, LABELS = RNG.normal(size=(5, 3)), RNG.normal(size=(7, 3)), np.array([0, 4, 2, 2, 1, 1, 0])


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def squared(scale: float) -> np.ndarray:
    return ((scale * unit(X)[:, None] - scale * unit(PROXIES)[None]) ** 2).sum(-1)


def given() -> tuple[jax.Array, jax.Array, jax.Array]:
    return jnp.asarray(X), jnp.asarray(LABELS), jnp.asarray(PROXIES)


def test_proxy_nca_excludes_the_own_proxy_from_the_denominator(x64: None) -> None:
    d = squared(3.0)
    expected = [d[i, y] + np.log(sum(np.exp(-d[i, z]) for z in range(5) if z != y)) for i, y in enumerate(LABELS)]
    np.testing.assert_allclose(proxies.proxy_nca(*given()), np.mean(expected), rtol=1e-12)


def test_proxy_nca_pp_includes_it(x64: None) -> None:
    d = squared(1.0) * 9
    expected = [d[i, y] + np.log(np.exp(-d[i]).sum()) for i, y in enumerate(LABELS)]
    np.testing.assert_allclose(proxies.proxy_nca_pp(*given()), np.mean(expected), rtol=1e-12)


def test_proxy_anchor(x64: None) -> None:
    s = unit(X) @ unit(PROXIES).T
    pull, push = 0.0, 0.0
    for c in range(5):
        own = c == LABELS
        if own.any():
            pull += np.log(1 + np.exp(-32 * (s[own, c] - 0.1)).sum()) / len(set(LABELS))
        push += np.log(1 + np.exp(32 * (s[~own, c] + 0.1)).sum()) / 5
    np.testing.assert_allclose(proxies.proxy_anchor(*given()), pull + push, rtol=1e-12)


def test_proxy_anchor_does_not_overflow() -> None:
    steep = lambda p, x: proxies.proxy_anchor(x, jnp.asarray(LABELS), p, alpha=500.0)  # noqa: E731
    loss, grads = jax.jit(jax.value_and_grad(steep, argnums=(0, 1)))(*map(jnp.float32, (PROXIES, X)))
    assert np.isfinite(loss)
    assert all(np.isfinite(g).all() for g in grads)


def test_soft_triple(x64: None) -> None:
    centers = RNG.normal(size=(5, 4, 3))
    s = np.einsum("nd,ckd->nck", unit(X), unit(centers))
    weights = np.exp(s / 0.1) / np.exp(s / 0.1).sum(-1, keepdims=True)
    similarity = (weights * s).sum(-1)
    similarity[np.arange(7), LABELS] -= 0.01
    logits = 20 * similarity
    expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(7), LABELS]
    c = unit(centers)
    pairs = [np.sqrt(((c[k, i] - c[k, j]) ** 2).sum() + 1e-5) for k in range(5) for i in range(4) for j in range(i)]
    spread = sum(pairs) / (5 * 4 * 3)
    np.testing.assert_allclose(jax.jit(proxies.center_spread)(centers), spread, rtol=1e-12)
    ours = jax.jit(partial(proxies.soft_triple, spread=0.3))(X, LABELS, centers)
    np.testing.assert_allclose(ours, np.mean(expected) + 0.3 * spread, rtol=1e-12)


def test_one_center_has_no_spread() -> None:
    assert proxies.center_spread(jnp.ones((3, 1, 2))) == 0
