"""Every public loss in NumPy and float64, for twelve rows of five classes, one of which is a single
row; and its call in one line."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax import losses
from dml_jax.losses import mining, signature
from dml_jax.methods.baseline import LOSSES, takes

RNG = np.random.default_rng(11)
X = RNG.normal(size=(12, 5))
LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 4, 4, 4, 3])
KERNEL, BIAS, PROXIES, CENTERS = (RNG.normal(size=shape) for shape in ((5, 6), 6, (6, 5), (6, 3, 5)))
BETA = RNG.uniform(0.8, 1.4, 6)
KEY, ROWS = jax.random.key(5), np.arange(12)
SAME, EYE = LABELS[:, None] == LABELS[None], np.eye(12, dtype=bool)
POSITIVE, NEGATIVE = SAME & ~EYE, ~SAME
PAIRED = np.flatnonzero(POSITIVE.any(axis=1))
Pairs = tuple[Sequence[int], Sequence[int]]


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def between(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distances of unit rows."""
    return np.linalg.norm(unit(a)[:, None] - unit(b)[None], axis=-1)


def manhattan(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.abs(a[:, None] - b[None]).sum(axis=2)


def with_duplicates() -> np.ndarray:
    """Twelve rows: copies within a class (0, 1), across classes (0, 3 and 8, 5), and zero rows (4, 6, 7, 11)."""
    x = np.random.default_rng(9).normal(size=(12, 5)).astype(np.float32)
    x[[1, 3]], x[5] = x[0], x[8]
    x[[4, 6, 7, 11]] = 0
    return x


S, D, C = unit(X) @ unit(X).T, between(X, X), unit(X) @ unit(PROXIES).T
# A relation that is not equality of labels: shared tags, as weights of the positive pairs.
TAGS = np.random.default_rng(5).random((12, 5)) < 0.3
SHARED = (TAGS[:, None] & TAGS[None]).sum(2).astype(float)
NEAR, FAR = (SHARED > 0) & ~EYE, SHARED == 0
WEIGHTS = SHARED * NEAR


def cross_entropy(logits: np.ndarray) -> float:
    return float(np.mean(np.log(np.exp(logits).sum(1)) - logits[ROWS, LABELS]))


def with_own(values: np.ndarray) -> np.ndarray:
    """The cosines with the proxies, with other values for each sample's own class."""
    changed = C.copy()
    changed[ROWS, LABELS] = values
    return changed


def proxy_nca() -> float:
    d = 9 * (2 - 2 * C)
    rest = np.where(np.arange(6) == LABELS[:, None], 0, np.exp(-d)).sum(axis=1)
    return float(np.mean(d[ROWS, LABELS] + np.log(rest)))


def proxy_anchor() -> float:
    pull = [np.log(1 + np.exp(-16 * (C[c == LABELS, c] - 0.2)).sum()) for c in set(LABELS)]
    push = [np.log(1 + np.exp(16 * (C[c != LABELS, c] + 0.2)).sum()) for c in range(6)]
    return float(np.mean(pull) + np.mean(push))


def soft_triple() -> float:
    c = unit(CENTERS)
    s = np.einsum("nd,ckd->nck", unit(X), c)
    similarity = (np.exp(s / 0.1) / np.exp(s / 0.1).sum(-1, keepdims=True) * s).sum(-1)
    similarity[ROWS, LABELS] -= 0.01
    pairs = ((c[:, [0, 0, 1]] - c[:, [1, 2, 2]]) ** 2).sum(axis=2)
    return cross_entropy(20 * similarity) + 0.2 * np.sqrt(pairs + 1e-5).sum() / (6 * 3 * 2)


def subcenter_arcface() -> float:
    nearest = np.einsum("nd,ckd->nck", unit(X), unit(CENTERS)).max(-1)
    nearest[ROWS, LABELS] = np.cos(np.arccos(nearest[ROWS, LABELS]) + 0.1)
    return cross_entropy(16 * nearest)


# Losses of pairs take weights of positives and masks of negatives.


def contrastive(positive: np.ndarray = POSITIVE, negative: np.ndarray = NEGATIVE) -> float:
    push = np.maximum(0.9 - D[negative], 0)
    return float(np.average(D, weights=positive) + push[push > 0].mean())


def hard_triplets(near: np.ndarray = POSITIVE, far: np.ndarray = NEGATIVE) -> list[tuple[int, int, int]]:
    """The farthest positive and the nearest negative of every anchor that has both."""
    farthest, nearest = np.where(near, D, -1).argmax(axis=1), np.where(far, D, 9).argmin(axis=1)
    valid = near.any(axis=1) & far.any(axis=1)
    return [(int(i), int(farthest[i]), int(nearest[i])) for i in np.flatnonzero(valid)]


def triplet(triplets: list[tuple[int, int, int]], margin: float = 0.1) -> list[float]:
    return [max(D[a, p] ** 2 - D[a, n] ** 2 + margin, 0) for a, p, n in triplets]


def semi_hard() -> float:
    drawn = jax.jit(partial(mining.mine, "semi_hard", dim=5))(KEY, D, POSITIVE, NEGATIVE)
    p, n = (np.asarray(rows).tolist() for rows in (drawn.positives, drawn.negatives))
    return float(np.mean(triplet([(i, p[i], n[i]) for i in np.flatnonzero(drawn.valid).tolist()])))


def hinges(triplets: list[tuple[int, int, int]], beta: np.ndarray) -> np.ndarray:
    """Both hinges [T, 2] of the margin loss."""
    a, p, n = np.array(triplets).T
    d = np.sqrt(D**2 + 1e-8)
    return np.maximum(np.stack([d[a, p] - beta + 0.2, beta - d[a, n] + 0.2], axis=1), 0)


def margin() -> float:
    each = hinges(hard_triplets(), BETA[LABELS[PAIRED]])
    return float(each.sum() / (each.sum(axis=1) > 0).sum())


def lifted_structure(weights: np.ndarray | None = None) -> float:
    """`weights` [12] are of the anchors."""
    around = np.where(NEGATIVE, np.exp(1 - D), 0).sum(axis=1)
    i, j = np.nonzero(POSITIVE)
    found = np.maximum(np.log(around[i] + around[j]) + D[i, j], 0) ** 2 / 2
    return float(np.average(found, weights=None if weights is None else weights[i]))


def n_pair(power: int = 2) -> float:
    positives, valid = (np.asarray(part) for part in jax.jit(mining.class_pairs)(KEY, LABELS))
    a = np.flatnonzero(valid)
    inner = X[a] @ X[positives[a]].T
    others = np.where(np.eye(len(a)), 0, np.exp(inner - np.diag(inner)[:, None]))
    lengths = np.linalg.norm(X, axis=1) ** power
    return float(np.log1p(others.sum(axis=1)).mean() + 0.01 * lengths.mean())


def multi_similarity(positive: np.ndarray = POSITIVE, negative: np.ndarray = NEGATIVE, *, mining: bool = True) -> float:
    total = 0.0
    for i in range(12):
        p, w, n = S[i][positive[i] > 0], positive[i][positive[i] > 0], S[i][negative[i]]
        if mining:
            kept, n = p - 0.1 < n.max(), n[n + 0.1 > p.min(initial=np.inf)]
            p, w = p[kept], w[kept]
        total += np.log(1 + (w * np.exp(-2 * (p - 0.5))).sum()) / 2
        total += np.log(1 + np.exp(40 * (n - 0.5)).sum()) / 40
    return total / 12


def circle() -> float:
    push = np.where(NEGATIVE, np.exp(80 * np.maximum(S + 0.4, 0) * (S - 0.4)), 0).sum(axis=1)
    pull = np.where(POSITIVE, np.exp(-80 * np.maximum(1.4 - S, 0) * (S - 0.6)), 0).sum(axis=1)
    return float(np.log(1 + push * pull)[PAIRED].mean())


def sup_con(positive: np.ndarray = POSITIVE, negative: np.ndarray = NEGATIVE) -> float:
    found = []
    for i in np.flatnonzero(positive.any(axis=1)):
        around = np.exp(S[i][(positive[i] > 0) | negative[i]] / 0.2).sum()
        found.append(np.average(np.log(around) - S[i] / 0.2, weights=positive[i]))
    return float(np.mean(found))


def nt_xent(positive: np.ndarray = POSITIVE, negative: np.ndarray = NEGATIVE) -> float:
    around = np.where(negative, np.exp(S / 0.2), 0).sum(axis=1, keepdims=True)
    return float(np.average(np.log1p(around / np.exp(S / 0.2)), weights=positive))


def ranks(among: np.ndarray) -> np.ndarray:
    """The soft ranks [12, 12] of candidates, with a sigmoid for each comparison."""
    above = 1 / (1 + np.exp(-(S[:, None, :] - S[:, :, None]) / 0.1))  # [query, candidate, other]
    return 1 + np.where(among[:, None, :] & ~EYE[None], above, 0).sum(axis=2)


def smooth_ap() -> float:
    precision = ranks(POSITIVE) / ranks(~EYE)
    return float(np.mean([1 - precision[i][POSITIVE[i]].mean() for i in PAIRED]))


def recall_at_k() -> float:
    found, among = [], ranks(~EYE)
    for k, temperature in ((1, 0.7), (4, 2.0)):
        near = np.where(POSITIVE, 1 / (1 + np.exp(-(k - among) / temperature)), 0).sum(axis=1)
        found.append(np.minimum(k, near) / np.minimum(k, np.maximum(POSITIVE.sum(axis=1), 1)))
    return float(1 - np.mean(found, axis=0)[PAIRED].mean())


def floats(array: np.ndarray) -> jax.Array:
    """In the precision of the test, also where a program is traced."""
    return jnp.asarray(array, jnp.result_type(float))


ARC = np.cos(np.arccos(C[ROWS, LABELS]) + 0.1)
# By loss: its tables, the options of the call, and the value.
CASES: dict[str, tuple[tuple[np.ndarray, ...], dict[str, Any], Callable[[], float]]] = {
    "softmax": ((KERNEL, BIAS), {}, lambda: cross_entropy(X @ KERNEL + BIAS)),
    "normalized_softmax": ((PROXIES,), {}, lambda: cross_entropy(C / 0.05)),
    "arcface": ((PROXIES,), {"margin": 0.1, "scale": 16}, lambda: cross_entropy(16 * with_own(ARC))),
    "cosface": ((PROXIES,), {"margin": 0.2, "scale": 16}, lambda: cross_entropy(16 * with_own(C[ROWS, LABELS] - 0.2))),
    "subcenter_arcface": ((CENTERS,), {"margin": 0.1, "scale": 16}, subcenter_arcface),
    "proxy_nca": ((PROXIES,), {}, proxy_nca),
    "proxy_nca_pp": ((PROXIES,), {}, lambda: cross_entropy(-9 * (2 - 2 * C))),
    "proxy_anchor": ((PROXIES,), {"margin": 0.2, "alpha": 16}, proxy_anchor),
    "soft_triple": ((CENTERS,), {}, soft_triple),
    "margin": ((BETA,), {"mining": "hard"}, margin),
    "contrastive": ((), {"negative_margin": 0.9}, contrastive),
    "triplet": ((), {"margin": 0.1, "key": KEY}, semi_hard),
    "n_pair": ((), {"l2": 0.01, "key": KEY}, n_pair),
    "lifted_structure": ((), {}, lifted_structure),
    "multi_similarity": ((), {}, multi_similarity),
    "circle": ((), {}, circle),
    "sup_con": ((), {"temperature": 0.2}, sup_con),
    "nt_xent": ((), {"temperature": 0.2}, nt_xent),
    "smooth_ap": ((), {"temperature": 0.1}, smooth_ap),
    "recall_at_k": ((), {"ks": (1, 4), "k_temperatures": (0.7, 2.0), "temperature": 0.1}, recall_at_k),
}
OF_CLASSES = [name for name, (tables, *_) in CASES.items() if tables]


def call(name: str, **more: Any) -> Callable[..., Any]:
    """The loss of CASES, with its tables: (embeddings, labels, …) -> scalar."""
    tables, options, _ = CASES[name]
    return lambda x, y=LABELS, **given: getattr(losses, name)(x, y, *map(floats, tables), **options | more | given)


@cache
def compiled(name: str) -> Any:
    return jax.jit(call(name))


def by_default(name: str, **options: Any) -> Callable[..., Any]:
    """A loss of a configuration with its default options, and numbers around 1 as its tables."""
    sizes = {"C": 6, "D": 5, "K": 3}
    learned = signature.learned_arrays(LOSSES[name]).values()
    shapes = [[sizes[axis] for axis in array.axes] for array in learned]
    tables = [1 + np.random.default_rng(1).normal(size=shape) for shape in shapes]
    if takes(LOSSES[name], "key"):
        options.setdefault("key", KEY)
    return lambda x, y=LABELS, **given: LOSSES[name](x, y, *map(floats, tables), **options, **given)
