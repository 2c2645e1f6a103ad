"""All pairs of two sets of samples: their similarities, and which are of one class."""

import jax
import jax.numpy as jnp

from dml_jax.losses.mining import partners, same_class
from dml_jax.losses.norms import unit


def cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    """Cosine similarities [N, M] of the rows of a [N, D] and b [M, D], of any norm, in at least float32."""
    return jnp.matmul(unit(a), unit(b).T, precision=jax.lax.Precision.HIGHEST)


def masks(labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Positive and negative pairs of a batch, bool [N, N] each, for labels int [N]; no sample is its own positive."""
    return partners(labels), ~same_class(labels)
