"""Triplet mining: frequencies compared with brute force, classes of the samples, batches without
triplets."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.losses import mining, pairwise
from tests.losses import ten_rows as rows

DRAWS = 4000


def on_sphere(count: int, dim: int, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(count, dim))
    x[1] = x[0] + 0.1 * x[1]  # two samples nearer than the lower cut-off
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def frequencies(draws: jax.Array, size: int) -> np.ndarray:
    """Draws [R, T] of columns -> shares [T, size]."""
    return np.stack([np.bincount(column, minlength=size) for column in np.asarray(draws).T]) / len(
        draws
    )


def assert_frequencies(shares: np.ndarray, probabilities: np.ndarray) -> None:
    """Frequencies within five standard errors of the probabilities; impossible draws never
    occur."""
    error = np.sqrt(probabilities * (1 - probabilities) / DRAWS)
    assert np.all(np.abs(shares - probabilities) <= 5 * error + 1e-9)


def weights(x: np.ndarray, i: int, allowed: list[int], *, lower: float = 0.5) -> np.ndarray:
    """Probabilities [B] of drawing each allowed sample for anchor i, one pair at a time."""
    dim, found = x.shape[1], np.zeros(len(x))
    for j in allowed:
        d = max(np.sqrt(np.sum((x[i] - x[j]) ** 2)), lower)
        found[j] = 1 / (d ** (dim - 2) * (1 - d * d / 4) ** ((dim - 3) / 2))
    return found / max(found.sum(), 1e-300)


def keys() -> jax.Array:
    return jax.random.split(jax.random.key(7), DRAWS)


LABELS = np.array([0, 1, 0, 0, 1, 2, 3, 3])


def test_distance_weighted() -> None:
    x = on_sphere(8, 12)
    draw = jax.jit(
        jax.vmap(lambda k: mining.distance_weighted(k, jnp.asarray(x), jnp.asarray(LABELS)))
    )
    triplets = draw(keys())
    positives, negatives = np.zeros((8, 8)), np.zeros((8, 8))
    for i in range(8):
        same = [j for j in range(8) if LABELS[j] == LABELS[i] and j != i]
        positives[i, same] = 1 / max(len(same), 1)
        negatives[i] = weights(x, i, [j for j in range(8) if LABELS[j] != LABELS[i]])
    valid = (positives.sum(axis=1) > 0) & (negatives.sum(axis=1) > 0)
    assert 0 < valid.sum() < 8
    np.testing.assert_array_equal(triplets.valid, np.tile(valid, (DRAWS, 1)))
    np.testing.assert_array_equal(triplets.anchors[0], np.arange(8))
    assert_frequencies(frequencies(triplets.positives, 8)[valid], positives[valid])
    assert_frequencies(frequencies(triplets.negatives, 8)[valid], negatives[valid])


def test_across_classes() -> None:
    x = on_sphere(8, 12)
    draw = jax.jit(
        jax.vmap(lambda k: mining.across_classes(k, jnp.asarray(x), jnp.asarray(LABELS)))
    )
    triplets = draw(keys())
    assert bool(triplets.valid.all())
    a, p, n = (LABELS[np.asarray(part)] for part in triplets[:3])
    assert np.all((a != p) & (a != n) & (p != n))
    negatives, positives = np.zeros((8, 8)), np.zeros((8, 8))
    for i in range(8):
        negatives[i] = weights(x, i, [j for j in range(8) if LABELS[j] != LABELS[i]])
        for n in np.flatnonzero(negatives[i]):
            third = [j for j in range(8) if LABELS[j] not in (LABELS[i], LABELS[n])]
            positives[i] += negatives[i, n] * np.isin(np.arange(8), third) / len(third)
    assert_frequencies(frequencies(triplets.negatives, 8), negatives)
    assert_frequencies(frequencies(triplets.positives, 8), positives)


def test_within_class() -> None:
    """Classes are equally likely regardless of size; with two samples a quarter of the triplets is
    one image."""
    labels = np.array([5, 5, 2, 2, 2, 2, 9, 2])
    triplets = jax.jit(jax.vmap(lambda k: mining.within_class(k, jnp.asarray(labels))))(keys())
    assert triplets.anchors.shape == (DRAWS, 8)
    assert bool(triplets.valid.all())
    a, p, n = (np.asarray(part) for part in triplets[:3])
    assert np.all((labels[a] == labels[p]) & (labels[a] == labels[n]))
    sizes = {c: np.sum(labels == c) for c in np.unique(labels)}
    expected = np.array([1 / (len(sizes) * sizes[c]) for c in labels])
    for part in (a, p, n):
        assert_frequencies(frequencies(part, 8), np.tile(expected, (8, 1)))
    two = labels[a] == 5
    assert abs(np.mean((a == p)[two] & (a == n)[two]) - 0.25) < 0.02


def test_batches_without_triplets() -> None:
    x, key, alone = on_sphere(6, 5), jax.random.key(0), np.arange(6)
    weighted = jax.jit(mining.distance_weighted)
    assert not np.any(weighted(key, x, np.zeros(6, int)).valid)
    assert not np.any(weighted(key, x, alone).valid)
    assert not np.any(jax.jit(mining.across_classes)(key, x, alone // 3).valid)
    assert np.all(jax.jit(mining.within_class)(key, alone).valid)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("dim", [2, 3, 128])
def test_log_weights_are_finite_for_duplicates_opposites_and_zeros(dtype: Any, dim: int) -> None:
    axis = np.zeros((4, dim))
    axis[:, 0] = [1, 1, -1, 0]
    of_rows = jax.jit(lambda x: mining.distance_logits(pairwise.distances(x, x), dim))
    logits = of_rows(axis.astype(dtype))
    assert logits.dtype == jnp.float32
    distances = np.array([0, 2, 2.0001], np.float32)  # not raised to the lower cut-off
    densities = jax.jit(partial(mining.log_inverse_density, dim=dim))(distances)
    assert np.isfinite([*logits.ravel(), *densities]).all()


def test_no_gradient_through_sampling() -> None:
    of_rows = jax.jacobian(lambda x: mining.distance_logits(pairwise.distances(x, x), 5))
    np.testing.assert_array_equal(jax.jit(of_rows)(jnp.asarray(on_sphere(4, 5))), 0)


def check(triplets: mining.Triplets) -> None:
    """A triplet is valid if its class has two samples; positives and negatives are of the right
    class."""
    np.testing.assert_array_equal(triplets.anchors, np.arange(10))
    np.testing.assert_array_equal(triplets.valid, rows.LABELS != 3)
    valid = np.asarray(triplets.valid)
    assert rows.POSITIVE[np.arange(10)[valid], np.asarray(triplets.positives)[valid]].all()
    assert rows.NEGATIVE[np.arange(10)[valid], np.asarray(triplets.negatives)[valid]].all()


def test_semi_hard_triplets() -> None:
    fallbacks, mine = 0, jax.jit(partial(mining.mine, "semi_hard", dim=4))
    for seed in range(20):
        triplets = mine(jax.random.key(seed), *rows.given())
        check(triplets)
        for i in np.flatnonzero(triplets.valid):
            near, far = rows.D[i, triplets.positives[i]], rows.D[i][rows.NEGATIVE[i]]
            fallbacks += not (far > near).any()
            expected = far[far > near].min() if (far > near).any() else far.max()
            assert rows.D[i, triplets.negatives[i]] == expected
    assert fallbacks > 0


def test_random_triplets_are_uniform() -> None:
    keys = jax.random.split(jax.random.key(0), 4000)
    uniform = jax.jit(jax.vmap(lambda k: mining.mine("random", k, *rows.given(), dim=4)))(keys)
    np.testing.assert_allclose(
        frequencies(uniform.positives, 10)[0], rows.POSITIVE[0] / rows.POSITIVE[0].sum(), atol=0.03
    )
    np.testing.assert_allclose(
        frequencies(uniform.negatives, 10)[0], rows.NEGATIVE[0] / rows.NEGATIVE[0].sum(), atol=0.03
    )


def test_one_pair_per_class() -> None:
    keys = jax.random.split(jax.random.key(0), 200)
    draws = jax.jit(jax.vmap(lambda key: mining.class_pairs(key, jnp.asarray(rows.LABELS))))(keys)
    seen = set()
    for positives, valid in zip(*map(np.asarray, draws), strict=True):
        chosen = [(int(a), int(positives[a])) for a in np.flatnonzero(valid)]
        assert [rows.LABELS[a] for a, _ in chosen] == [0, 1, 2]
        assert all(rows.LABELS[a] == rows.LABELS[p] and a != p for a, p in chosen)
        seen |= set(chosen)
    assert len(seen) == 6 + 2 + 12
