"""Similarities and distances of two sets of embeddings, masks of classes, and weighted means."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from dml_jax.numerics import at_least_float32, product, root, unit


class Candidates(NamedTuple):
    """The candidates with which the N anchors of a pair loss are compared."""

    embeddings: Array  # float [M, D]
    # Bool [N, M], or weights >= 0 if the loss declares `WeightedCandidates`.
    positive: Array  # pairs of one class; an anchor is not its own positive
    negative: Array  # pairs of different classes; a pair may be neither


PAIR_WEIGHTS = "weights of pairs"
WeightedCandidates = Annotated[Candidates | None, PAIR_WEIGHTS]  # annotation of a loss's argument


def inner_products(a: Array, b: Array) -> Array:
    """Inner products [N, M] of the rows of a [N, D] and b [M, D], precise also on accelerators."""
    return jnp.matmul(a, b.T, precision=jax.lax.Precision.HIGHEST)


def cosine(a: Array, b: Array) -> Array:
    """Cosines [N, M] of the rows of a [N, D] and b [M, D] of any norm, in at least float32."""
    return inner_products(unit(a), unit(b))


def class_cosine(embeddings: Array, classes: Array) -> Array:
    """Cosines [N, C] of embeddings [N, D] with proxies [C, D]; the operands may be bfloat16."""
    highest = jax.lax.Precision.HIGHEST
    return product("nd,cd->nc", unit(embeddings), unit(classes), precision=highest)


def distances(a: Array, b: Array) -> Array:
    """Euclidean distances [N, M] of the rows of a [N, D] and b [M, D]; gradient 0 of equal rows."""
    return root(squared_distances(a, b))


CLOSE = 1e-3  # fraction of |a|^2 + |b|^2 below which squared distances use differences of rows


@jax.custom_vjp
def squared_distances(a: Array, b: Array) -> Array:
    """Squared Euclidean distances [N, M] between the rows of a [N, D] and b [M, D], 0 if equal.

    |a|^2 + |b|^2 - 2 <a, b> has an error of about 1e-7 (|a|^2 + |b|^2) in float32, and so has its
    gradient. For close rows both are therefore computed from differences of rows, in a time that
    grows with the largest number of rows close to any one; no array [N, M, D] is stored.
    """
    return _squared_distances(a, b)[0]


def _squared_distances(a: Array, b: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    x, y = at_least_float32(a), at_least_float32(b)
    lengths = jnp.sum(x * x, axis=-1)[:, None] + jnp.sum(y * y, axis=-1)[None, :]
    squares = lengths - 2 * inner_products(x, y)
    small = squares < CLOSE * lengths
    equal = small & (_hash_rows(x)[:, None] == _hash_rows(y)[None, :])
    close = small & ~equal

    def recompute(columns: Array, squares: Array) -> Array:
        exact = jnp.sum((x - y[columns]) ** 2, axis=-1)
        return squares.at[jnp.arange(len(x)), columns].set(exact, mode="drop", unique_indices=True)

    return _over_pairs(close, recompute, jnp.where(equal, 0, squares)), (a, b, close)


def _backward(saved: tuple[Array, Array, Array], gradient: Array) -> tuple[Array, Array]:
    def one_side(x: Array, y: Array, close: Array, gradient: Array) -> Array:
        """The sum over j of gradient_ij (x_i - y_j)."""
        far = jnp.where(close, 0, gradient)

        def add(columns: Array, sums: Array) -> Array:
            at = columns[:, None]
            weights = jnp.take_along_axis(gradient, at, axis=1, mode="fill", fill_value=0)
            return sums + weights * (x - y[columns])

        return _over_pairs(close, add, jnp.sum(far, axis=1)[:, None] * x - inner_products(far, y.T))

    a, b, close = saved
    x, y = at_least_float32(a), at_least_float32(b)
    slopes_x, slopes_y = one_side(x, y, close, gradient), one_side(y, x, close.T, gradient.T)
    return (2 * slopes_x).astype(a.dtype), (2 * slopes_y).astype(b.dtype)


squared_distances.defvjp(_squared_distances, _backward)


def _over_pairs(pairs: Array, step: Callable[[Array, Array], Array], start: Array) -> Array:
    """Folds `step(columns [N], carry)` over pairs bool [N, M], one per row at a time, then M."""

    def fold(start: Array) -> Array:
        count = jnp.cumsum(pairs, axis=1, dtype=jnp.int32)
        search = jax.vmap(partial(jnp.searchsorted, method="scan_unrolled"), (0, None))
        return jax.lax.fori_loop(
            0, count[:, -1].max(), lambda i, carry: step(search(count, i + 1), carry), start
        )

    return jax.lax.cond(jnp.any(pairs), fold, lambda start: start, start)


def _hash_rows(x: Array) -> Array:
    """x [N, D] -> uint32 [N], equal for equal rows; integer sums do not depend on their order."""
    x = jnp.where(x == 0, 0, x)  # -0.0 equals 0.0
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(x.shape[0], -1)
    columns = jnp.arange(1, bits.shape[1] + 1, dtype=jnp.uint32)
    mixed = bits + columns[None, :] * jnp.uint32(0x9E3779B9)
    for factor in (0x7FEB352D, 0x846CA68B):
        mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(factor)
    return jnp.sum(mixed, axis=1, dtype=jnp.uint32)


def class_mask(labels: Array, classes: int) -> Array:
    """labels [B] -> bool [B, C], the class of each sample."""
    return labels[:, None] == jnp.arange(classes)[None, :]


def class_indices(labels: Array, classes: int) -> Array:
    """Labels as indices; negative ones become C, since JAX counts negative indices from the end."""
    return jnp.where(labels < 0, classes, labels.astype(jnp.promote_types(labels.dtype, jnp.int32)))


def same_class(labels: Array) -> Array:
    """labels [B] -> bool [B, B], True on the diagonal."""
    return labels[:, None] == labels[None, :]


def masks(labels: Array) -> tuple[Array, Array]:
    """Positive and negative pairs of a batch, bool [B, B] each; no sample is its own positive."""
    same = same_class(labels)
    return same & ~jnp.eye(labels.shape[0], dtype=bool), ~same


def compared(
    embeddings: Array, labels: Array, candidates: Candidates | None, *, normalize: bool = True
) -> tuple[Array, Candidates]:
    """The anchors [N, D] and their candidates: `candidates`, or the batch itself if None.

    Both are in at least float32, and normalised if `normalize` is True.
    """
    prepare = unit if normalize else at_least_float32
    anchors = prepare(embeddings)
    if candidates is None:
        return anchors, Candidates(anchors, *masks(labels))
    return anchors, candidates._replace(embeddings=prepare(candidates.embeddings))


def pair_weights(relation: Array, weights: Array | None) -> Array | None:
    """Weights of pairs [N, M] times those of the anchors; for a mask, those of the anchors [N]."""
    if relation.dtype == bool:
        return weights
    return relation if weights is None else relation * jnp.asarray(weights, relation.dtype)[:, None]


def log_weights(relation: Array) -> Array | float:
    """Added to the exponents of pairs [N, M], so that a weight of 2 counts as two pairs."""
    return 0.0 if relation.dtype == bool else jnp.log(jnp.where(relation > 0, relation, 1))


def weighted_mean(
    values: Array, counted: Array | None = None, weights: Array | None = None
) -> Array:
    """sum_i w_i values_i / sum_i w_i -> scalar, as every loss is reduced; 0 if none counts.

    Values [N, …] belong to anchors or pairs, only `counted` ones are summed; `weights` belong to
    the anchors [N] or the pairs [N, M].
    """
    counted = jnp.ones(values.shape, bool) if counted is None else counted
    if weights is None:
        return jnp.sum(values, where=counted) / jnp.maximum(counted.sum(), 1)
    w = jnp.asarray(weights, values.dtype)
    w = jnp.where(counted, w.reshape(w.shape + (1,) * (values.ndim - w.ndim)), 0)
    total = w.sum()
    return jnp.sum(jnp.where(w != 0, w * values, 0)) / jnp.where(total != 0, total, 1)


def per_anchor(
    loss: Callable[..., Array], embeddings: Array, labels: Array, *tables: Array, **options: Any
) -> Array:
    """The loss of each anchor, with the other rows as its positives and negatives: [N].

    Element i is the loss with weight 1 for anchor i and 0 for all others: the mean over its pairs
    for a loss on pairs, and 0 if it has none. The loss of the batch is the mean over the anchors
    that count, weighted by their numbers of pairs if it is a mean over pairs. Parts that depend on
    no anchor, such as regularisers, are in every element. `tables` are learned parameters.
    """
    one_each = jnp.eye(len(labels), dtype=at_least_float32(embeddings).dtype)
    of_one = partial(loss, embeddings, labels, *tables, **options)
    return jax.vmap(lambda weights: of_one(weights=weights))(one_each)
