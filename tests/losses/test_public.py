"""Every public loss, called in one line, compared with NumPy in float64."""

from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.config import modules
from dml_jax.errors import DataError
from dml_jax.losses import cross_batch_memory, mining
from dml_jax.methods.baseline import LOSSES

RNG = np.random.default_rng(11)
X = RNG.normal(size=(12, 5))
LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 4, 4, 4, 3])
KERNEL, BIAS, PROXIES, CENTERS = (
    RNG.normal(size=shape) for shape in ((5, 6), 6, (6, 5), (6, 3, 5))
)
BETA = RNG.uniform(0.8, 1.4, 6)
KEY = jax.random.key(5)
SAME = LABELS[:, None] == LABELS[None]
POSITIVE, NEGATIVE = SAME & ~np.eye(12, dtype=bool), ~SAME


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


S = unit(X) @ unit(X).T
D = np.linalg.norm(unit(X)[:, None] - unit(X)[None], axis=-1)
C = unit(X) @ unit(PROXIES).T
ROWS = np.arange(12)


def cross_entropy(logits: np.ndarray) -> float:
    return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[ROWS, LABELS]))


def with_own(values: np.ndarray) -> np.ndarray:
    """The cosines with the proxies, with other values for each sample's own class."""
    changed = C.copy()
    changed[ROWS, LABELS] = values
    return changed


def proxy_nca() -> float:
    d = 9 * (2 - 2 * C)
    others = [
        np.log(sum(np.exp(-d[i, c]) for c in range(6) if c != y)) for i, y in enumerate(LABELS)
    ]
    return float(np.mean(d[ROWS, LABELS] + others))


def proxy_anchor() -> float:
    pull = [np.log(1 + np.exp(-16 * (C[c == LABELS, c] - 0.2)).sum()) for c in set(LABELS)]
    push = [np.log(1 + np.exp(16 * (C[c != LABELS, c] + 0.2)).sum()) for c in range(6)]
    return float(np.mean(pull) + np.mean(push))


def soft_triple() -> float:
    s = np.einsum("nd,ckd->nck", unit(X), unit(CENTERS))
    weights = np.exp(s / 0.1) / np.exp(s / 0.1).sum(-1, keepdims=True)
    similarity = (weights * s).sum(-1)
    similarity[ROWS, LABELS] -= 0.01
    c = unit(CENTERS)
    spread = [
        np.sqrt(((c[k, i] - c[k, j]) ** 2).sum() + 1e-5)
        for k in range(6)
        for i in range(3)
        for j in range(i)
    ]
    return cross_entropy(20 * similarity) + 0.2 * sum(spread) / (6 * 3 * 2)


# The losses of pairs also of other relations than equal labels: weights of positives, and
# negatives.


def contrastive(positive: np.ndarray = POSITIVE, negative: np.ndarray = NEGATIVE) -> float:
    push = np.maximum(0.9 - D[negative], 0)
    return float(np.average(D, weights=positive) + push[push > 0].mean())


def hard_triplets() -> list[tuple[int, int, int]]:
    triplets = []
    for i in range(12):
        p, n = np.flatnonzero(POSITIVE[i]), np.flatnonzero(NEGATIVE[i])
        if len(p):
            triplets.append((i, p[D[i, p].argmax()], n[D[i, n].argmin()]))
    return triplets


def triplet(triplets: list[tuple[int, int, int]]) -> float:
    return float(np.mean([max(D[a, p] ** 2 - D[a, n] ** 2 + 0.1, 0) for a, p, n in triplets]))


def margin() -> float:
    d = np.sqrt(D**2 + 1e-8)
    pull = [max(d[a, p] - BETA[LABELS[a]] + 0.2, 0) for a, p, _ in hard_triplets()]
    push = [max(BETA[LABELS[a]] - d[a, n] + 0.2, 0) for a, _, n in hard_triplets()]
    return float((sum(pull) + sum(push)) / sum(a + b > 0 for a, b in zip(pull, push, strict=True)))


def semi_hard() -> float:
    drawn = jax.jit(partial(mining.mine, "semi_hard", dim=5))(KEY, D, POSITIVE, NEGATIVE)
    valid = np.flatnonzero(drawn.valid)
    return triplet([(int(i), int(drawn.positives[i]), int(drawn.negatives[i])) for i in valid])


def lifted_structure(weights: np.ndarray | None = None) -> float:
    """`weights` [12] are of the anchors."""
    found = []
    for i, j in zip(*np.nonzero(POSITIVE), strict=True):
        around = np.exp(1 - D[i][NEGATIVE[i]]).sum() + np.exp(1 - D[j][NEGATIVE[j]]).sum()
        found.append(max(np.log(around) + D[i, j], 0) ** 2 / 2)
    return float(
        np.average(found, weights=None if weights is None else weights[np.nonzero(POSITIVE)[0]])
    )


def n_pair(power: int = 2) -> float:
    positives, valid = (np.asarray(part) for part in jax.jit(mining.class_pairs)(KEY, LABELS))
    anchors = np.flatnonzero(valid)
    found = []
    for a in anchors:
        others = [X[a] @ X[positives[b]] - X[a] @ X[positives[a]] for b in anchors if b != a]
        found.append(np.log(1 + np.exp(others).sum()))
    return float(np.mean(found) + 0.01 * (np.linalg.norm(X, axis=1) ** power).mean())


def multi_similarity(
    positive: np.ndarray = POSITIVE, negative: np.ndarray = NEGATIVE, *, mining: bool = True
) -> float:
    total = 0.0
    for i in range(12):
        p, w, n = S[i][positive[i] > 0], positive[i][positive[i] > 0], S[i][negative[i]]
        if mining:
            kept, n = p - 0.1 < n.max(), n[n + 0.1 > p.min(initial=np.inf)]
            p, w = p[kept], w[kept]
        total += (
            np.log(1 + (w * np.exp(-2 * (p - 0.5))).sum()) / 2
            + np.log(1 + np.exp(40 * (n - 0.5)).sum()) / 40
        )
    return total / 12


def circle(margin: float = 0.4, gamma: float = 80.0) -> float:
    losses = []
    for i in np.flatnonzero(POSITIVE.any(axis=1)):
        p, n = S[i][POSITIVE[i]], S[i][NEGATIVE[i]]
        push = sum(np.exp(gamma * max(s + margin, 0) * (s - margin)) for s in n)
        pull = sum(np.exp(-gamma * max(1 + margin - s, 0) * (s - (1 - margin))) for s in p)
        losses.append(np.log(1 + push * pull))
    return float(np.mean(losses))


def subcenter_arcface() -> float:
    nearest = np.einsum("nd,ckd->nck", unit(X), unit(CENTERS)).max(-1)
    nearest[ROWS, LABELS] = np.cos(np.arccos(nearest[ROWS, LABELS]) + 0.1)
    return cross_entropy(16 * nearest)


def sup_con(positive: np.ndarray = POSITIVE, negative: np.ndarray = NEGATIVE) -> float:
    found = []
    for i in np.flatnonzero(positive.any(axis=1)):
        around = np.exp(S[i][(positive[i] > 0) | negative[i]] / 0.2).sum()
        found.append(-np.average(np.log(np.exp(S[i] / 0.2) / around), weights=positive[i]))
    return float(np.mean(found))


def nt_xent(positive: np.ndarray = POSITIVE, negative: np.ndarray = NEGATIVE) -> float:
    found = []
    for i, p in np.argwhere(positive):
        around = np.exp(S[i][negative[i]] / 0.2).sum()
        found.append(np.log1p(around / np.exp(S[i, p] / 0.2)))
    return float(np.average(found, weights=positive[positive > 0]))


def rank(i: int, j: int, among: np.ndarray, temperature: float) -> float:
    """The soft rank of candidate j for query i, with a sigmoid for each comparison."""
    return 1 + sum(1 / (1 + np.exp(-(S[i, k] - S[i, j]) / temperature)) for k in among if k != j)


def smooth_ap() -> float:
    found = []
    for i in np.flatnonzero(POSITIVE.any(axis=1)):
        positives, everything = np.flatnonzero(POSITIVE[i]), [k for k in range(12) if k != i]
        found.append(
            1
            - np.mean([rank(i, j, positives, 0.1) / rank(i, j, everything, 0.1) for j in positives])
        )
    return float(np.mean(found))


def recall_at_k() -> float:
    found = []
    for i in np.flatnonzero(POSITIVE.any(axis=1)):
        positives, recalls = np.flatnonzero(POSITIVE[i]), []
        everything = [k for k in range(12) if k != i]
        for k, temperature in ((1, 0.7), (4, 2.0)):
            near = sum(
                1 / (1 + np.exp(-(k - rank(i, j, everything, 0.1)) / temperature))
                for j in positives
            )
            recalls.append(min(k, near) / min(k, len(positives)))
        found.append(1 - np.mean(recalls))
    return float(np.mean(found))


def floats(array: np.ndarray) -> jax.Array:
    """In the precision of the test, also where a program is traced."""
    return jnp.asarray(array, jnp.result_type(float))


CALLS: dict[str, tuple[Callable[..., Any], Callable[[], float]]] = {
    "softmax": (
        lambda x, y: losses.softmax(x, y, floats(KERNEL), floats(BIAS)),
        lambda: cross_entropy(X @ KERNEL + BIAS),
    ),
    "normalized_softmax": (
        lambda x, y: losses.normalized_softmax(x, y, floats(PROXIES)),
        lambda: cross_entropy(C / 0.05),
    ),
    "arcface": (
        lambda x, y: losses.arcface(x, y, floats(PROXIES), margin=0.1, scale=16),
        lambda: cross_entropy(16 * with_own(np.cos(np.arccos(C[ROWS, LABELS]) + 0.1))),
    ),
    "cosface": (
        lambda x, y: losses.cosface(x, y, floats(PROXIES), margin=0.2, scale=16),
        lambda: cross_entropy(16 * with_own(C[ROWS, LABELS] - 0.2)),
    ),
    "proxy_nca": (lambda x, y: losses.proxy_nca(x, y, floats(PROXIES)), proxy_nca),
    "proxy_nca_pp": (
        lambda x, y: losses.proxy_nca_pp(x, y, floats(PROXIES)),
        lambda: cross_entropy(-9 * (2 - 2 * C)),
    ),
    "proxy_anchor": (
        lambda x, y: losses.proxy_anchor(x, y, floats(PROXIES), margin=0.2, alpha=16),
        proxy_anchor,
    ),
    "soft_triple": (lambda x, y: losses.soft_triple(x, y, floats(CENTERS)), soft_triple),
    "contrastive": (lambda x, y: losses.contrastive(x, y, negative_margin=0.9), contrastive),
    "triplet": (lambda x, y: losses.triplet(x, y, margin=0.1, key=KEY), semi_hard),
    "margin": (lambda x, y: losses.margin(x, y, floats(BETA), mining="hard"), margin),
    "n_pair": (lambda x, y: losses.n_pair(x, y, l2=0.01, key=KEY), n_pair),
    "lifted_structure": (lambda x, y: losses.lifted_structure(x, y), lifted_structure),
    "multi_similarity": (lambda x, y: losses.multi_similarity(x, y), multi_similarity),
    "circle": (lambda x, y: losses.circle(x, y), circle),
    "subcenter_arcface": (
        lambda x, y: losses.subcenter_arcface(x, y, floats(CENTERS), margin=0.1, scale=16),
        subcenter_arcface,
    ),
    "sup_con": (lambda x, y: losses.sup_con(x, y, temperature=0.2), sup_con),
    "nt_xent": (lambda x, y: losses.nt_xent(x, y, temperature=0.2), nt_xent),
    "smooth_ap": (lambda x, y: losses.smooth_ap(x, y, temperature=0.1), smooth_ap),
    "recall_at_k": (
        lambda x, y: losses.recall_at_k(
            x, y, ks=(1, 4), k_temperatures=(0.7, 2.0), temperature=0.1
        ),
        recall_at_k,
    ),
}


def test_every_public_loss_is_called() -> None:
    assert set(CALLS) == set(losses.__all__) - {"Candidates", "per_anchor"}


@cache
def compiled(name: str) -> Any:
    return jax.jit(CALLS[name][0])


@pytest.mark.parametrize("name", CALLS)
def test_value(name: str, x64: None) -> None:
    _, expected = CALLS[name]
    value = compiled(name)(X, LABELS)
    assert value.shape == ()
    np.testing.assert_allclose(value, expected(), rtol=1e-9)


OF_CLASSES = [
    *("softmax", "normalized_softmax", "arcface", "cosface", "subcenter_arcface"),
    *("proxy_nca", "proxy_nca_pp", "proxy_anchor", "soft_triple", "margin"),
]


@pytest.mark.parametrize("label", [-1, 6, 9])
@pytest.mark.parametrize("name", OF_CLASSES)
def test_unknown_labels(name: str, label: int, x64: None) -> None:
    """Labels outside 0..5 would otherwise be taken for another class, or for none."""
    assert np.isnan(compiled(name)(X, np.where(LABELS == 2, label, LABELS)))


@pytest.mark.parametrize("name", CALLS)
def test_a_row_of_nan_is_not_hidden(name: str) -> None:
    """As a zero row, or as a value that does not count, it would let a training run on."""
    x = X.astype(np.float32)
    x[2] = np.nan
    assert np.isnan(compiled(name)(x, LABELS))


def test_n_pair_with_the_length_itself(x64: None) -> None:
    ours = jax.jit(partial(losses.n_pair, l2=0.01, squared=False))(X, LABELS, key=KEY)
    assert float(ours) == pytest.approx(n_pair(power=1), rel=1e-9)


@pytest.mark.parametrize("enqueued", [False, True])
def test_pairs_with_a_memory(enqueued: bool, x64: None) -> None:
    """Contrastive loss against a memory whose first row is not filled, and whose last rows may be
    those of the batch."""
    past, of = RNG.normal(size=(7, 5)), np.array([cross_batch_memory.EMPTY, 0, 1, 2, 2, 5, 4])
    memory = {"embeddings": past, "labels": of}

    @jax.jit
    def both(x: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        candidates = cross_batch_memory.candidates(memory, labels, enqueued=enqueued)
        contrastive = losses.contrastive(x, labels, candidates=candidates)
        return contrastive, losses.triplet(x, labels, candidates=candidates, mining="hard")

    ours, hard = both(X, LABELS)
    d = np.linalg.norm(unit(X)[:, None] - unit(past)[None], axis=-1)[:, 1:]
    others = ~np.eye(12, 7, -5, dtype=bool)[:, 1:] | (not enqueued)
    same = (LABELS[:, None] == of[None, 1:]) & others
    far = (LABELS[:, None] != of[None, 1:]) & others
    push = np.maximum(1 - d, 0)[far]
    np.testing.assert_allclose(ours, d[same].mean() + push[push > 0].mean(), rtol=1e-12)
    hinges = [
        max(d[i][same[i]].max() ** 2 - d[i][far[i]].min() ** 2 + 0.2, 0)
        for i in range(12)
        if same[i].any()
    ]
    np.testing.assert_allclose(hard, np.mean(hinges), rtol=1e-12)


# By `method.loss`. Values of the papers or of their code; of the contrastive loss and lifted
# structure, those of common implementations.
DEFAULTS: dict[str, dict[str, float | bool | str | tuple[float, ...]]] = {
    "arcface": {"init": "he", "margin": 0.5, "scale": 64},
    "circle": {"divisor": "all", "margin": 0.4, "gamma": 80},
    "contrastive": {"divisor": "active", "positive_margin": 0, "negative_margin": 1},
    "cosface": {"init": "he", "margin": 0.35, "scale": 64},
    "cross_entropy": {"smoothing": 0},
    "lifted_structure": {"divisor": "all", "margin": 1, "normalize": True},
    "margin": {
        "beta": 1.2,
        "margin": 0.2,
        "nu": 0,
        "divisor": "active",
        "mining": "distance_weighted",
        "nearest": 0.5,
        "farthest": 0,
    },
    "multi_similarity": {
        "alpha": 2,
        "beta": 40,
        "base": 0.5,
        "epsilon": 0.1,
        "mining": True,
        "copies": "drop",
        "divisor": "all",
    },
    "n_pair": {"divisor": "all", "l2": 0.002, "squared": True},
    "normalized_softmax": {"init": "he", "temperature": 0.05, "smoothing": 0},
    "nt_xent": {"divisor": "all", "temperature": 0.07},
    "proxy_anchor": {"init": "he", "margin": 0.1, "alpha": 32},
    "proxy_nca": {"init": "he", "scale": 3},
    "proxy_nca_pp": {"init": "he", "temperature": 1 / 9},
    "recall_at_k": {
        "ks": (1, 2, 4, 8, 16),
        "k_temperatures": (1, 2, 4, 8, 16),
        "temperature": 0.01,
        "divisor": "all",
    },
    "smooth_ap": {"divisor": "all", "temperature": 0.01},
    "soft_triple": {
        "init": "he",
        "centers": 10,
        "scale": 20,
        "gamma": 0.1,
        "margin": 0.01,
        "spread": 0.2,
    },
    "subcenter_arcface": {"init": "he", "centers": 3, "margin": 0.5, "scale": 64},
    "sup_con": {"divisor": "all", "temperature": 0.1},
    "triplet": {
        "margin": 0.2,
        "squared": True,
        "mining": "semi_hard",
        "smooth": False,
        "swap": False,
        "nearest": 0.5,
        "farthest": 0,
        "divisor": "all",
    },
}


def test_options_and_their_defaults() -> None:
    assert {name: asdict(modules.options(loss)()) for name, loss in LOSSES.items()} == DEFAULTS


@pytest.mark.parametrize("name", CALLS)
def test_shapes_that_do_not_fit(name: str) -> None:
    """Named also while compiling, where JAX would report a broadcast or a contraction."""
    x, labels = jnp.asarray(X), jnp.asarray(LABELS)
    for wrong, message in (
        ((x, labels[:7]), r"labels: have shape \[7\] for embeddings \[12, 5\]; give \[12\]"),
        (
            (x, labels[:, None]),
            r"labels: have shape \[12, 1\] for embeddings \[12, 5\]; give \[12\]",
        ),
        ((x[:, None], labels), r"embeddings: have shape \[12, 1, 5\]; give \[N, D\]"),
        ((x[0], labels), r"embeddings: have shape \[5\]; give \[N, D\]"),
        ((x[:0], labels[:0]), r"embeddings: have shape \[0, 5\]; give \[N, D\]"),
    ):
        for call in (CALLS[name][0], jax.jit(CALLS[name][0])):
            with pytest.raises(DataError, match=message):
                call(*wrong)
    if name in OF_CLASSES and name != "margin":
        with pytest.raises(
            DataError,
            match=r"(kernel|proxies): has shape \[.*\] for embeddings \[12, 4\]; give \[.*4",
        ):
            CALLS[name][0](x[:, :4], labels)


def test_candidates_that_do_not_fit() -> None:
    x, labels = jnp.asarray(X), jnp.asarray(LABELS)
    for among, mask, message in (
        (
            x[:7, :4],
            jnp.ones((12, 7), bool),
            r"candidates: have shape \[7, 4\] for embeddings \[12, 5\]; give \[7, 5\]",
        ),
        (
            x[:7],
            jnp.ones((12, 6), bool),
            r"positive: has shape \[12, 6\]; give \[12, 7\]",
        ),
        (
            x[0, 0],
            jnp.ones((12, 1), bool),
            r"candidates: have shape \[\] for embeddings \[12, 5\]; give \[M, 5\]",
        ),
    ):
        with pytest.raises(DataError, match=message):
            losses.sup_con(x, labels, candidates=losses.Candidates(among, mask, mask))
    with pytest.raises(DataError, match="candidates: have no pairs; give positive and negative"):
        losses.sup_con(x, labels, candidates=x)


@pytest.mark.parametrize("name", sorted(set(CALLS) - set(OF_CLASSES)))
def test_text_as_labels(name: str, x64: None) -> None:
    """In a list, and in an array of objects, as pandas has it."""
    text = list("cccddfffpppm")  # the classes of LABELS
    call, expected = CALLS[name]
    found = jax.jit(lambda x: [call(x, labels) for labels in (text, np.array(text, object))])(X)
    np.testing.assert_allclose(found, expected(), rtol=1e-9)
