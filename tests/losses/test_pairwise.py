"""Pairwise distances, losses of given pairs, mining between two sets and the memory, compared with float64 loops."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.losses import cross_batch_memory, mining, pair_losses, pairwise

RNG = np.random.default_rng(2)
X = RNG.normal(size=(10, 4))
LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3])
SAME = LABELS[:, None] == LABELS[None]
POSITIVE, NEGATIVE = SAME & ~np.eye(10, dtype=bool), ~SAME
D = np.linalg.norm(X[:, None] - X[None], axis=-1)


def given() -> tuple[jax.Array, jax.Array, jax.Array]:
    return jnp.asarray(D), jnp.asarray(POSITIVE), jnp.asarray(NEGATIVE)


def test_what_anchors_are_compared_with() -> None:
    """The batch or other candidates; rows of unit length unless told otherwise."""
    x, others = jnp.asarray(3 * X, jnp.float32), jnp.asarray(2 * X[:4], jnp.float32)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    candidates = pairwise.Candidates(others, jnp.asarray(POSITIVE[:, :4]), jnp.asarray(NEGATIVE[:, :4]))
    for normalize, anchors, compared in ((True, unit, unit[:4]), (False, 3 * X, 2 * X[:4])):
        found, batch = pairwise.compared(x, jnp.asarray(LABELS), None, normalize=normalize)
        np.testing.assert_allclose(found, anchors, rtol=1e-5)
        np.testing.assert_array_equal(batch.embeddings, found)
        np.testing.assert_array_equal(batch.positive, POSITIVE)
        found, given = pairwise.compared(x, jnp.asarray(LABELS), candidates, normalize=normalize)
        np.testing.assert_allclose(found, anchors, rtol=1e-5)
        np.testing.assert_allclose(given.embeddings, compared, rtol=1e-5)
        np.testing.assert_array_equal(given.negative, NEGATIVE[:, :4])


def test_distances_and_masks(x64: None) -> None:
    np.testing.assert_allclose(pairwise.distances(jnp.asarray(X), jnp.asarray(X))[~np.eye(10, dtype=bool)], D[D > 0])
    positive, negative = pairwise.masks(jnp.asarray(LABELS))
    np.testing.assert_array_equal(positive, POSITIVE)
    np.testing.assert_array_equal(negative, NEGATIVE)


def test_distances_of_duplicates_have_a_finite_gradient() -> None:
    x = jnp.ones((3, 2))
    assert jnp.all(jnp.isfinite(jax.grad(lambda x: pairwise.distances(x, x).sum())(x)))


@pytest.mark.parametrize("squared", [False, True])
def test_contrastive(squared: bool, x64: None) -> None:
    pull, push = pair_losses.contrastive_hinges(*given(), positive_margin=0.5, negative_margin=3.0, squared=squared)
    for i, j in np.ndindex(10, 10):
        near, far = max(D[i, j] - 0.5, 0) * POSITIVE[i, j], max(3 - D[i, j], 0) * NEGATIVE[i, j]
        expected = (near**2 / 2, far**2 / 2) if squared else (near, far)
        assert (pull[i, j], push[i, j]) == pytest.approx(expected, rel=1e-12)


def test_lifted_structure(x64: None) -> None:
    ours = pair_losses.lifted_structure_losses(*given(), margin=1.0)
    for i, j in np.ndindex(10, 10):
        expected = 0.0
        if POSITIVE[i, j]:
            around = [np.exp(1 - D[i, k]) for k in range(10) if NEGATIVE[i, k]]
            around += [np.exp(1 - D[j, k]) for k in range(10) if NEGATIVE[j, k]]
            expected = max(np.log(sum(around)) + D[i, j], 0) ** 2 / 2
        assert ours[i, j] == pytest.approx(expected, rel=1e-12)


def test_n_pair(x64: None) -> None:
    s = X @ X.T
    positives = np.array([1, 0, 0, 4, 3, 6, 5, 5, 5, 0])
    ours = pair_losses.n_pair_losses(jnp.asarray(s), jnp.asarray(positives), jnp.asarray(NEGATIVE))
    expected = [
        np.log(1 + sum(np.exp(s[i, n] - s[i, p]) for n in range(10) if NEGATIVE[i, n])) for i, p in enumerate(positives)
    ]
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_losses_without_negatives_are_zero_with_a_finite_gradient() -> None:
    d, positive, _ = given()
    d, none = d.astype(jnp.float32), jnp.zeros((10, 10), bool)
    lifted = lambda d: pair_losses.lifted_structure_losses(d, positive, none).sum()  # noqa: E731
    paired = lambda d: pair_losses.n_pair_losses(d, jnp.zeros(10, int), none).sum()  # noqa: E731
    for function in (lifted, paired):
        value, gradient = jax.value_and_grad(function)(d)
        assert value == 0
        assert jnp.all(gradient == 0)


def check(triplets: mining.Triplets) -> None:
    """A triplet is valid if its class has two samples; positives and negatives are of the right class."""
    np.testing.assert_array_equal(triplets.anchors, np.arange(10))
    np.testing.assert_array_equal(triplets.valid, LABELS != 3)
    valid = np.asarray(triplets.valid)
    assert POSITIVE[np.arange(10)[valid], np.asarray(triplets.positives)[valid]].all()
    assert NEGATIVE[np.arange(10)[valid], np.asarray(triplets.negatives)[valid]].all()


def test_hard_triplets() -> None:
    triplets = mining.hard_triplets(*given())
    check(triplets)
    for i in np.flatnonzero(triplets.valid):
        assert D[i, triplets.positives[i]] == D[i][POSITIVE[i]].max()
        assert D[i, triplets.negatives[i]] == D[i][NEGATIVE[i]].min()


def test_semi_hard_triplets() -> None:
    fallbacks = 0
    for seed in range(20):
        triplets = mining.semi_hard_triplets(jax.random.key(seed), *given())
        check(triplets)
        for i in np.flatnonzero(triplets.valid):
            near, far = D[i, triplets.positives[i]], D[i][NEGATIVE[i]]
            fallbacks += not (far > near).any()
            expected = far[far > near].min() if (far > near).any() else far.max()
            assert D[i, triplets.negatives[i]] == expected
    assert fallbacks > 0


def frequencies(draw: jax.Array, columns: int) -> np.ndarray:
    return np.bincount(np.asarray(draw), minlength=columns) / len(draw)


def test_sampling_probabilities() -> None:
    keys = jax.random.split(jax.random.key(0), 4000)
    _, positive, negative = given()
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    d = np.linalg.norm(unit[:, None] - unit[None], axis=-1)

    uniform = jax.vmap(lambda k: mining.random_triplets(k, positive, negative))(keys)
    np.testing.assert_allclose(frequencies(uniform.positives[:, 0], 10), POSITIVE[0] / POSITIVE[0].sum(), atol=0.03)
    np.testing.assert_allclose(frequencies(uniform.negatives[:, 0], 10), NEGATIVE[0] / NEGATIVE[0].sum(), atol=0.03)

    drawn = jax.vmap(lambda k: mining.weighted_triplets(k, jnp.asarray(d), positive, negative, dim=4))(keys)
    clipped = np.maximum(d[0], 0.5)
    density = clipped**2 * np.sqrt(np.maximum(1 - clipped**2 / 4, 1e-12))
    weights = np.where(NEGATIVE[0], 1 / density, 0)
    np.testing.assert_allclose(frequencies(drawn.negatives[:, 0], 10), weights / weights.sum(), atol=0.03)


def test_one_pair_per_class() -> None:
    keys = jax.random.split(jax.random.key(0), 200)
    draws = jax.vmap(lambda key: mining.class_pairs(key, jnp.asarray(LABELS)))(keys)
    seen = set()
    for positives, valid in zip(*map(np.asarray, draws), strict=True):
        chosen = [(int(a), int(positives[a])) for a in np.flatnonzero(valid)]
        assert [LABELS[a] for a, _ in chosen] == [0, 1, 2]
        assert all(LABELS[a] == LABELS[p] and a != p for a, p in chosen)
        seen |= set(chosen)
    assert len(seen) == 6 + 2 + 12


def test_mining_by_name() -> None:
    d, positive, negative = given()
    key = jax.random.key(3)
    expected = {
        "random": mining.random_triplets(key, positive, negative),
        "semi_hard": mining.semi_hard_triplets(key, d, positive, negative),
        "hard": mining.hard_triplets(d, positive, negative),
        "distance_weighted": mining.weighted_triplets(key, d, positive, negative, dim=4),
    }
    assert set(expected) == set(get_args(mining.Mining))
    for name, triplets in expected.items():
        jax.tree.map(np.testing.assert_array_equal, mining.mine(name, key, d, positive, negative, dim=4), triplets)  # type: ignore[arg-type]
    mining.mine("hard", None, d, positive, negative, dim=4)
    with pytest.raises(ValueError, match="mining='random': draws at random; give key="):
        mining.mine("random", None, d, positive, negative, dim=4)


def test_memory_is_first_in_first_out() -> None:
    queue = cross_batch_memory.empty(3, 2)
    for step in range(3):
        rows = {"embeddings": jnp.full((2, 2), float(step)), "labels": jnp.array([10 * step, 10 * step + 1])}
        queue = cross_batch_memory.enqueue(queue, rows)
        if step == 0:
            assert queue["labels"].tolist() == [cross_batch_memory.EMPTY, 0, 1]
            positive, negative = cross_batch_memory.masks(jnp.array([1, 7]), queue["labels"])
            assert positive.tolist() == [[False, False, True], [False, False, False]]
            assert negative.tolist() == [[False, True, False], [False, True, True]]
    assert queue["labels"].tolist() == [11, 20, 21]
    assert queue["embeddings"][:, 0].tolist() == [1.0, 2.0, 2.0]
