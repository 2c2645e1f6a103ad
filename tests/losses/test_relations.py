"""Relations in place of labels, mining strategies and NT-Xent against loops in float64."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.errors import DataError
from dml_jax.losses import mining
from dml_jax.methods.baseline import LOSSES, PAIR_LOSSES
from tests.losses import test_public as public
from tests.losses.test_public import KEY, LABELS, NEGATIVE, POSITIVE, D, X

RNG = np.random.default_rng(5)
TAGS = RNG.random((12, 5)) < 0.3
SHARED = (TAGS[:, None] & TAGS[None]).sum(2).astype(float)
NEAR, FAR = (SHARED > 0) & ~np.eye(12, dtype=bool), SHARED == 0
WEIGHTS = SHARED * NEAR


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_masks_of_equal_labels_give_the_loss_of_the_labels(name: str, x64: None) -> None:
    options: dict[str, Any] = {"key": KEY} if name in ("triplet", "margin", "n_pair") else {}
    table = (np.ones(6),) if name == "margin" else ()
    masks = {
        "positive": POSITIVE | np.eye(12, dtype=bool),
        "negative": NEGATIVE,
    }  # a row is not its own positive
    # N-pair draws other pairs among candidates, without the weight of the lengths.
    among = {"candidates": losses.Candidates(X, POSITIVE, NEGATIVE)} if name == "n_pair" else {}

    @jax.jit
    def both(x: jax.Array, labels: jax.Array, *table: jax.Array) -> tuple[jax.Array, jax.Array]:
        of_masks = LOSSES[name](x, labels if table else None, *table, **masks, **options)
        return of_masks, LOSSES[name](x, labels, *table, **options, **among)

    found, expected = both(X, LABELS, *table)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "expected", "options"),
    [
        ("contrastive", public.contrastive, {"negative_margin": 0.9}),
        (
            "multi_similarity",
            partial(public.multi_similarity, mining=False),
            {"mining": False, "copies": "keep"},
        ),
        ("sup_con", public.sup_con, {"temperature": 0.2}),
        ("nt_xent", public.nt_xent, {"temperature": 0.2}),
    ],
)
def test_weights_of_pairs(name: str, expected: Any, options: dict[str, Any], x64: None) -> None:
    """Weights from shared tags, and weights of 1; masks are compared with labels above."""
    call = lambda x, positive: LOSSES[name](x, positive=positive, negative=FAR, **options)  # noqa: E731
    weighted = jax.jit(jax.value_and_grad(call))
    for positive in (WEIGHTS, NEAR.astype(float)):
        value, gradient = weighted(X, positive)
        np.testing.assert_allclose(value, expected(positive, FAR), rtol=1e-9)
        assert np.isfinite(gradient).all()


def test_easy_and_semi_hard_positives() -> None:
    d = D.astype(np.float32)
    easy = jax.jit(partial(mining.mine, "easy_positive", None, dim=5))(d, POSITIVE, NEGATIVE)
    semi = jax.jit(partial(mining.mine, "semi_hard_positive", None, dim=5))(d, POSITIVE, NEGATIVE)
    assert list(easy.valid) == list(POSITIVE.any(axis=1))
    for i in np.flatnonzero(easy.valid):
        p, n = np.flatnonzero(POSITIVE[i]), np.flatnonzero(NEGATIVE[i])
        nearest = p[d[i, p].argmin()]
        beyond = n[d[i, n] > d[i, nearest]]
        assert easy.positives[i] == nearest
        assert easy.negatives[i] == (
            beyond[d[i, beyond].argmin()] if len(beyond) else n[d[i, n].argmax()]
        )
        hardest = n[d[i, n].argmin()]
        before = p[d[i, p] < d[i, hardest]]
        assert semi.valid[i] == (len(before) > 0)
        if len(before):
            assert (semi.positives[i], semi.negatives[i]) == (
                before[d[i, before].argmax()],
                hardest,
            )


def test_an_upper_cut_off_of_the_distance() -> None:
    d = D.astype(np.float32)
    limit = float(np.median(D[NEGATIVE]))
    mine = jax.jit(partial(mining.mine, "distance_weighted", dim=5), static_argnames="farthest")
    for seed in range(5):
        drawn = mine(jax.random.key(seed), d, POSITIVE, NEGATIVE, farthest=limit)
        chosen = d[np.arange(12), drawn.negatives][np.asarray(drawn.valid)]
        assert chosen.max() <= limit
    assert not mine(KEY, d, POSITIVE, NEGATIVE, farthest=1e-3).valid.any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"positive": NEAR[:5], "negative": FAR},
            r"positive: has shape \[5, 12\]; give \[12, 12\]",
        ),
        ({"positive": NEAR, "negative": NEAR}, r"positive, negative: pair \(\d+, \d+\) is in both"),
        (
            {"positive": WEIGHTS, "negative": FAR},
            "positive: holds float.*; recall_at_k takes no weights",
        ),
        (
            {"positive": NEAR, "negative": FAR, "candidates": X[:7]},
            r"positive: has shape \[12, 12\]; give \[12, 7\]",
        ),
    ],
)
def test_relations_that_do_not_fit(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        losses.recall_at_k(X, **given)


def test_relations_with_negative_weights() -> None:
    def signs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(a[:, None] == b[None], 1.0, -1.0)

    with pytest.raises(DataError, match=r"positive: hold -1\.0 in row 0; give finite numbers >= 0"):
        losses.contrastive(X, LABELS, relation=signs)


def test_a_boundary_of_each_class_needs_labels() -> None:
    masks = {"positive": POSITIVE, "negative": NEGATIVE}
    with pytest.raises(DataError, match=r"labels: have shape \[\] for .*; give \[12\]"):
        losses.margin(X, None, np.ones(6), mining="hard", **masks)


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_a_distance_of_another_shape(name: str) -> None:
    options = {"mining": "hard"} if name in ("triplet", "margin") else {}
    options |= {"key": KEY} if name == "n_pair" else {}
    table = (np.ones(6),) if name == "margin" else ()

    def of_each(a: jax.Array, b: jax.Array) -> jax.Array:
        return abs(a - b).sum(axis=1)

    with pytest.raises(
        DataError, match=r"distance: returns \[12\] for 12 and 12 rows; give \[N, M"
    ):
        LOSSES[name](X, LABELS, *table, distance=of_each, **options)
