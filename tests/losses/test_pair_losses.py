"""Losses of pairs and triplets compared with float64 loops, and without valid triplets."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.losses import pair_losses
from dml_jax.losses.mining import Triplets
from tests.losses.ten_rows import LABELS, NEGATIVE, POSITIVE, X


def case(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(9, 4))
    x[3] = x[2]
    triplets = rng.integers(0, 9, (20, 3))
    triplets[:3] = [[0, 0, 0], [2, 3, 1], [2, 1, 3]]
    return x, rng.integers(0, 5, 9), triplets, rng.random(20) < 0.7, rng.uniform(0.8, 1.6, 5)


def as_triplets(indices: np.ndarray, valid: np.ndarray) -> Triplets:
    return Triplets(*map(jnp.asarray, indices.T), valid=jnp.asarray(valid))


def test_margin_loss_per_active_pair(x64: None) -> None:
    """As in pytorch-metric-learning: both hinges of a triplet count, and the boundaries are
    divided, too."""
    x, labels, indices, valid, beta = case()
    hinges, reward = [], 0.0
    for a, p, n in indices[valid]:
        hinges.append(np.sqrt(np.sum((x[a] - x[p]) ** 2) + 1e-8) - beta[labels[a]] + 0.3)
        hinges.append(beta[labels[a]] - np.sqrt(np.sum((x[a] - x[n]) ** 2) + 1e-8) + 0.3)
        reward += beta[labels[a]]
    active = [hinge for hinge in hinges if hinge > 0]
    assert valid.sum() < len(active) < 2 * valid.sum()
    chosen = as_triplets(indices, valid)
    args = (jnp.asarray(x), jnp.asarray(labels), chosen, jnp.asarray(beta))
    found = jax.jit(partial(pair_losses.margin_loss, margin=0.3, nu=0.1, divisor="pairs"))(*args)
    np.testing.assert_allclose(found, (sum(active) + 0.1 * reward) / len(active), rtol=1e-12)


def test_margin_loss_per_pair_without_an_active_pair() -> None:
    x, labels = np.array([[0.0, 1], [0.0, 1], [1.0, 0]]), np.array([0, 0, 1])
    triplets = as_triplets(np.array([[0, 1, 2]]), np.array([True]))
    loss = jax.jit(partial(pair_losses.margin_loss, margin=0.2, nu=0.1, divisor="pairs"))
    assert loss(x, labels, triplets, np.ones(2)) == 0


def test_contrastive_margins(x64: None) -> None:
    """Both margins; a pair whose hinge is as small as rounding errors of distances does not
    count."""
    x = X.copy()
    x[1] = x[0] * 1.5
    rows = x / np.linalg.norm(x, axis=1, keepdims=True)
    d = np.linalg.norm(rows[:, None] - rows[None], axis=-1)
    for margin in (0.0, 0.5):
        hinges = np.maximum(d[POSITIVE] - margin, 0), np.maximum(0.8 - d[NEGATIVE], 0)
        expected = sum(values[values > pair_losses.ROUNDING].mean() for values in hinges)
        loss = partial(pair_losses.contrastive, positive_margin=margin, negative_margin=0.8)
        np.testing.assert_allclose(jax.jit(loss)(x, LABELS), expected, rtol=1e-10)
