"""All pairs of two sets of samples: how far apart they are, and which are of one class."""

import jax
import jax.numpy as jnp

from dml_jax.losses.norms import at_least_float32, root, unit


def products(a: jax.Array, b: jax.Array) -> jax.Array:
    """Inner products [N, M] of the rows of a [N, D] and b [M, D], on accelerators too in their full precision."""
    return jnp.matmul(a, b.T, precision=jax.lax.Precision.HIGHEST)


def cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    """Cosine similarities [N, M] of the rows of a [N, D] and b [M, D], of any norm, in at least float32."""
    return products(unit(a), unit(b))


def distances(a: jax.Array, b: jax.Array) -> jax.Array:
    """Euclidean distances [N, M] between the rows of a [N, D] and b [M, D]; gradient 0 where they coincide."""
    a, b = at_least_float32(a), at_least_float32(b)
    squares = jnp.sum(a * a, axis=-1)[:, None] + jnp.sum(b * b, axis=-1)[None, :]
    return root(squares - 2 * products(a, b))


def same_class(labels: jax.Array) -> jax.Array:
    """labels [B] -> bool [B, B]; a sample is in its own class."""
    return labels[:, None] == labels[None, :]


def partners(labels: jax.Array) -> jax.Array:
    """labels [B] -> bool [B, B]: others of the same class."""
    return same_class(labels) & ~jnp.eye(labels.shape[0], dtype=bool)


def masks(labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Positive and negative pairs of a batch, bool [B, B] each; no sample is its own positive."""
    return partners(labels), ~same_class(labels)
