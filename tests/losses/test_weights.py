"""Weights of anchors: those of whole numbers count an anchor so many times."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.methods.baseline import LOSSES
from tests.losses import references as ref
from tests.losses.references import EYE, KEY, LABELS, OF_CLASSES, POSITIVE, PROXIES, X

# By loss: options. What lifted structure and N-pair give is compared below.
CASES: dict[str, dict[str, Any]] = {name: {} for name in (*OF_CLASSES, *LOSSES)} | {
    "softmax": {"smoothing": 0.1},
    "margin": {"nu": 0.1},
    "margin, pairs": {"nu": 0.1, "divisor": "pairs"},
    "triplet": {"mining": "hard"},
    "triplet, all": {"mining": "all"},
    "multi_similarity, active": {"divisor": "active"},
}
for other in ("cross_entropy", "lifted_structure", "n_pair"):
    del CASES[other]
FAST = ("subcenter_arcface", "proxy_anchor", "contrastive", "margin, pairs")
FAST += ("multi_similarity, active",)
WEIGHTS = np.random.default_rng(0).uniform(0, 2, 12)
equal = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in CASES])
def test_anchors_count_as_often_as_their_weights(case: str, x64: None) -> None:
    """Values and gradients, on random batches, and one with copies and zeros, of a single class."""
    name = case.partition(",")[0]
    loss = ref.call(name, **CASES[case])

    def weighted(x: jax.Array, labels: jax.Array, rows: jax.Array) -> jax.Array:
        return loss(x, labels, weights=jnp.zeros(12).at[rows].add(1.0))

    def repeated(x: jax.Array, labels: jax.Array, rows: jax.Array) -> jax.Array:
        if name in OF_CLASSES and name != "margin":
            return loss(x[rows], labels[rows])
        same = labels[:, None] == labels[None]
        among = losses.Candidates(x, (same & ~EYE)[rows], ~same[rows])
        return loss(x[rows], labels[rows], candidates=among)

    functions = [jax.jit(jax.value_and_grad(function)) for function in (weighted, repeated)]
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x, labels = (rng.normal(size=(12, 5)), LABELS) if seed else (ref.with_duplicates(), 0 * LABELS)
        given = *map(jnp.asarray, (x.astype(float), labels)), rng.integers(12, size=12)
        (value, gradient), (expected, slopes) = (function(*given) for function in functions)
        equal(value, expected)
        np.testing.assert_allclose(gradient, slopes, rtol=1e-7, atol=1e-9 * max(1.0, float(jnp.abs(slopes).max())))


def test_lifted_structure_and_n_pair(x64: None) -> None:
    found = jax.jit(losses.lifted_structure)(X, LABELS, weights=WEIGHTS)
    equal(found, ref.lifted_structure(WEIGHTS))
    n_pair = jax.jit(partial(losses.n_pair, key=KEY))
    each = jax.jit(partial(losses.per_anchor, losses.n_pair, l2=0.0, key=KEY))(X, LABELS)
    counted = np.asarray(each) > 0  # one anchor of each class with a pair
    assert counted.sum() == 4
    equal(each[counted].mean(), n_pair(X, LABELS, l2=0.0))
    lengths = np.average((X**2).sum(1), weights=WEIGHTS)
    expected = np.average(each[counted], weights=WEIGHTS[counted]) + 0.01 * lengths
    equal(n_pair(X, LABELS, l2=0.01, weights=WEIGHTS), expected)


def test_the_loss_of_each_anchor(x64: None) -> None:
    logits = ref.C / 0.05
    expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(12), LABELS]
    found = jax.jit(partial(losses.per_anchor, losses.normalized_softmax))(X, LABELS, PROXIES)
    equal(found, expected)
    s = np.where(EYE, -np.inf, ref.S / 0.1)
    own = np.where(POSITIVE, s, 0).sum(axis=1) / np.maximum(POSITIVE.sum(axis=1), 1)
    expected = np.where(POSITIVE.any(axis=1), np.log(np.exp(s).sum(axis=1)) - own, 0)
    equal(jax.jit(partial(losses.per_anchor, losses.sup_con))(X, LABELS), expected)
    found = losses.per_anchor(losses.sup_con, X.tolist(), LABELS.tolist())
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_without_any_weight_a_loss_is_zero(name: str) -> None:
    loss = ref.by_default(name, **({"spread": 0.0} if name == "soft_triple" else {}))
    call = jax.value_and_grad(lambda x: loss(x, weights=np.zeros(12)))
    value, gradient = jax.jit(call)(X)
    assert float(value) == 0
    assert not np.asarray(gradient).any()


def test_only_the_ratios_of_weights_matter(x64: None) -> None:
    for divisor in ("active", "pairs"):
        margin = jax.jit(ref.call("margin", divisor=divisor))
        equal(margin(X, LABELS, weights=WEIGHTS / 1000), margin(X, LABELS, weights=WEIGHTS))


def test_weights_of_zero_leave_rows_without_a_class_out() -> None:
    known, cosface = LABELS != 3, jax.jit(losses.cosface)
    found = cosface(X, np.where(known, LABELS, -1), PROXIES, weights=known.astype(float))
    expected = cosface(X[known], LABELS[known], PROXIES)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_values_that_are_not_known_before_they_are_used_are_not_hidden() -> None:
    """A traced weight that is NaN gives NaN; a negative one counts as it is."""
    for name in ("nt_xent", "proxy_anchor", "margin"):
        loss = ref.by_default(name)
        assert np.isnan(jax.jit(lambda w, loss=loss: loss(X, weights=w))(np.full(12, np.nan)))
    weights, logits = np.linspace(-1, 3, 12), X @ ref.KERNEL + ref.BIAS
    each = np.log(np.exp(logits).sum(1)) - logits[np.arange(12), LABELS]
    found = jax.jit(lambda w: ref.call("softmax")(X, weights=w))(weights)
    np.testing.assert_allclose(found, np.average(each, weights=weights), rtol=1e-5)
