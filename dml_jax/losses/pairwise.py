"""Similarities and distances of two sets of embeddings, masks of classes, and weighted means."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dml_jax.errors import DataError
from dml_jax.numerics import at_least_float32, product, root, unit


class Candidates(NamedTuple):
    """The candidates with which the N anchors of a pair loss are compared."""

    embeddings: Array  # float [M, D]
    # Bool [N, M], or weights >= 0 if the loss declares `WeightedCandidates`.
    positive: Array  # pairs of one class; an anchor is not its own positive
    negative: Array  # pairs of different classes; a pair may be neither


PAIR_WEIGHTS = "weights of pairs"
# Annotation of a loss's argument `candidates`.
WeightedCandidates = Annotated[Candidates | Array | None, PAIR_WEIGHTS]


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
    """Roots of `squared_distances`, [N, M]; derivatives are 0 where the distance is."""
    return root(squared_distances(a, b))


def squared_distances(a: Array, b: Array) -> Array:
    """Squared Euclidean distances [N, M] between the rows of a [N, D] and b [M, D].

    They are 0, and so are their derivatives, where |a - b|^2 <= 8 ε (|a|^2 + |b|^2), ε being the
    type's relative precision: smaller values are rounding errors. In float32, distances of unit
    rows below 0.0014 are therefore 0.
    """
    x, y = at_least_float32(a), at_least_float32(b)
    lengths = jnp.sum(x * x, axis=-1)[:, None] + jnp.sum(y * y, axis=-1)[None, :]
    squares = lengths - 2 * inner_products(x, y)
    return jnp.where(squares <= 8 * jnp.finfo(squares.dtype).eps * lengths, 0, squares)


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


Distance = Callable[[Array, Array], Array]  # two blocks of rows, [N, D] and [M, D] -> [N, M]


class Pairs(NamedTuple):
    """What a loss on pairs compares; rows are in at least float32, of any length."""

    anchors: Array  # [N, D]
    others: Array  # [M, D]
    positive: Array  # bool or weights [N, M]
    negative: Array
    labels: Array  # int [N]
    weights: Array | None  # [N], of the anchors
    distance: Distance | None  # of embeddings as they are, in place of that of unit vectors
    within: bool  # whether the others are the batch

    @classmethod
    def of(
        cls, embeddings: Array, labels: Any, candidates: Any, weights: Any, distance: Any
    ) -> "Pairs":
        """The pairs of embeddings with the candidates, or with each other by their labels."""
        x, given = at_least_float32(embeddings), candidates
        if given is None:
            given = Candidates(x, *masks(labels))
        others = x if candidates is None else at_least_float32(given.embeddings)
        pairs = given.positive, given.negative
        return cls(x, others, *pairs, labels, weights, distance, candidates is None)

    def compared(self) -> "Pairs":
        """With rows of unit length, unless a `distance` compares them as they are."""
        if self.distance is not None:
            return self
        anchors = unit(self.anchors)
        others = anchors if self.others is self.anchors else unit(self.others)
        return self._replace(anchors=anchors, others=others)

    def distances(self) -> Array:
        """`distance` or the Euclidean one of the rows, [N, M]."""
        if self.distance is None:
            return distances(self.anchors, self.others)
        found = self.distance(self.anchors, self.others)
        shape = len(self.anchors), len(self.others)
        if jnp.shape(found) != shape:
            given = f"returns {list(jnp.shape(found))} for {shape[0]} and {shape[1]} rows"
            raise DataError(f"distance: {given}; give [N, M]")
        return found

    def similarities(self) -> Array:
        """Inner products of the rows, or -`distance`, [N, M]."""
        if self.distance is not None:
            return -self.distances()
        return inner_products(self.anchors, self.others)


class Mean(NamedTuple):
    """A term of a loss: the mean of values of anchors, pairs or triplets."""

    values: Array  # [N, …]
    counted: Array | None = None  # bool, of the same shape; None: all
    weights: Array | None = None  # >= 0, of the same shape; a mask has no weights


Terms = Mean | tuple[Mean | Array, ...]
Divisor = Literal["all", "active"]
Reduce = Literal["mean"] | None
Relation = Callable[[Any, Any], Any]  # labels [N] and [M] -> weights [N, M], see `pairs_of`
ROUNDING = 1e-6  # error of float32 distances; a smaller value does not count as active


def is_active(values: Array) -> Array:
    """Which values are above ROUNDING, or NaN: a mean without it would hide that."""
    return ~(values <= ROUNDING)


def reduced(
    terms: Terms,
    weights: Array | None,
    divisor: Divisor = "all",
    reduce: Reduce = "mean",
) -> Any:
    """The sum of means, with `weights` [N] of the anchors, and of scalars -> scalar.

    With the divisor "active", means over the values above ROUNDING. With reduce=None, the sum of
    the values that the means are of, 0 where they do not count, without the scalars.
    """
    total: Any = 0
    for term in (terms,) if isinstance(terms, Mean) else terms:
        if not isinstance(term, Mean):
            total += 0 if reduce is None else term
            continue
        values, counted, given = term
        counted = jnp.ones(values.shape, bool) if counted is None else counted
        if reduce is None:
            total += jnp.where(counted, values, 0)
            continue
        counted = counted & is_active(values) if divisor == "active" else counted
        shared = weights if given is None else pair_weights(given, weights)
        total += weighted_mean(values, counted, shared)
    return total


def pairs_of(weights: Any) -> tuple[Any, Any]:
    """(positive, negative) from weights of any shape: a pair is positive if its weight is > 0,
    negative if it is 0, and neither if it is NaN.

    `negative` is a mask. So is `positive` if `weights` is a NumPy array of 0, 1 and NaN; otherwise
    it holds weights. Both are NumPy arrays if `weights` is one.
    """
    known = isinstance(weights, np.ndarray)
    where = np.where if known else jnp.where
    # Negative weights, which mean nothing, are kept for the check of the loss if they are known.
    positive = where(np.isnan(weights) if known else ~(weights > 0), 0, weights)
    return (positive > 0 if known and np.isin(positive, (0, 1)).all() else positive), weights == 0


def pair_weights(relation: Array, weights: Array | None) -> Array | None:
    """Weights of pairs [N, …] times those of the anchors; for a mask, those of the anchors [N]."""
    if relation.dtype == bool:
        return weights
    if weights is None:
        return relation
    anchors = jnp.asarray(weights, relation.dtype)
    return relation * anchors.reshape(anchors.shape + (1,) * (relation.ndim - 1))


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
        number = counted.sum(axis=-1).astype(values.dtype).sum()  # int32 ends at 2**31 pairs
        return jnp.sum(values, where=counted) / jnp.maximum(number, 1)
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
    one_each = jnp.eye(len(embeddings))
    of_one = partial(loss, embeddings, labels, *tables, **options)
    return jax.vmap(lambda weights: of_one(weights=weights))(one_each)
