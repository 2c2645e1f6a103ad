"""Shares of active pairs against loops in NumPy."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.losses import active_pairs
from dml_jax.losses.mining import Triplets
from dml_jax.methods import baseline
from dml_jax.methods.contract import TrainingSet
from tests import toys

LABELS = np.repeat(np.arange(4), 3)


def unit_rows(spread: float = 0.7) -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4, 6))[LABELS] + spread * rng.normal(size=(len(LABELS), 6))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def share(active: list[bool]) -> float:
    assert 0 < sum(active) < len(active)
    return sum(active) / len(active)


def test_contrastive() -> None:
    x = unit_rows()
    active = []
    for i in range(len(x)):
        for j in set(range(len(x))) - {i}:
            d = np.linalg.norm(x[i] - x[j])
            active.append(bool(d > 0.6 if LABELS[i] == LABELS[j] else d < 1.1))
    measure = jax.jit(partial(active_pairs.contrastive, positive_margin=0.6, negative_margin=1.1))
    found = measure(3 * x, LABELS)
    assert float(found) == pytest.approx(share(active))


def test_multi_similarity() -> None:
    x = unit_rows()
    s = x @ x.T
    kept = []
    for i in range(len(x)):
        same = [j for j in range(len(x)) if LABELS[j] == LABELS[i] and j != i]
        other = [j for j in range(len(x)) if LABELS[j] != LABELS[i]]
        kept += [bool(s[i, j] - 0.1 < max(s[i, other])) for j in same]
        kept += [bool(s[i, j] + 0.1 > min(s[i, same])) for j in other]
    options: Any = {"alpha": 2.0, "beta": 40.0, "base": 0.5, "epsilon": 0.1}
    options |= {"mining": True, "copies": "drop", "divisor": "batch"}
    found = jax.jit(partial(active_pairs.multi_similarity, **options))(x, LABELS)
    assert float(found) == pytest.approx(share(kept))


def test_given_triplets() -> None:
    x = unit_rows()
    rng = np.random.default_rng(1)
    a, p, n = (rng.integers(0, len(x), 40) for _ in range(3))
    valid = rng.random(40) < 0.7
    triplets = Triplets(*(jnp.asarray(part) for part in (a, p, n, valid)))
    near, far = np.linalg.norm(x[a] - x[p], axis=1), np.linalg.norm(x[a] - x[n], axis=1)
    squared = (near**2 - far**2 + 0.2 > 1e-6)[valid].tolist()
    plain = (near - far + 0.6 > 1e-6)[valid].tolist()
    for expected, options in ((squared, {"margin": 0.2, "squared": True}), (plain, {"margin": 0.6, "squared": False})):
        found = jax.jit(partial(active_pairs.of_triplets, **options))(x, triplets)  # type: ignore[arg-type]
        assert float(found) == pytest.approx(share(expected))
    beta = np.array([0.6, 0.9, 1.0, 1.2])
    near, far = np.sqrt(near**2 + 1e-8), np.sqrt(far**2 + 1e-8)
    boundary = beta[LABELS[a]]
    either = ((near - boundary + 0.05 > 1e-6) | (boundary - far + 0.05 > 1e-6))[valid].tolist()
    found = jax.jit(partial(active_pairs.of_margin_triplets, margin=0.05))(x, LABELS, triplets, beta)
    assert float(found) == pytest.approx(share(either))


@pytest.mark.parametrize("loss", ["contrastive", "triplet", "margin", "multi_similarity"])
def test_baselines_report_it(loss: str) -> None:
    """All pairs of a loss are inactive if the classes are points at right angles, but some of noise are active."""
    method = baseline.build(baseline.make_config(loss, embedding_dim=8), toys.backbone(), TrainingSet(4, 64))
    batch = toys.batch(1)
    params, _ = jax.jit(method.init)(jax.random.key(0), batch)
    assert method.hooks.active_pairs is not None
    separate = jnp.eye(8)[batch.labels] * jnp.where(batch.labels % 2, 1.0, -1.0)[:, None]
    noise = jax.random.normal(jax.random.key(1), separate.shape) + 5
    share = jax.jit(method.hooks.active_pairs)
    found = [float(share(params, x, batch, jax.random.key(2))) for x in (separate, noise)]
    assert found[0] == 0
    assert 0 < found[1] <= 1
