"""Triplet mining with static shapes, for use inside a jitted step.

Distance-weighted sampling (Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017)
draws a negative at distance d with probability proportional to 1/q(d), where

    q(d) = d^(D-2) (1 - d^2/4)^((D-3)/2)

is the density of distances between uniform points of the unit sphere in D dimensions, so that all
distances become equally likely. No gradient flows through the sampling.

Miners take distances float [N, M] between unit vectors and masks of the `positive` and `negative`
pairs to choose from, bool [N, M]; row i is anchor i. They return one triplet per anchor.
"""

from typing import Any, Literal, NamedTuple, assert_never

import jax
import jax.numpy as jnp
from jax import Array, lax

from dml_jax.errors import ConfigError
from dml_jax.losses.pairwise import distances, masks, same_class

Mining = Literal[
    "random", "semi_hard", "hard", "easy_positive", "semi_hard_positive", "distance_weighted"
]

TripletMining = Literal[Mining, "all"]
LOWER = 0.5  # lower bound of distances; without it, near-duplicates would dominate the draws


class Triplets(NamedTuple):
    """T triplets, as row indices into the batch, int [T]."""

    anchors: Array
    positives: Array
    negatives: Array
    valid: Array  # bool [T]; False where the anchor has no positive or no negative


def log_inverse_density(distances: Array, dim: int) -> Array:
    """log 1/q(d) for distances d >= 0 of any shape, on the unit sphere in `dim` dimensions.

    q is 0 at d = 0 and d = 2; the value stays finite there, and if rounding makes d > 2.
    """
    tiny, epsilon = jnp.finfo(distances.dtype).tiny, jnp.finfo(distances.dtype).eps
    inside = jnp.maximum(1 - distances * distances / 4, epsilon)
    return (2 - dim) * jnp.log(jnp.maximum(distances, tiny)) - (dim - 3) / 2 * jnp.log(inside)


def distance_logits(distances: Array, dim: int, *, lower: float = LOWER) -> Array:
    """Unnormalised log-probabilities [N, M] of drawing each sample at distances [N, M]."""
    return log_inverse_density(jnp.maximum(lax.stop_gradient(distances), lower), dim)


def draw(key: Array, logits: Array, allowed: Array) -> tuple[Array, Array]:
    """Draws an allowed column per row with log-probabilities [B, N] -> (columns [B], valid [B]).

    A row without allowed columns gets column 0 and False.
    """
    logits = jnp.where(allowed, logits, -jnp.inf)
    return jax.random.categorical(key, logits, axis=-1), jnp.any(logits > -jnp.inf, axis=-1)


def draw_uniform(key: Array, allowed: Array) -> tuple[Array, Array]:
    """`draw` with equal probabilities."""
    return draw(key, jnp.zeros(allowed.shape), allowed)


def distance_weighted(key: Array, embeddings: Array, labels: Array) -> Triplets:
    """One triplet per unit vector: a uniform positive and a distance-weighted negative.

    A sample alone in its class has no valid triplet, nor has a batch of a single class.
    """
    x = lax.stop_gradient(embeddings)
    return mine("distance_weighted", key, distances(x, x), *masks(labels), dim=x.shape[-1])


def across_classes(key: Array, embeddings: Array, labels: Array) -> Triplets:
    """One triplet of three different classes per sample (Milbich et al., ECCV 2020, Section 3.1).

    The negative is distance-weighted; the positive is drawn uniformly from a third class. A batch
    with fewer than three classes has no valid triplet. Embeddings have unit length.
    """
    key_positive, key_negative = jax.random.split(key)
    x = lax.stop_gradient(embeddings)
    different = ~same_class(labels)
    logits = distance_logits(distances(x, x), x.shape[-1])
    negatives, has_negative = draw(key_negative, logits, different)
    positives, has_positive = draw_uniform(key_positive, different & different[negatives])
    valid = has_negative & has_positive
    return Triplets(jnp.arange(labels.shape[0]), positives, negatives, valid)


def within_class(key: Array, labels: Array) -> Triplets:
    """B triplets, each within one class (Milbich et al., ECCV 2020, Section 3.1).

    The class is drawn uniformly from the batch, its three samples uniformly from the class. All
    draws are with replacement, so anchor, positive and negative may be the same sample.
    """
    size = labels.shape[0]
    same = same_class(labels)
    first = jnp.argmax(same, axis=1) == jnp.arange(size)  # one representative per class
    key_class, *keys = jax.random.split(key, 4)
    rows = jax.random.categorical(key_class, jnp.where(first, 0.0, -jnp.inf), shape=(size,))
    members = same[rows]
    anchors, positives, negatives = (draw_uniform(k, members)[0] for k in keys)
    return Triplets(anchors, positives, negatives, jnp.ones(size, bool))


def class_pairs(key: Array, labels: Array) -> tuple[Array, Array]:
    """One random pair per class of at least two samples: (positives int [B], valid bool [B]).

    valid[i] is True for one sample per class, whose pair is (i, positives[i]).
    """
    order = jax.random.permutation(key, labels.shape[0])
    same = same_class(labels)
    # Position of each sample in the random order of its class.
    rank = jnp.sum(same & (order[None, :] < order[:, None]), axis=1)
    second = same & (rank == 1)[None, :]
    return jnp.argmax(second, axis=1), (rank == 0) & jnp.any(second, axis=1)


def mine(
    mining: Mining,
    key: Any,
    distances: Array,
    positive: Array,
    negative: Array,
    *,
    dim: int,
    nearest: float = LOWER,
    farthest: float = 0.0,
) -> Triplets:
    """One triplet per anchor in D = `dim` dimensions; strategies that draw need a random key.

    random               uniform positive, uniform negative
    semi_hard            uniform positive, the nearest negative beyond it or, if all are nearer, the
                         farthest negative (Schroff et al., CVPR 2015, Section 3.2)
    hard                 farthest positive, nearest negative (Hermans, Beyer, Leibe, 2017)
    easy_positive        nearest positive, semi-hard negative (Xuan, Stylianou, Pless, WACV 2020)
    semi_hard_positive   nearest negative, the farthest positive nearer than it, if there is one
    distance_weighted    uniform positive, distance-weighted negative within `farthest` (0: any);
                         negatives nearer than `nearest` are drawn as if they were at that distance
    """
    if mining in ("random", "semi_hard", "distance_weighted") and key is None:
        raise ConfigError(f"mining={mining!r} draws at random; pass key=jax.random.key(...)")
    distances = lax.stop_gradient(distances)
    has_positive, has_negative = jnp.any(positive, axis=1), jnp.any(negative, axis=1)

    def nearest_of(allowed: Array) -> Array:
        return jnp.argmin(jnp.where(allowed, distances, jnp.inf), axis=1)

    def farthest_of(allowed: Array) -> Array:
        return jnp.argmax(jnp.where(allowed, distances, -jnp.inf), axis=1)

    def distance_to(columns: Array) -> Array:
        return jnp.take_along_axis(distances, columns[:, None], axis=1)

    match mining:
        case "random":
            key_positive, key_negative = jax.random.split(key)
            positives, _ = draw_uniform(key_positive, positive)
            negatives, _ = draw_uniform(key_negative, negative)
        case "hard":
            positives, negatives = farthest_of(positive), nearest_of(negative)
        case "semi_hard" | "easy_positive":
            easy = mining == "easy_positive"
            positives = nearest_of(positive) if easy else draw_uniform(key, positive)[0]
            beyond = negative & (distances > distance_to(positives))
            negatives = jnp.where(beyond.any(axis=1), nearest_of(beyond), farthest_of(negative))
        case "semi_hard_positive":
            negatives = nearest_of(negative)
            before = positive & (distances < distance_to(negatives))
            positives, has_positive = farthest_of(before), jnp.any(before, axis=1)
        case "distance_weighted":
            near = negative & (distances <= farthest) if farthest else negative
            logits = distance_logits(distances, dim, lower=nearest)
            key_positive, key_negative = jax.random.split(key)
            positives, _ = draw_uniform(key_positive, positive)
            negatives, has_negative = draw(key_negative, logits, near)
        case _:
            assert_never(mining)
    return Triplets(jnp.arange(len(positive)), positives, negatives, has_positive & has_negative)
