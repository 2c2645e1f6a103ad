"""Which pairs a loss of pairs has, and how it reduces their values: labels, masks, weights,
relations, candidates, a memory, triplets, distances of the user's own."""

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.config import modules
from dml_jax.losses import cross_batch_memory, mining, pairwise, signature
from dml_jax.methods.baseline import LOSSES, PAIR_LOSSES, takes
from tests.losses import references as ref
from tests.losses.references import BETA, KEY, LABELS, NEGATIVE, POSITIVE, ROWS, D, S, X

equal = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)
every_loss = pytest.mark.parametrize("name", PAIR_LOSSES)
PAST = np.random.default_rng(2).normal(size=(7, 5))
OTHERS = np.array([0, 1, 2, 3, 5, 0, 4])
NEAR, FAR, WEIGHTS = ref.NEAR, ref.FAR, ref.WEIGHTS
DRAWN = np.random.default_rng(8).integers(1, 5, (12, 12))
FARS = np.where(FAR, DRAWN + DRAWN.T, 0.0)  # weights of negatives
RELATION: dict[str, Any] = {"positive": WEIGHTS, "negative": FARS}


def call(name: str, **options: Any) -> Any:
    """A loss of pairs whose triplets are the hardest: (embeddings, labels, …) -> scalar."""
    if takes(LOSSES[name], "mining") and name != "multi_similarity":
        options.setdefault("mining", "hard")
    return ref.by_default(name, **options)


@every_loss
def test_the_same_pairs_from_every_source(name: str, x64: None) -> None:
    """Masks of the batch, of which a row is no positive of its own; and of candidates: masks,
    labels of several types, a relation."""
    same = LABELS[:, None] == OTHERS[None]
    among: Any = losses.Candidates(PAST, same, ~same)  # type: ignore[arg-type]
    masks = {"positive": POSITIVE | ref.EYE, "negative": NEGATIVE}
    kinds: list[tuple[Any, Any]] = [(LABELS, OTHERS), (LABELS.tolist(), jnp.asarray(OTHERS))]
    if name != "margin":
        kinds += [(LABELS.astype(str), [*map(str, OTHERS)]), (LABELS * 2**40, OTHERS * 2**40)]
    relation = lambda a, b: (np.asarray(a)[:, None] == np.asarray(b)[None]) * 1.0  # noqa: E731

    @jax.jit
    def values(x: jax.Array) -> Any:
        # N-pair draws other pairs among candidates, without the weight of the lengths.
        own: Any = losses.Candidates(x, POSITIVE, NEGATIVE) if name == "n_pair" else None
        given = {"candidates": PAST, "candidate_labels": OTHERS, "relation": relation}
        found = [call(name)(x, a, candidates=PAST, candidate_labels=b) for a, b in kinds]
        of_masks = call(name)(x, LABELS if name == "margin" else None, **masks)
        return (
            (of_masks, call(name)(x, LABELS, candidates=own)),
            (call(name)(x, candidates=among), call(name)(x, **given), *found),
        )

    for expected, *found in values(X):
        assert expected > 0
        equal(found, np.full(len(found), expected))


@pytest.mark.parametrize("name", ["contrastive", "multi_similarity", "sup_con", "nt_xent"])
def test_weights_of_pairs(name: str, x64: None) -> None:
    """Weights from shared tags, and weights of 1."""
    options = {"mining": False, "copies": "keep"} if name == "multi_similarity" else {}
    expected = getattr(ref, name)
    if options:
        expected = partial(expected, mining=False)
    given = ref.call(name, **options)
    weighted = jax.jit(jax.value_and_grad(lambda x, p: given(x, None, positive=p, negative=FAR)))
    for positive in (WEIGHTS, NEAR.astype(float)):
        value, gradient = weighted(X, positive)
        equal(value, expected(positive, FAR))
        assert np.isfinite(gradient).all()


def test_weights_of_pairs_and_triplets(x64: None) -> None:
    """A triplet counts with the product of the weights of its pairs; in the exponents of the circle
    loss, a pair of weight 2 is two pairs; lifted structure has a weighted mean of its pairs, and
    N-pair of its anchors, by the weights of their positives."""
    triplets = [t for t in itertools.product(range(12), repeat=3) if NEAR[t[:2]] and FAR[t[::2]]]
    expected = {}
    for name, chosen in (("triplet", triplets), ("hard", ref.hard_triplets(NEAR, FAR))):
        products = [WEIGHTS[a, p] * FARS[a, n] for a, p, n in chosen]
        expected[name] = np.average(ref.triplet(chosen, 0.2), weights=products)
    expected["small"] = expected["triplet"]  # only the ratios of weights matter
    push = (FARS * np.exp(2 * np.maximum(S + 0.4, 0) * (S - 0.4))).sum(axis=1)
    pull = (WEIGHTS * np.exp(-2 * np.maximum(1.4 - S, 0) * (S - 0.6))).sum(axis=1)
    expected["circle"] = np.log1p(push * pull)[NEAR.any(axis=1) & FAR.any(axis=1)].mean()
    around = (FARS * np.exp(1 - D)).sum(axis=1)
    a, b = np.nonzero(NEAR)
    each = np.maximum(np.log(around[a] + around[b]) + D[a, b], 0) ** 2 / 2
    expected["lifted_structure"] = np.average(each, weights=WEIGHTS[NEAR])
    nearest = np.where(NEAR, D, np.inf)
    only = np.where(NEAR & (nearest.min(axis=1, keepdims=True) == nearest), DRAWN, 0.0)
    inner = X @ X.T
    excess = (FARS * np.exp(inner - inner[ROWS, only.argmax(axis=1)][:, None])).sum(axis=1)
    expected["n_pair"] = np.average(np.log1p(excess), weights=only.sum(axis=1))
    assert len(set(only[only > 0])) > 1

    @jax.jit
    def found(x: jax.Array) -> dict[str, jax.Array]:
        return {
            "triplet": losses.triplet(x, mining="all", **RELATION),
            "small": losses.triplet(x, mining="all", positive=WEIGHTS / 1000, negative=FARS),
            "hard": losses.triplet(x, mining="hard", **RELATION),
            "circle": losses.circle(x, gamma=2.0, **RELATION),
            "lifted_structure": losses.lifted_structure(x, **RELATION),
            "n_pair": losses.n_pair(x, positive=only, negative=FARS, key=KEY),
        }

    values = found(X)
    for name, value in expected.items():
        equal(values[name], value, err_msg=name)


def test_a_relation_of_the_rows_that_are_given_as_labels(x64: None) -> None:
    """The relation takes any rows in place of labels; NaN is neither positive nor negative."""
    left = (ROWS[:, None] + ROWS[None]) % 5 == 0

    def shared(a: Any, b: Any) -> Any:
        pairs = np.ix_(a, b)
        return np.where(left[pairs], np.nan, ref.SHARED[pairs])

    masks: dict[str, Any] = {"positive": np.where(left, 0, WEIGHTS), "negative": FAR & ~left}
    ours = jax.jit(lambda x: losses.sup_con(x, ROWS, relation=shared))(X)
    equal(ours, jax.jit(lambda x: losses.sup_con(x, **masks))(X))


@pytest.mark.parametrize("enqueued", [False, True])
def test_pairs_with_a_memory(enqueued: bool, x64: None) -> None:
    """A memory whose first row is not filled, and whose last rows may be those of the batch."""
    of = np.array([cross_batch_memory.EMPTY, 0, 1, 2, 2, 5, 4])
    memory = {"embeddings": PAST, "labels": of}

    @jax.jit
    def both(x: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        candidates = cross_batch_memory.candidates(memory, labels, enqueued=enqueued)
        hard = losses.triplet(x, labels, candidates=candidates, mining="hard")
        return losses.contrastive(x, labels, candidates=candidates), hard

    d = ref.between(X, PAST)[:, 1:]
    others = ~np.eye(12, 7, -5, dtype=bool)[:, 1:] | (not enqueued)
    same = (LABELS[:, None] == of[None, 1:]) & others
    far = (LABELS[:, None] != of[None, 1:]) & others
    push = np.maximum(1 - d, 0)[far]
    hardest = np.where(same, d, -1).max(axis=1) ** 2 - np.where(far, d, 9).min(axis=1) ** 2
    triplets = np.maximum(hardest + 0.2, 0)[same.any(axis=1)].mean()
    equal(both(X, LABELS), (d[same].mean() + push[push > 0].mean(), triplets))


def test_swapped_triplets(x64: None) -> None:
    """With swap=True, the negative's distance to the positive counts if that is smaller: of mined
    triplets, and of all among candidates."""
    options: dict[str, Any] = {"swap": True, "squared": False, "margin": 0.05}
    drawn = jax.jit(partial(mining.mine, "easy_positive", None, dim=5))(D, POSITIVE, NEGATIVE)
    a, p, n = (np.asarray(part)[np.asarray(drawn.valid)] for part in drawn[:3])
    expected = np.maximum(D[a, p] - np.minimum(D[a, n], D[p, n]) + 0.05, 0)
    assert (D[p, n] < D[a, n]).any()
    mined = partial(losses.triplet, mining="easy_positive", **options)
    equal(jax.jit(partial(mined, reduce=None))(X, LABELS)[a], expected)
    margin = jax.jit(partial(losses.margin, mining="easy_positive", reduce=None))(X, LABELS, BETA)  # never swapped
    equal(margin[a], ref.hinges([*zip(a, p, n, strict=True)], BETA[LABELS[a]]).sum(axis=1))
    active = jax.jit(partial(mined, divisor="active"))(X, LABELS)
    equal(active, expected[expected > 0].mean())
    d, between, near, far = ref.between(X, PAST), ref.between(PAST, PAST), NEAR[:, :7], FAR[:, :7]
    each = np.maximum(d[:, :, None] - np.minimum(d[:, None], between[None]) + 0.05, 0)
    loss = partial(losses.triplet, mining="all", **options)
    found = jax.jit(lambda x, y: loss(x, candidates=y, positive=near, negative=far))(X, PAST)
    equal(found, each[near[:, :, None] & far[:, None]].mean())


@pytest.mark.parametrize("name", [*PAIR_LOSSES, "triplet, all"])
def test_every_loss_takes_a_distance(name: str, x64: None) -> None:
    """That of unit rows gives the same as the own one; of similarities, up to their base."""
    options = {"mining": "all", "swap": True} if "," in name else {}
    name = name.partition(",")[0]

    def distance(a: jax.Array, b: jax.Array) -> jax.Array:
        if name == "n_pair":
            return -a @ b.T  # of any length
        a, b = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
        if name in ("contrastive", "triplet", "margin", "lifted_structure"):
            return jnp.sqrt(jnp.maximum(2 - 2 * a @ b.T, 1e-30))
        return -jnp.matmul(a, b.T)

    own = partial(call, name, **options)
    ours, given = jax.jit(lambda x: (own()(x), own(distance=distance)(x)))(X)
    np.testing.assert_allclose(given, ours, rtol=1e-6)


@every_loss
def test_unreduced_values(name: str, x64: None) -> None:
    """Their mean is the loss: of anchors, or of pairs. The weight of the lengths is no part."""
    options: dict[str, Any] = {"l2": 0.0} if name == "n_pair" else {}
    ways = call(name, reduce=None), call(name, divisor="active", **options), call(name, **options)
    each, *means = (np.asarray(v) for v in jax.jit(lambda x: [way(x) for way in ways])(X))
    pairs = name in ("contrastive", "lifted_structure", "nt_xent")
    assert each.shape == ((12, 12) if pairs else (12,))
    counted = POSITIVE if pairs else POSITIVE.any(axis=1)
    if name == "n_pair":
        counted = each > 0
    elif name == "multi_similarity":
        counted = np.ones(12, bool)
    elif name == "contrastive":
        counted = ~ref.EYE
    values = each[counted]
    assert not each[~counted].any()
    active = whole = values[values > 0].mean()
    if name == "contrastive":
        push = each[NEGATIVE]
        active = whole = each[POSITIVE].mean() + push[push > 0].mean()
    elif name != "margin":
        whole = values.mean()
    equal(means, (active, whole))


def test_unreduced_values_of_the_margin_loss(x64: None) -> None:
    """One per anchor with every divisor: both hinges, or the mean of those that are active; with
    weights of pairs, a triplet has the product of the weights of its two pairs."""
    triplets = ref.hard_triplets(NEAR, FAR)
    a, p, n = np.array(triplets).T
    hinges, product = ref.hinges(triplets, np.full(len(a), BETA[0])), WEIGHTS[a, p] * FARS[a, n]
    sums, active = hinges.sum(axis=1), (hinges > 0).sum(axis=1)
    assert set(active) == {1, 2}
    loss = partial(losses.margin, mining="hard", beta=BETA[:1], **RELATION)
    found = jax.jit(
        lambda x: {
            divisor: (loss(x, divisor=divisor, reduce=None), loss(x, divisor=divisor))
            for divisor in ("all", "active", "pairs")
        }
    )(X)
    for divisor, (each, mean) in found.items():
        per_pair = divisor == "pairs"
        expected = sums / np.maximum(active, 1) if per_pair else sums
        equal(each[a], expected, err_msg=divisor)
        assert not np.delete(each, a).any()
        weights = product * active if per_pair else product
        equal(mean, np.average(expected, weights=weights), err_msg=divisor)


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
        pairs = pairwise.find_pairs(embeddings, labels, candidates, weights, distance).normalized()
        each = pairwise.Mean(scale * pairs.distances(), pairs.positive > 0, pairs.positive)
        return pairwise.reduce_terms(each, weights, divisor, reduce)

    given: Any = pulled
    mean, plain, each = jax.jit(
        lambda x: (
            given(x, positive=WEIGHTS, negative=FAR),
            given(x, LABELS, scale=1.0, weights=ROWS, distance=ref.manhattan),
            given(x, LABELS, reduce=None),
        )
    )(X)
    equal(mean, 2 * np.average(D, weights=WEIGHTS))
    between = np.abs(X[:, None] - X[None]).sum(axis=2)  # of embeddings as they are
    equal(plain, np.average(between, weights=POSITIVE * ROWS[:, None]))
    equal(each, np.where(POSITIVE, 2 * D, 0))
    assert vars(modules.options(pulled)()) == {"divisor": "active", "scale": 2.0}


def test_more_pairs_than_int32_counts() -> None:
    mean = jax.jit(lambda x: pairwise.weighted_mean(jnp.broadcast_to(x, (51_000, 51_000))))
    assert mean(jnp.float32(1)) == 1  # XLA computes it without the 2.6e9 values
