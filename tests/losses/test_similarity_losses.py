"""Multi-similarity and circle loss compared with loops over anchors, and on batches without pairs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.losses import pairwise
from dml_jax.losses import similarity_losses as ms
from dml_jax.losses.signature import options as options_of

MultiSimilarity = options_of(ms.multi_similarity)
RNG = np.random.default_rng(5)
EMBEDDINGS = RNG.normal(size=(12, 4))
EMBEDDINGS[1] = 3 * EMBEDDINGS[0]  # a copy, of other length, in one class
LABELS = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 2, 2])


def loop(emb: np.ndarray, labels: np.ndarray, gallery: np.ndarray, others: np.ndarray, o: Any) -> float:
    """The published algorithm, one anchor at a time in float64; `gallery is emb` means within one batch."""
    unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
    s = unit(emb) @ unit(gallery).T
    total, active = 0.0, 0
    for i in range(len(emb)):
        itself = i if gallery is emb else -1
        p = [s[i, j] for j in range(len(gallery)) if others[j] == labels[i] and j != itself]
        n = [s[i, j] for j in range(len(gallery)) if others[j] != labels[i]]
        if o.copies == "drop":
            p = [v for v in p if v < 1 - 1e-5]
        if o.mining:
            p, n = (
                [v for v in p if n and v - o.epsilon < max(n)],
                [v for v in n if p and v + o.epsilon > min(p)],
            )
        active += bool(p or n)
        total += np.log(1 + sum(np.exp(-o.alpha * (v - o.base)) for v in p)) / o.alpha
        total += np.log(1 + sum(np.exp(o.beta * (v - o.base)) for v in n)) / o.beta
    return total / (len(emb) if o.divisor == "batch" else max(active, 1))


def test_anchors_against_other_samples(x64: None) -> None:
    gallery, others = RNG.normal(size=(17, 4)), RNG.integers(0, 4, 17)
    same = jnp.asarray(LABELS)[:, None] == jnp.asarray(others)[None, :]
    similarity = pairwise.cosine(jnp.asarray(EMBEDDINGS), jnp.asarray(gallery))
    ours, _ = ms.multi_similarity_loss(similarity, same, ~same, **vars(MultiSimilarity()))
    assert float(ours) == pytest.approx(loop(EMBEDDINGS, LABELS, gallery, others, MultiSimilarity()), rel=1e-12)


def test_large_exponents_do_not_overflow() -> None:
    similarity = jnp.array([[0.0, -1.0, 1.0]])
    one = ms.anchor_losses(
        similarity,
        jnp.array([[False, True, False]]),
        jnp.array([[False, False, True]]),
        alpha=200.0,
        beta=200.0,
        base=0.0,
    )
    np.testing.assert_allclose(one, [2.0], rtol=1e-6)


@pytest.mark.parametrize(("margin", "gamma"), [(0.4, 80.0), (0.25, 120.0), (0.1, 2.0)])
def test_circle(margin: float, gamma: float, x64: None) -> None:
    """Value and gradient by a loop over pairs, with the weights alpha constant in the gradient."""
    norms = np.linalg.norm(EMBEDDINGS, axis=1, keepdims=True)
    unit = EMBEDDINGS / norms
    s = unit @ unit.T
    total, anchors, slopes = 0.0, 0, np.zeros_like(s)
    for i in range(12):
        p = [j for j in range(12) if LABELS[j] == LABELS[i] and j != i]
        n = [j for j in range(12) if LABELS[j] != LABELS[i]]
        if not p:
            continue
        anchors += 1
        alpha_p, alpha_n = np.maximum(1 + margin - s[i, p], 0), np.maximum(s[i, n] + margin, 0)
        pull, push = np.exp(-gamma * alpha_p * (s[i, p] - 1 + margin)), np.exp(gamma * alpha_n * (s[i, n] - margin))
        z = pull.sum() * push.sum()
        total += np.log1p(z)
        slopes[i, p] = -z / (1 + z) * pull / pull.sum() * gamma * alpha_p
        slopes[i, n] = z / (1 + z) * push / push.sum() * gamma * alpha_n
    assert anchors == 11
    by_unit = (slopes + slopes.T) @ unit / anchors
    gradient = (by_unit - unit * (by_unit * unit).sum(axis=1, keepdims=True)) / norms

    def value(x: jax.Array) -> jax.Array:
        return losses.circle(x, jnp.asarray(LABELS), margin=margin, gamma=gamma)

    ours, ours_gradient = jax.jit(jax.value_and_grad(value))(jnp.asarray(EMBEDDINGS))
    assert float(ours) == pytest.approx(total / anchors, rel=1e-9)
    np.testing.assert_allclose(ours_gradient, gradient, rtol=1e-7, atol=1e-9 * np.abs(gradient).max())
