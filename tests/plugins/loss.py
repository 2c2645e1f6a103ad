"""A loss: pairs of a class are pulled together, all others pushed apart."""

import jax.numpy as jnp

from dml_jax.config.fields import Positive
from dml_jax.numerics import at_least_float32


def attraction(embeddings, labels, *, scale: Positive = 1.0):
    """Mean squared distance of the pairs of a class, plus exp(-squared distance) of all others."""
    x = at_least_float32(embeddings)
    squares = scale * jnp.sum((x[:, None] - x[None]) ** 2, axis=2)
    same = labels[:, None] == labels[None]
    return jnp.mean(jnp.where(same, squares, jnp.exp(-squares)))
