"""Circle loss compared with a loop over anchors; exponents of the multi-similarity loss."""

from functools import partial
from typing import Any

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
    similarity = np.array([[0, -1, 1]], np.float32)
    options: dict[str, Any] = {
        "alpha": 200.0,
        "beta": 200.0,
        "base": 0.0,
        "epsilon": 0.0,
        "divisor": "all",
    }
    loss = jax.jit(partial(ms.multi_similarity_terms, **options, mining=False, copies="drop"))
    terms, *_ = loss(similarity, similarity < 0, similarity > 0)
    np.testing.assert_allclose(terms.values, [2.0], rtol=1e-6)


def test_circle(x64: None) -> None:
    """Value and gradient by a loop over anchors, with the weights alpha constant in the
    gradient."""

    def by_anchors(x: jax.Array, margin: jax.Array, gamma: jax.Array) -> jax.Array:
        rows = x / jnp.linalg.norm(x, axis=1, keepdims=True)
        found = []
        for i in range(12):
            same = LABELS[i] == LABELS
            near, far = same & (np.arange(12) != i), ~same
            if near.any():
                p, n = rows[near] @ rows[i], rows[far] @ rows[i]
                alpha_p, alpha_n = jax.lax.stop_gradient(
                    (jnp.maximum(1 + margin - p, 0), jnp.maximum(n + margin, 0))
                )
                pull = jnp.exp(-gamma * alpha_p * (p - 1 + margin)).sum()
                found.append(jnp.log1p(pull * jnp.exp(gamma * alpha_n * (n - margin)).sum()))
        assert len(found) == 11
        return jnp.mean(jnp.stack(found))

    def value(x: jax.Array, margin: jax.Array, gamma: jax.Array) -> jax.Array:
        return losses.circle(x, jnp.asarray(LABELS), margin=margin, gamma=gamma)

    functions = [jax.jit(jax.value_and_grad(function)) for function in (value, by_anchors)]
    for margin, gamma in ((0.4, 80.0), (0.25, 120.0), (0.1, 2.0)):
        (ours, gradient), (expected, slopes) = (
            function(EMBEDDINGS, margin, gamma) for function in functions
        )
        assert float(ours) == pytest.approx(float(expected), rel=1e-9)
        np.testing.assert_allclose(gradient, slopes, rtol=1e-7, atol=1e-9 * np.abs(slopes).max())
