"""Circle loss compared with a loop over anchors; exponents of the multi-similarity loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import losses
from dml_jax.losses import similarity_losses as ms

RNG = np.random.default_rng(5)
EMBEDDINGS = RNG.normal(size=(12, 4))
EMBEDDINGS[1] = 3 * EMBEDDINGS[0]  # a copy, of other length, in one class
LABELS = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 2, 2])


def test_large_exponents_do_not_overflow() -> None:
    similarity = jnp.array([[0.0, -1.0, 1.0]])
    positive, negative = jnp.array([[False, True, False]]), jnp.array([[False, False, True]])
    large = {"alpha": 200.0, "beta": 200.0, "base": 0.0}
    one, *_ = ms.multi_similarity_loss(
        similarity, positive, negative, **large, epsilon=0.0, mining=False, copies="drop", divisor="batch"
    )
    np.testing.assert_allclose(one, 2.0, rtol=1e-6)


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
