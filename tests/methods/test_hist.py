"""HIST: placebos for the hyperedges, and statistics of whether the hyperedges are at work."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from dml_jax.methods.contract import TrainingSet
from dml_jax.methods.hist import method as hist
from dml_jax.train import step
from tests import toys

LABELS = np.array([0, 0, 2, 2, 1, 1])
H = np.array(np.random.default_rng(0).random((6, 3)), np.float32)[:, [0, 0, 2, 2, 1, 1]]
SMALL = {"embedding_dim": 6, "hidden_dim": 5}


def dense(tuplets: Any) -> np.ndarray:
    """G [N, N] of a placebo, from Dv^-1/2 H W De^-1 H^T Dv^-1/2."""
    found = hist.placebo_incidence(jnp.asarray(H), jnp.asarray(LABELS), tuplets, jax.random.key(1))
    h, weights = (np.asarray(x, np.float64) for x in found)
    vertex = np.diag(1 / np.sqrt(h @ weights))
    return vertex @ h @ np.diag(weights / h.sum(axis=0)) @ h.T @ vertex


def test_placebos() -> None:
    """No propagation; rows of other samples; memberships without relation to the samples."""
    np.testing.assert_allclose(dense("none"), np.eye(6), atol=1e-6)
    h, weights = hist.placebo_incidence(jnp.asarray(H), jnp.asarray(LABELS), "permuted", jax.random.key(1))
    order = [int(np.argmin(np.abs(H - row).sum(axis=1))) for row in np.asarray(h)]
    assert sorted(order) == list(range(6)) != order
    np.testing.assert_array_equal(h, H[order])
    np.testing.assert_allclose(weights, 0.5)
    random, _ = hist.placebo_incidence(jnp.asarray(H), jnp.asarray(LABELS), "random", jax.random.key(1))
    np.testing.assert_array_equal(random[:, ::2], random[:, 1::2])  # one hyperedge per class
    assert np.ptp(random) > 0.5
    other, _ = hist.placebo_incidence(jnp.asarray(H), jnp.asarray(LABELS), "random", jax.random.key(2))
    assert np.abs(np.asarray(random - other)).max() > 0.1


def test_statistics() -> None:
    """Mean membership of the other classes, and KL of each sample's shares from 1/2."""
    h = H.copy()
    h[0, 2:4] = 0  # as memberships underflow
    found = hist.tuplet_statistics(h, LABELS)
    columns, divergences, memberships = h[:, [0, 4, 2]].astype(float), [], []
    for row, label in zip(columns, LABELS, strict=True):
        others = np.delete(row, label)
        p = others / others.sum()
        divergences.append(special.xlogy(p, 2 * p).sum())
        memberships.append(others.mean())
    assert found["tuplet_divergence"] == pytest.approx(np.mean(divergences))
    assert found["tuplet_membership"] == pytest.approx(np.mean(memberships))


def test_a_batch_of_one_class_has_no_statistics() -> None:
    assert hist.tuplet_statistics(np.ones((3, 3)), np.full(3, 5)) == {}


def test_a_step() -> None:
    """With the same parameters, finite losses that differ, and a diagnosis of HIST itself."""
    losses, batch = {}, toys.batch(1)
    for tuplets in ("semantic", "none"):
        config = hist.Config(**SMALL, tuplets=tuplets)
        method = hist.build(config, toys.backbone(), TrainingSet(4, 16))
        if tuplets == "semantic":
            params, state = toys.drawn(method)
            found = method.hooks.diagnose(params, state, batch.images, np.asarray(batch.labels))
            assert found.keys() == {"tuplet_divergence", "tuplet_membership"}
        else:
            assert method.hooks.diagnose is None
        loss = jax.jit(partial(step.loss, method))
        value, _ = loss(params, state, batch, jnp.zeros((), jnp.int32), jax.random.key(1))
        losses[tuplets] = float(value)
    assert np.isfinite([*losses.values()]).all()
    assert len(set(losses.values())) == 2
