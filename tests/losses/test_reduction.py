"""One divisor, one distance and unreduced values for all losses on pairs, against NumPy."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.config import modules
from dml_jax.losses import mining, pairwise, signature
from dml_jax.methods.baseline import LOSSES, PAIR_LOSSES
from tests.losses.test_public import BETA, KEY, LABELS, NEGATIVE, POSITIVE, ROWS, D, S, X, floats
from tests.losses.test_relations import FAR, NEAR, SHARED, WEIGHTS

DRAWN = np.random.default_rng(8).integers(1, 5, (12, 12))
FARS = np.where(FAR, DRAWN + DRAWN.T, 0.0)  # weights of negatives
ALL_TRIPLETS: Any = "triplet", {"mining": "all", "swap": True}
MANHATTAN = np.abs(X[:, None] - X[None]).sum(axis=2)  # of embeddings as they are


def manhattan(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.abs(a[:, None] - b[None]).sum(axis=2)


def call(name: str, **options: Any) -> Callable[..., Any]:
    if name in ("triplet", "margin") and "mining" not in options:
        options["mining"] = "hard"
    if name == "n_pair":
        options["key"] = KEY
    tables = (BETA,) if name == "margin" else ()
    return lambda x, y=LABELS, **given: LOSSES[name](x, y, *map(floats, tables), **options, **given)


def test_mined_triplets_with_the_nearer_side(x64: None) -> None:
    """With swap=True, the negative's distance to the positive counts if that is smaller."""
    mined = partial(losses.triplet, mining="easy_positive", squared=False, margin=0.05)
    each = np.asarray(jax.jit(partial(mined, swap=True, reduce=None))(X, LABELS))
    mine = jax.jit(partial(mining.mine, "easy_positive", None, dim=5))
    drawn = mine(D, POSITIVE, NEGATIVE)
    changed = 0
    for a in np.flatnonzero(drawn.valid):
        p, n = int(drawn.positives[a]), int(drawn.negatives[a])
        assert each[a] == pytest.approx(max(D[a, p] - min(D[a, n], D[p, n]) + 0.05, 0), abs=1e-12)
        changed += D[p, n] < D[a, n]
    assert changed
    mean = jax.jit(partial(mined, swap=True, divisor="active"))(X, LABELS)
    assert float(mean) == pytest.approx(each[each > 0].mean(), rel=1e-12)


def test_swapped_triplets_among_candidates(x64: None) -> None:
    """The distance of the negative to the positive is that between two candidates."""
    y = np.random.default_rng(4).normal(size=(7, 5))
    unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
    d, between = (np.linalg.norm(unit(a)[:, None] - unit(y)[None], axis=2) for a in (X, y))
    near, far = POSITIVE[:, :7], NEGATIVE[:, :7]
    each = [
        max(d[a, p] - min(d[a, n], between[p, n]) + 0.05, 0)
        for a, p, n in itertools.product(ROWS, range(7), range(7))
        if near[a, p] and far[a, n]
    ]
    options: dict[str, Any] = {"mining": "all", "swap": True, "squared": False, "margin": 0.05}
    loss = partial(losses.triplet, **options)
    found = jax.jit(lambda x, y: loss(x, candidates=y, positive=near, negative=far))(X, y)
    assert float(found) == pytest.approx(np.mean(each), rel=1e-12)


# Values of pytorch-metric-learning 2.9 for X and LABELS, in float64.
PML: dict[str, tuple[Callable[..., Any], float]] = {
    "TripletMarginLoss()": (
        lambda x, y: losses.triplet(
            x, y, mining="all", squared=False, margin=0.05, divisor="active"
        ),
        0.4750438253415208,
    ),
    "swap=True, MeanReducer()": (
        lambda x, y: losses.triplet(x, y, mining="all", squared=False, swap=True),
        0.6725504294766047,
    ),
    "swap=True, smooth_loss=True": (
        lambda x, y: losses.triplet(
            x, y, mining="all", squared=False, swap=True, smooth=True, divisor="active"
        ),
        1.0968505447403505,
    ),
    "TripletMarginMiner(all)": (
        lambda x, y: losses.triplet(x, y, mining="all", squared=False, divisor="active"),
        0.5737761840176601,
    ),
    "BatchHardMiner()": (
        lambda x, y: losses.triplet(x, y, mining="hard", squared=False, divisor="active"),
        1.1367266141327654,
    ),
    "NTXentLoss(0.5, LpDistance(p=1))": (
        lambda x, y: losses.nt_xent(x, y, temperature=0.5, distance=manhattan),
        6.498662071665341,
    ),
    "SupConLoss(0.5, LpDistance(p=1))": (
        lambda x, y: losses.sup_con(x, y, temperature=0.5, distance=manhattan),
        6.805023416305278,
    ),
    "SupConLoss(0.2)": (
        lambda x, y: losses.sup_con(x, y, temperature=0.2, divisor="active"),
        5.714176332601617,
    ),
    "ContrastiveLoss(MeanReducer())": (
        lambda x, y: losses.contrastive(x, y, divisor="all"),
        1.5988288933365638,
    ),
    "ContrastiveLoss(LpDistance(p=1))": (
        lambda x, y: losses.contrastive(x, y, negative_margin=9.0, distance=manhattan),
        9.781438616611087,
    ),
    "CircleLoss()": (lambda x, y: losses.circle(x, y), 203.54603882318315),
    "DoNothingReducer(), positive": (
        lambda x, y: jnp.sum(losses.contrastive(x, y, reduce=None), where=POSITIVE),
        31.34773827998758,
    ),
    "DoNothingReducer(), negative": (
        lambda x, y: jnp.sum(losses.contrastive(x, y, reduce=None), where=NEGATIVE),
        3.521501685764697,
    ),
}


def test_values_of_pytorch_metric_learning(x64: None) -> None:
    found = jax.jit(lambda x: {name: call(x, LABELS) for name, (call, _) in PML.items()})(X)
    for name, (_, expected) in PML.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-8, err_msg=name)


def test_a_lower_cut_off_of_distance_weighted_mining(x64: None) -> None:
    """1/q of the distance raised to the cut-off: nearer negatives are equally likely."""
    below = float(np.quantile(D[NEGATIVE], 0.6))
    q = np.maximum(D, below)
    likely = np.where(NEGATIVE, q**-3 * (1 - q**2 / 4) ** -1, 0)  # five dimensions
    likely /= likely.sum(axis=1, keepdims=True)
    mine = partial(mining.mine, "distance_weighted", dim=5, nearest=below)
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = np.asarray(
        jax.jit(jax.vmap(lambda key: mine(key, D, POSITIVE, NEGATIVE).negatives))(keys)
    )
    found = np.stack([np.bincount(column, minlength=12) for column in drawn.T]) / len(keys)
    np.testing.assert_allclose(found, likely, atol=0.04)


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in PAIR_LOSSES), ALL_TRIPLETS])
def test_every_loss_takes_a_distance(name: str, options: dict[str, Any], x64: None) -> None:
    """That of unit rows gives the same as the own one; of similarities, up to their base."""

    def negative_cosine(a: jax.Array, b: jax.Array) -> jax.Array:
        rows = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
        return -jnp.matmul(next(rows), next(rows).T)

    def euclidean(a: jax.Array, b: jax.Array) -> jax.Array:
        a, b = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
        return jnp.sqrt(jnp.maximum(2 - 2 * a @ b.T, 1e-30))

    distances = ("contrastive", "triplet", "margin", "lifted_structure")
    distance = euclidean if name in distances else negative_cosine
    if name == "n_pair":
        distance = lambda a, b: -a @ b.T  # noqa: E731 of any length
    own = partial(call, name, **options)
    ours, given = jax.jit(lambda x: (own()(x), own(distance=distance)(x)))(X)
    np.testing.assert_allclose(given, ours, rtol=1e-6)


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_unreduced_values(name: str, x64: None) -> None:
    """Their mean is the loss: of anchors, or of pairs. The weight of the lengths is no part."""
    options: dict[str, Any] = {"l2": 0.0} if name == "n_pair" else {}
    each, active, mean = jax.jit(
        lambda x: (
            call(name, reduce=None)(x),
            call(name, divisor="active", **options)(x),
            call(name, **options)(x),
        )
    )(X)
    each = np.asarray(each)
    pairs = name in ("contrastive", "lifted_structure", "nt_xent")
    assert each.shape == ((12, 12) if pairs else (12,))
    if name == "contrastive":
        pull, push = each[POSITIVE], each[NEGATIVE]
        expected = whole = pull.mean() + push[push > 0].mean()
    else:
        counted = POSITIVE if pairs else POSITIVE.any(axis=1)
        if name == "n_pair":
            counted = each > 0
        elif name == "multi_similarity":
            counted = np.ones(12, bool)
        values = each[counted]
        assert not each[~counted].any()
        expected = whole = values[values > 0].mean()
        if name != "margin":
            whole = values.mean()
    np.testing.assert_allclose((active, mean), (expected, whole), rtol=1e-12)


def test_unreduced_values_of_the_margin_loss(x64: None) -> None:
    """One per anchor with every divisor: both hinges, or the mean of those that are active; with
    weights of pairs, a triplet has the product of the weights of its two pairs."""
    hinges, product = np.zeros((12, 2)), np.zeros(12)
    for a in np.flatnonzero(NEAR.any(axis=1) & FAR.any(axis=1)):
        p = np.flatnonzero(NEAR[a])[D[a][NEAR[a]].argmax()]
        n = np.flatnonzero(FAR[a])[D[a][FAR[a]].argmin()]
        d_ap, d_an = (np.sqrt(D[a, other] ** 2 + 1e-8) for other in (p, n))
        hinges[a] = np.maximum([d_ap - BETA[0] + 0.2, BETA[0] - d_an + 0.2], 0)
        product[a] = WEIGHTS[a, p] * FARS[a, n]
    active, counted = (hinges > 0).sum(axis=1), product > 0
    means = hinges.sum(axis=1) / np.maximum(active, 1)
    assert set(active[counted]) == {1, 2}
    loss = partial(losses.margin, mining="hard", positive=WEIGHTS, negative=FARS)
    found = jax.jit(
        lambda x: {
            divisor: (
                loss(x, beta=BETA[:1], divisor=divisor, reduce=None),
                loss(x, beta=BETA[:1], divisor=divisor),
            )
            for divisor in ("all", "active", "pairs")
        }
    )(X)
    sums = hinges.sum(axis=1)
    expected = {name: (sums, np.average(sums, weights=product)) for name in ("all", "active")}
    expected["pairs"] = means, np.average(means, weights=product * active)
    for name, (each, mean) in expected.items():
        np.testing.assert_allclose(found[name][0], each, rtol=1e-12, err_msg=name)
        np.testing.assert_allclose(found[name][1], mean, rtol=1e-12, err_msg=name)


def test_weights_of_pairs_and_triplets(x64: None) -> None:
    """A triplet counts with the product of the weights of its pairs; in the exponents of the circle
    loss, a pair of weight 2 is two pairs; lifted structure has a weighted mean of its pairs, and
    N-pair of its anchors, by the weights of their positives."""
    triplets = [(a, p, n) for a in ROWS for p in ROWS for n in ROWS if NEAR[a, p] and FAR[a, n]]
    hinges = [max(D[a, p] ** 2 - D[a, n] ** 2 + 0.2, 0) for a, p, n in triplets]
    products = [WEIGHTS[a, p] * FARS[a, n] for a, p, n in triplets]
    expected = {"triplet": np.average(hinges, weights=products)}
    circles, valid = [], NEAR.any(axis=1) & FAR.any(axis=1)
    for i in np.flatnonzero(valid):
        p, n = S[i][NEAR[i]], S[i][FAR[i]]
        push = FARS[i][FAR[i]] @ np.exp(2 * np.maximum(n + 0.4, 0) * (n - 0.4))
        pull = WEIGHTS[i][NEAR[i]] @ np.exp(-2 * np.maximum(1.4 - p, 0) * (p - 0.6))
        circles.append(np.log1p(push * pull))
    expected["circle"] = np.mean(circles)
    around = (FARS * np.exp(1 - D)).sum(axis=1)
    pairs = np.argwhere(NEAR)
    j = [max(np.log(around[a] + around[b]) + D[a, b], 0) ** 2 / 2 for a, b in pairs]
    expected["lifted_structure"] = np.average(j, weights=WEIGHTS[NEAR])
    mined, weights = [], []
    for a in np.flatnonzero(valid):
        p = np.flatnonzero(NEAR[a])[D[a][NEAR[a]].argmax()]
        n = np.flatnonzero(FAR[a])[D[a][FAR[a]].argmin()]
        mined.append(max(D[a, p] ** 2 - D[a, n] ** 2 + 0.2, 0))
        weights.append(WEIGHTS[a, p] * FARS[a, n])
    expected["hard"] = np.average(mined, weights=weights)
    nearest = np.where(NEAR, D, np.inf)
    only = np.where(NEAR & (nearest.min(axis=1, keepdims=True) == nearest), DRAWN, 0.0)
    inner, drawn = X @ X.T, only.argmax(axis=1)
    excess = np.exp(inner - inner[ROWS, drawn][:, None])
    expected["n_pair"] = np.average(np.log1p((FARS * excess).sum(axis=1)), weights=only.sum(axis=1))
    assert len(set(only[only > 0])) > 1
    relation = {"positive": WEIGHTS, "negative": FARS}

    def found(x: jax.Array) -> dict[str, jax.Array]:
        return {
            "triplet": losses.triplet(x, mining="all", **relation),
            "circle": losses.circle(x, gamma=2.0, **relation),
            "lifted_structure": losses.lifted_structure(x, **relation),
            "hard": losses.triplet(x, mining="hard", **relation),
            "n_pair": losses.n_pair(x, positive=only, negative=FARS, key=KEY),
        }

    values = jax.jit(found)(X)
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-9, err_msg=name)


def test_a_relation_of_the_rows_that_are_given_as_labels(x64: None) -> None:
    """The relation takes any rows in place of labels; NaN is neither positive nor negative."""
    tags = (SHARED, np.arange(12))  # any rows: here their number

    def shared(a: Any, b: Any) -> Any:
        weights = tags[0][np.ix_(a, b)]
        return np.where((a[:, None] + b[None]) % 5 == 0, np.nan, weights)

    left = (np.arange(12)[:, None] + np.arange(12)[None]) % 5 == 0
    masks = {"positive": np.where(left, 0, WEIGHTS), "negative": FAR & ~left}
    ours, given = jax.jit(
        lambda x: (losses.sup_con(x, np.arange(12), relation=shared), losses.sup_con(x, **masks))
    )(X)
    np.testing.assert_allclose(ours, given, rtol=1e-12)


def test_a_loss_of_ones_own_takes_everything(x64: None) -> None:
    @signature.loss
    def pulled(
        embeddings: jax.Array,
        labels: Any,
        *,
        scale: float = 2.0,
        divisor: pairwise.Divisor = "active",
        candidates: pairwise.WeightedCandidates = None,
        weights: Any = None,
        distance: Any = None,
        reduce: pairwise.Reduce = "mean",
    ) -> Any:
        """Distances of positive pairs."""
        pairs = pairwise.Pairs.of(embeddings, labels, candidates, weights, distance).compared()
        each = pairwise.Mean(scale * pairs.distances(), pairs.positive > 0, pairs.positive)
        return pairwise.reduced(each, weights, divisor, reduce)

    mean, plain, each = jax.jit(
        lambda x: (
            pulled(x, positive=WEIGHTS, negative=FAR),
            pulled(x, LABELS, scale=1.0, weights=np.arange(12), distance=manhattan),
            pulled(x, LABELS, reduce=None),
        )
    )(X)
    assert float(mean) == pytest.approx(2 * np.average(D[NEAR], weights=WEIGHTS[NEAR]), rel=1e-12)
    weights = np.broadcast_to(np.arange(12)[:, None], (12, 12))[POSITIVE]
    assert float(plain) == pytest.approx(np.average(MANHATTAN[POSITIVE], weights=weights))
    np.testing.assert_allclose(each, np.where(POSITIVE, 2 * D, 0), atol=1e-12)
    assert vars(modules.options(pulled)()) == {"divisor": "active", "scale": 2.0}


def test_more_pairs_than_int32_counts() -> None:
    mean = jax.jit(lambda x: pairwise.weighted_mean(jnp.broadcast_to(x, (51_000, 51_000))))
    assert mean(jnp.float32(1)) == 1  # XLA computes it without the 2.6e9 values
