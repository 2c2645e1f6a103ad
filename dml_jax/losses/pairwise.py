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
    """Rows with which a loss compares N anchors, and the pairs among them."""

    embeddings: Array  # float [M, D]
    # Bool [N, M], or weights >= 0 if the loss declares `WeightedCandidates`.
    positive: Array  # pairs of one class; an anchor is not its own positive
    negative: Array  # pairs of different classes; pairs in neither mask are ignored


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

    They and their derivatives are 0 where |a - b|^2 <= 8 ε (|a|^2 + |b|^2) with the type's relative
    precision ε, because smaller values are rounding errors. In float32, distances of unit rows
    below 0.0014 are therefore 0.
    """
    x, y = at_least_float32(a), at_least_float32(b)
    lengths = jnp.sum(x * x, axis=-1)[:, None] + jnp.sum(y * y, axis=-1)[None, :]
    squares = lengths - 2 * inner_products(x, y)
    return jnp.where(squares <= 8 * jnp.finfo(squares.dtype).eps * lengths, 0, squares)


def class_mask(labels: Array, classes: int) -> Array:
    """labels [B] -> bool [B, C], True at the class of each sample."""
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
    """The pairs that a loss compares; rows are in at least float32, of any length."""

    anchors: Array  # [N, D]
    candidates: Array  # [M, D]
    positive: Array  # bool or weights [N, M]
    negative: Array
    labels: Array  # int [N]
    weights: Array | None  # [N], of the anchors
    distance: Distance | None  # of unnormalised rows; None: Euclidean
    in_batch: bool  # whether the candidates are the anchors

    def normalized(self) -> "Pairs":
        """The pairs with rows of unit length, unless there is a `distance` of unnormalised rows."""
        if self.distance is not None:
            return self
        anchors = unit(self.anchors)
        same = self.candidates is self.anchors
        return self._replace(anchors=anchors, candidates=anchors if same else unit(self.candidates))

    def distances(self) -> Array:
        """`distance` or the Euclidean distance of the rows, [N, M]."""
        if self.distance is None:
            return distances(self.anchors, self.candidates)
        result = self.distance(self.anchors, self.candidates)
        if jnp.shape(result) != (shape := (len(self.anchors), len(self.candidates))):
            rule = f"must have shape {list(shape)}"
            raise DataError(f"the result of distance {rule}; got {list(jnp.shape(result))}")
        return result

    def similarities(self) -> Array:
        """Inner products of the rows, or -`distance`, [N, M]."""
        if self.distance is not None:
            return -self.distances()
        return inner_products(self.anchors, self.candidates)


def find_pairs(
    embeddings: Array, labels: Any, candidates: Any, weights: Any, distance: Any
) -> Pairs:
    """The pairs of embeddings with `Candidates`, or with each other, by their labels."""
    x, in_batch = at_least_float32(embeddings), candidates is None
    pairs = Candidates(x, *masks(labels)) if candidates is None else candidates
    rows = x if in_batch else at_least_float32(pairs.embeddings)
    return Pairs(x, rows, pairs.positive, pairs.negative, labels, weights, distance, in_batch)


class Mean(NamedTuple):
    """A term of a loss: the mean of the values of anchors, pairs or triplets."""

    values: Array  # [N, …]
    counted: Array | None = None  # bool, of the same shape; None: all
    weights: Array | None = None  # >= 0, of the same shape; a mask has no weights


Terms = Mean | tuple[Mean | Array, ...]
Divisor = Literal["all", "active"]
Reduce = Literal["mean"] | None
Relation = Callable[[Any, Any], Any]  # labels [N] and [M] -> weights [N, M], see `split_pairs`
ROUNDING = 1e-6  # error of float32 distances; a smaller value does not count as active


def is_active(values: Array) -> Array:
    """Whether each value is above ROUNDING or NaN, which must not disappear from a mean."""
    return ~(values <= ROUNDING)


def reduce_terms(
    terms: Terms,
    weights: Array | None,
    divisor: Divisor = "all",
    reduce: Reduce = "mean",
) -> Any:
    """Adds means, weighted by the anchors' `weights` [N], and scalars -> scalar.

    The divisor "active" averages over the values above ROUNDING. With reduce=None, the values
    themselves are added, 0 where they do not count, without the scalars.
    """
    total: Any = 0
    for term in (terms,) if isinstance(terms, Mean) else terms:
        if not isinstance(term, Mean):
            total += 0 if reduce is None else term
            continue
        values, counted, pair_weights = term
        counted = jnp.ones(values.shape, bool) if counted is None else counted
        if reduce is None:
            total += jnp.where(counted, values, 0)
            continue
        counted = counted & is_active(values) if divisor == "active" else counted
        w = weights if pair_weights is None else weigh_pairs(pair_weights, weights)
        total += weighted_mean(values, counted, w)
    return total


def split_pairs(weights: Any) -> tuple[Any, Any]:
    """(positive, negative) from weights of any shape: a pair is positive if its weight is > 0,
    negative if it is 0, and ignored if it is NaN.

    `negative` is a mask. `positive` is a mask if `weights` is a NumPy array of 0, 1 and NaN;
    otherwise it contains weights. Both are NumPy arrays if `weights` is one.
    """
    is_numpy = isinstance(weights, np.ndarray)
    where: Any = np.where if is_numpy else jnp.where
    # Negative weights of a NumPy array stay, so that the check of the loss refuses them.
    positive = where(np.isnan(weights) if is_numpy else ~(weights > 0), 0, weights)
    is_mask = is_numpy and np.isin(positive, (0, 1)).all()
    return (positive > 0 if is_mask else positive), weights == 0


def weigh_pairs(pairs: Array, weights: Array | None) -> Array | None:
    """Pair weights [N, …] times anchor weights [N]; for a mask of pairs, the anchor weights."""
    if pairs.dtype == bool:
        return weights
    if weights is None:
        return pairs
    anchors = jnp.asarray(weights, pairs.dtype)
    return pairs * anchors.reshape(anchors.shape + (1,) * (pairs.ndim - 1))


def log_weights(pairs: Array) -> Array | float:
    """Summand for the exponents of pairs [N, M], so that a weight of 2 counts as two pairs."""
    return 0.0 if pairs.dtype == bool else jnp.log(jnp.where(pairs > 0, pairs, 1))


def weighted_mean(
    values: Array, counted: Array | None = None, weights: Array | None = None
) -> Array:
    """sum_i w_i values_i / sum_i w_i over the `counted` values -> scalar; 0 if none counts.

    Values [N, …] belong to anchors or pairs, `weights` to the anchors [N] or the pairs [N, M].
    """
    counted = jnp.ones(values.shape, bool) if counted is None else counted
    if weights is None:
        number = counted.sum(axis=-1).astype(values.dtype).sum()  # int32 overflows at 2**31 pairs
        return jnp.sum(values, where=counted) / jnp.maximum(number, 1)
    w = jnp.asarray(weights, values.dtype)
    w = jnp.where(counted, w.reshape(w.shape + (1,) * (values.ndim - w.ndim)), 0)
    total = w.sum()
    return jnp.sum(jnp.where(w != 0, w * values, 0)) / jnp.where(total != 0, total, 1)


def per_anchor(
    loss: Callable[..., Array], embeddings: Array, labels: Array, *learned: Array, **options: Any
) -> Array:
    """The loss of each anchor, with the other rows as its positives and negatives: [N].

    Element i is the loss with weight 1 for anchor i and weight 0 for all other anchors. For a loss
    on pairs, it is the mean over the pairs of anchor i, or 0 if it has none. The loss of the batch
    is the mean over the anchors that count, weighted by their numbers of pairs if it is a mean over
    pairs. Every element includes terms without anchors, such as regularisers. `learned` are the
    learned parameters.
    """
    weighted_loss = partial(loss, embeddings, labels, *learned, **options)
    return jax.vmap(lambda weights: weighted_loss(weights=weights))(jnp.eye(len(embeddings)))
