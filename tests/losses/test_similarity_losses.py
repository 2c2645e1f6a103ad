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
    """Value and gradient by a loop over anchors, with the weights alpha constant in the gradient."""

    def by_anchors(x: jax.Array) -> jax.Array:
        rows = x / jnp.linalg.norm(x, axis=1, keepdims=True)
        found = []
        for i in range(12):
            same = LABELS[i] == LABELS
            near, far = same & (np.arange(12) != i), ~same
            if near.any():
                p, n = rows[near] @ rows[i], rows[far] @ rows[i]
                alpha_p, alpha_n = jax.lax.stop_gradient((jnp.maximum(1 + margin - p, 0), jnp.maximum(n + margin, 0)))
                pull = jnp.exp(-gamma * alpha_p * (p - 1 + margin)).sum()
                found.append(jnp.log1p(pull * jnp.exp(gamma * alpha_n * (n - margin)).sum()))
        assert len(found) == 11
        return jnp.mean(jnp.stack(found))

    def value(x: jax.Array) -> jax.Array:
        return losses.circle(x, jnp.asarray(LABELS), margin=margin, gamma=gamma)

    (ours, gradient), (expected, slopes) = (
        jax.jit(jax.value_and_grad(function))(jnp.asarray(EMBEDDINGS)) for function in (value, by_anchors)
    )
    assert float(ours) == pytest.approx(float(expected), rel=1e-9)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-7, atol=1e-9 * float(jnp.abs(slopes).max()))
