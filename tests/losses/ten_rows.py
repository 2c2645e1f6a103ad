"""Ten rows of four classes, one of which has a single row, and all their pairs."""

import jax
import jax.numpy as jnp
import numpy as np

X = np.random.default_rng(2).normal(size=(10, 4))
LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3])
SAME = LABELS[:, None] == LABELS[None]
POSITIVE, NEGATIVE = SAME & ~np.eye(10, dtype=bool), ~SAME
D = np.linalg.norm(X[:, None] - X[None], axis=-1)


def given() -> tuple[jax.Array, jax.Array, jax.Array]:
    """Distances, positive and negative pairs."""
    return jnp.asarray(D), jnp.asarray(POSITIVE), jnp.asarray(NEGATIVE)
