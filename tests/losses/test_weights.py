"""Weights of anchors: those of whole numbers count an anchor so many times."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.losses import Candidates
from tests.losses import test_public as public
from tests.losses.test_duplicates import with_duplicates
from tests.losses.test_public import (
    BETA,
    BIAS,
    CALLS,
    CENTERS,
    KERNEL,
    KEY,
    LABELS,
    POSITIVE,
    PROXIES,
    X,
)

Loss = Callable[..., jax.Array]
OF_CLASSES: dict[str, tuple[Loss, tuple[np.ndarray, ...], dict[str, Any]]] = {
    "softmax": (losses.softmax, (KERNEL, BIAS), {"smoothing": 0.1}),
    "normalized_softmax": (losses.normalized_softmax, (PROXIES,), {}),
    "arcface": (losses.arcface, (PROXIES,), {"scale": 16}),
    "cosface": (losses.cosface, (PROXIES,), {"scale": 16}),
    "subcenter_arcface": (losses.subcenter_arcface, (CENTERS,), {"scale": 16}),
    "proxy_nca": (losses.proxy_nca, (PROXIES,), {}),
    "proxy_nca_pp": (losses.proxy_nca_pp, (PROXIES,), {}),
    "proxy_anchor": (losses.proxy_anchor, (PROXIES,), {}),
    "soft_triple": (losses.soft_triple, (CENTERS,), {}),
}
OF_PAIRS: dict[str, tuple[Loss, tuple[np.ndarray, ...], dict[str, Any]]] = {
    "contrastive": (losses.contrastive, (), {}),
    "triplet": (losses.triplet, (), {"mining": "hard"}),
    "triplet, all": (losses.triplet, (), {"mining": "all"}),
    "nt_xent": (losses.nt_xent, (), {}),
    "margin": (losses.margin, (BETA,), {"mining": "hard", "nu": 0.1}),
    "margin, pairs": (losses.margin, (BETA,), {"mining": "hard", "nu": 0.1, "divisor": "pairs"}),
    "multi_similarity": (losses.multi_similarity, (), {}),
    "multi_similarity, active": (losses.multi_similarity, (), {"divisor": "active"}),
    "circle": (losses.circle, (), {}),
    "sup_con": (losses.sup_con, (), {}),
    "smooth_ap": (losses.smooth_ap, (), {"temperature": 0.1}),
    "recall_at_k": (losses.recall_at_k, (), {"temperature": 0.1}),
}
FAST = (
    "subcenter_arcface",
    "proxy_anchor",
    "contrastive",
    "margin, pairs",
    "multi_similarity, active",
)
INPUTS = [
    *(np.random.default_rng(seed).normal(size=(12, 5)) for seed in range(10)),
    with_duplicates().astype(float),
]


def test_every_loss_is_weighted() -> None:
    tested = {name.split(",")[0] for name in {**OF_CLASSES, **OF_PAIRS}} | {
        "lifted_structure",
        "n_pair",
    }
    assert tested == set(CALLS)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in FAST else pytest.mark.slow)
        for n in (*OF_CLASSES, *OF_PAIRS)
    ],
)
def test_anchors_count_as_often_as_their_weights(name: str, x64: None) -> None:
    """Values and gradients, on ten random batches, one with copies and zeros, and one with a single
    class."""
    loss, tables, options = (OF_CLASSES | OF_PAIRS)[name]
    given = tuple(map(jnp.asarray, tables))

    def weighted(x: jax.Array, labels: jax.Array, rows: jax.Array) -> jax.Array:
        counts = jnp.zeros(12).at[rows].add(1.0)
        return loss(x, labels, *given, weights=counts, **options)

    def repeated(x: jax.Array, labels: jax.Array, rows: jax.Array) -> jax.Array:
        if name in OF_CLASSES:
            return loss(x[rows], labels[rows], *given, **options)
        same = labels[:, None] == labels[None]
        masks = (same & ~jnp.eye(12, dtype=bool))[rows], ~same[rows]
        return loss(x[rows], labels[rows], *given, candidates=Candidates(x, *masks), **options)

    functions = [jax.jit(jax.value_and_grad(function)) for function in (weighted, repeated)]
    for seed, x in enumerate([*INPUTS, X]):
        labels = np.zeros(12, int) if seed == len(INPUTS) else LABELS
        rows = np.random.default_rng(seed).integers(12, size=12)
        (value, gradient), (expected, slopes) = (
            f(*map(jnp.asarray, (x, labels, rows))) for f in functions
        )
        np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(
            gradient, slopes, rtol=1e-7, atol=1e-9 * max(1.0, float(jnp.abs(slopes).max()))
        )


def test_lifted_structure_and_n_pair(x64: None) -> None:
    x, labels, weights = (
        jnp.asarray(X),
        jnp.asarray(LABELS),
        np.random.default_rng(0).uniform(0, 2, 12),
    )
    found = jax.jit(losses.lifted_structure)(x, labels, weights=weights)
    np.testing.assert_allclose(found, public.lifted_structure(weights), rtol=1e-9)

    each = np.asarray(
        jax.jit(lambda x: losses.per_anchor(losses.n_pair, x, labels, l2=0.0, key=KEY))(x)
    )
    unweighted = float(jax.jit(losses.n_pair)(x, labels, l2=0.0, key=KEY))
    counted = each > 0  # one anchor of each class with a pair
    assert counted.sum() == 4
    np.testing.assert_allclose(each[counted].mean(), unweighted, rtol=1e-12)
    found = jax.jit(losses.n_pair)(x, labels, l2=0.01, key=KEY, weights=weights)
    expected = np.average(each[counted], weights=weights[counted])
    lengths = np.average((X**2).sum(1), weights=weights)
    np.testing.assert_allclose(found, expected + 0.01 * lengths, rtol=1e-12)


def test_the_loss_of_each_anchor(x64: None) -> None:
    x, labels = jnp.asarray(X), jnp.asarray(LABELS)
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    logits = unit @ (PROXIES / np.linalg.norm(PROXIES, axis=1, keepdims=True)).T / 0.05
    expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(12), LABELS]
    found = jax.jit(partial(losses.per_anchor, losses.normalized_softmax))(x, labels, PROXIES)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    expected = np.zeros(12)
    for i in np.flatnonzero(POSITIVE.any(axis=1)):
        s = unit[i] @ unit.T / 0.1
        expected[i] = np.log(np.exp(np.delete(s, i)).sum()) - s[POSITIVE[i]].mean()
    found = jax.jit(partial(losses.per_anchor, losses.sup_con))(x, labels)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    found = losses.per_anchor(losses.sup_con, X.tolist(), LABELS.tolist())
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_only_the_ratios_of_weights_matter(x64: None) -> None:
    x, labels, weights = (
        jnp.asarray(X),
        jnp.asarray(LABELS),
        jnp.asarray(np.random.default_rng(0).uniform(0, 2, 12)),
    )
    for divisor in ("active", "pairs"):
        margin = jax.jit(partial(losses.margin, mining="hard", divisor=divisor))
        large, small = (
            margin(x, labels, jnp.asarray(BETA), weights=w) for w in (weights, weights / 1000)
        )
        np.testing.assert_allclose(small, large, rtol=1e-12)


def test_weights_of_zero_leave_rows_without_a_class_out() -> None:
    labels = np.where(LABELS == 3, -1, LABELS)
    cosface = jax.jit(losses.cosface)
    found = cosface(X, labels, PROXIES, weights=(labels >= 0).astype(float))
    known = LABELS != 3
    expected = cosface(X[known], labels[known], PROXIES)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
