"""Pairwise similarities and distances between two sets of embeddings, and which pairs share a class."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dml_jax.losses.products import product
from dml_jax.losses.safe_norms import at_least_float32, root, unit


class Candidates(NamedTuple):
    """What the N anchors of a pair loss are compared with.

    Attributes:
      embeddings: float [M, D].
      positive: bool [N, M], pairs of one class; an anchor is not its own positive.
      negative: bool [N, M], pairs of different classes. A pair may be neither.
    """

    embeddings: jax.Array
    positive: jax.Array
    negative: jax.Array


def inner_products(a: jax.Array, b: jax.Array) -> jax.Array:
    """Inner products [N, M] of the rows of a [N, D] and b [M, D], in full precision on accelerators too."""
    return jnp.matmul(a, b.T, precision=jax.lax.Precision.HIGHEST)


def cosine(a: jax.Array, b: jax.Array) -> jax.Array:
    """Cosine similarities [N, M] of the rows of a [N, D] and b [M, D], of any norm, in at least float32."""
    return inner_products(unit(a), unit(b))


def class_cosine(embeddings: jax.Array, classes: jax.Array) -> jax.Array:
    """Cosines [N, C] of embeddings [N, D] with proxies of classes [C, D]; the operands may be bfloat16."""
    return product("nd,cd->nc", unit(embeddings), unit(classes), precision=jax.lax.Precision.HIGHEST)


def distances(a: jax.Array, b: jax.Array) -> jax.Array:
    """Euclidean distances [N, M] between the rows of a [N, D] and b [M, D]; exactly 0 where rows are equal.

    The gradient is 0 there.
    """
    return root(squared_distances(a, b))


def squared_distances(a: jax.Array, b: jax.Array) -> jax.Array:
    """Squared Euclidean distances [N, M] between the rows of a [N, D] and b [M, D]; exactly 0 where rows are equal.

    |a|^2 + |b|^2 - 2 <a, b> alone has an error of about 1e-7 (|a|^2 + |b|^2) in float32, and may be negative.
    """
    a, b = at_least_float32(a), at_least_float32(b)
    lengths = jnp.sum(a * a, axis=-1)[:, None] + jnp.sum(b * b, axis=-1)[None, :]
    squares = lengths - 2 * inner_products(a, b)
    equal = (_hash_rows(a)[:, None] == _hash_rows(b)[None, :]) & (squares < 1e-3 * lengths)
    return jnp.where(equal, 0, squares)


def _hash_rows(x: jax.Array) -> jax.Array:
    """A number uint32 [N] per row of x [N, D], the same for equal rows; integer sums do not depend on their order."""
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0, x), jnp.uint32).reshape(x.shape[0], -1)  # -0.0 equals 0.0
    columns = jnp.arange(1, bits.shape[1] + 1, dtype=jnp.uint32)
    mixed = bits + columns[None, :] * jnp.uint32(0x9E3779B9)
    for factor in (0x7FEB352D, 0x846CA68B):
        mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(factor)
    return jnp.sum(mixed, axis=1, dtype=jnp.uint32)


def own_class(labels: jax.Array, classes: int) -> jax.Array:
    """labels [B] -> bool [B, C], the class of each sample."""
    return labels[:, None] == jnp.arange(classes)[None, :]


def class_indices(labels: jax.Array, classes: int) -> jax.Array:
    """Labels as indices: beyond the end instead of negative, as those would count from the end."""
    return jnp.where(labels < 0, classes, labels.astype(jnp.promote_types(labels.dtype, jnp.int32)))


def same_class(labels: jax.Array) -> jax.Array:
    """labels [B] -> bool [B, B], True on the diagonal."""
    return labels[:, None] == labels[None, :]


def partners(labels: jax.Array) -> jax.Array:
    """labels [B] -> bool [B, B]: other samples of the same class."""
    return same_class(labels) & ~jnp.eye(labels.shape[0], dtype=bool)


def masks(labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Positive and negative pairs of a batch, bool [B, B] each; no sample is its own positive."""
    return partners(labels), ~same_class(labels)


def compared(
    embeddings: jax.Array, labels: jax.Array, candidates: Candidates | None, *, normalize: bool = True
) -> tuple[jax.Array, Candidates]:
    """The anchors [N, D] and what they are compared with: `candidates`, or the batch itself if None.

    Both are L2-normalised if `normalize` is True, and in at least float32.
    """
    prepare = unit if normalize else at_least_float32
    anchors = prepare(embeddings)
    if candidates is None:
        return anchors, Candidates(anchors, *masks(labels))
    return anchors, candidates._replace(embeddings=prepare(candidates.embeddings))
