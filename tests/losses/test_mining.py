"""Triplet mining: frequencies and choices against loops, batches without triplets."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.losses import mining, pairwise
from tests.losses.references import KEY, LABELS, NEGATIVE, POSITIVE, D

DRAWS = 4000
KEYS = jax.random.split(jax.random.key(7), DRAWS)
CLASSES = np.array([0, 1, 0, 0, 1, 2, 3, 3])
DIFFERENT = CLASSES[:, None] != CLASSES[None]
GIVEN = (D.astype(np.float32), POSITIVE, NEGATIVE)


def on_sphere(count: int, dim: int) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(count, dim))
    x[1] = x[0] + 0.1 * x[1]  # two samples nearer than the lower cut-off
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def check(draws: jax.Array, probabilities: np.ndarray) -> None:
    """Frequencies in draws [R, T] of columns within five standard errors of the probabilities
    [T, size]; impossible draws never occur."""
    size = probabilities.shape[1]
    shares = np.stack([np.bincount(column, minlength=size) for column in np.asarray(draws).T])
    error = np.sqrt(probabilities * (1 - probabilities) / len(draws))
    assert np.all(np.abs(shares / len(draws) - probabilities) <= 5 * error + 1e-9)


def likely(d: np.ndarray, allowed: np.ndarray, dim: int, lower: float = 0.5) -> np.ndarray:
    """Probabilities [B, B] of drawing the allowed columns: 1/q of the distance, raised to the cut-off."""
    d = np.maximum(d, lower)
    found = np.where(allowed, d ** (2.0 - dim) * (1 - d * d / 4) ** ((3 - dim) / 2), 0)
    return found / np.maximum(found.sum(axis=1, keepdims=True), 1e-300)


def drawn(function: Any, *arguments: np.ndarray) -> mining.Triplets:
    return jax.jit(jax.vmap(lambda key: function(key, *map(jnp.asarray, arguments))))(KEYS)


def test_distance_weighted() -> None:
    x = on_sphere(8, 12)
    triplets = drawn(mining.distance_weighted, x, CLASSES)
    same = ~DIFFERENT & ~np.eye(8, dtype=bool)
    valid = same.any(axis=1)
    assert 0 < valid.sum() < 8
    np.testing.assert_array_equal(triplets.valid, np.tile(valid, (DRAWS, 1)))
    np.testing.assert_array_equal(triplets.anchors[0], np.arange(8))
    check(triplets.positives[:, valid], (same / np.maximum(same.sum(1), 1)[:, None])[valid])
    negatives = likely(np.linalg.norm(x[:, None] - x[None], axis=2), DIFFERENT, 12)
    check(triplets.negatives[:, valid], negatives[valid])


def test_across_classes() -> None:
    x = on_sphere(8, 12)
    triplets = drawn(mining.across_classes, x, CLASSES)
    assert bool(triplets.valid.all())
    a, p, n = (CLASSES[np.asarray(part)] for part in triplets[:3])
    assert np.all((a != p) & (a != n) & (p != n))
    negatives = likely(np.linalg.norm(x[:, None] - x[None], axis=2), DIFFERENT, 12)
    third = DIFFERENT[:, None] & DIFFERENT[None]  # [anchor, negative, positive]
    check(triplets.negatives, negatives)
    uniform = third / np.maximum(third.sum(axis=2, keepdims=True), 1)
    check(triplets.positives, np.einsum("an,anp->ap", negatives, uniform))


def test_within_class() -> None:
    """Classes are equally likely regardless of size; with two samples a quarter of the triplets is one image."""
    labels = np.array([5, 5, 2, 2, 2, 2, 9, 2])
    triplets = drawn(mining.within_class, labels)
    assert triplets.anchors.shape == (DRAWS, 8)
    assert bool(triplets.valid.all())
    a, p, n = (np.asarray(part) for part in triplets[:3])
    assert np.all((labels[a] == labels[p]) & (labels[a] == labels[n]))
    expected = 1 / 3 / (labels[:, None] == labels[None]).sum(axis=1)
    for part in triplets[:3]:
        check(part, np.tile(expected, (8, 1)))
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


def test_semi_hard_and_random_triplets() -> None:
    """The nearest negative beyond the drawn positive, or the farthest one; and any."""
    chosen = jax.jit(jax.vmap(lambda key: mining.mine("semi_hard", key, *GIVEN, dim=4)))(KEYS[:20])
    uniform = jax.jit(jax.vmap(lambda key: mining.mine("random", key, *GIVEN, dim=4)))(KEYS)
    np.testing.assert_array_equal(chosen.valid[0], POSITIVE.any(axis=1))
    rows, fallbacks = np.flatnonzero(POSITIVE.any(axis=1)), 0
    for positives, negatives in zip(chosen.positives, chosen.negatives, strict=True):
        for i in rows:
            near, far = D[i, positives[i]], D[i][NEGATIVE[i]]
            fallbacks += not (far > near).any()
            assert POSITIVE[i, positives[i]]
            expected = far[far > near].min() if (far > near).any() else far.max()
            assert D[i, negatives[i]] == expected
    assert fallbacks > 0
    for part, mask in ((uniform.positives, POSITIVE), (uniform.negatives, NEGATIVE)):
        check(part[:, rows], (mask / np.maximum(mask.sum(axis=1), 1)[:, None])[rows])


def test_one_pair_per_class() -> None:
    draws = jax.jit(jax.vmap(lambda key: mining.class_pairs(key, jnp.asarray(LABELS))))(KEYS[:200])
    seen = set()
    for positives, valid in zip(*map(np.asarray, draws), strict=True):
        chosen = [(int(a), int(positives[a])) for a in np.flatnonzero(valid)]
        assert [LABELS[a] for a, _ in chosen] == [0, 1, 2, 4]
        assert all(POSITIVE[pair] for pair in chosen)
        seen |= set(chosen)
    assert len(seen) == POSITIVE.sum()


def test_easy_and_semi_hard_positives() -> None:
    d = GIVEN[0]
    easy, semi = (
        jax.jit(partial(mining.mine, kind, None, dim=5))(*GIVEN) for kind in ("easy_positive", "semi_hard_positive")
    )
    assert list(easy.valid) == list(POSITIVE.any(axis=1))
    for i in np.flatnonzero(easy.valid):
        p, n = np.flatnonzero(POSITIVE[i]), np.flatnonzero(NEGATIVE[i])
        nearest, hardest = p[d[i, p].argmin()], n[d[i, n].argmin()]
        beyond, before = n[d[i, n] > d[i, nearest]], p[d[i, p] < d[i, hardest]]
        farther = beyond[d[i, beyond].argmin()] if len(beyond) else n[d[i, n].argmax()]
        assert (easy.positives[i], easy.negatives[i]) == (nearest, farther)
        assert semi.valid[i] == (len(before) > 0)
        if len(before):
            chosen = before[d[i, before].argmax()]
            assert (semi.positives[i], semi.negatives[i]) == (chosen, hardest)


def test_cut_offs_of_the_distance() -> None:
    """Negatives nearer than the lower one are equally likely; beyond the upper one are none."""
    below, limit = (float(np.quantile(D[NEGATIVE], q)) for q in (0.6, 0.5))
    mine = partial(mining.mine, "distance_weighted", dim=5)
    found = jax.jit(jax.vmap(lambda key: mine(key, *GIVEN, nearest=below).negatives))(KEYS)
    check(found, likely(D, NEGATIVE, 5, below))
    mine = jax.jit(mine, static_argnames="farthest")
    for key in KEYS[:5]:
        far = mine(key, *GIVEN, farthest=limit)
        assert D[np.arange(12), far.negatives][np.asarray(far.valid)].max() <= limit
    assert not mine(KEY, *GIVEN, farthest=1e-3).valid.any()
