"""Fraction of its pairs or triplets that a pair loss still learns from; the others have no gradient.

Each function takes the arguments of the loss of the same name, with which it shares mining and hinges. It returns a
scalar in [0, 1], and 0 if there are no pairs.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from dml_jax.losses import mining as miners
from dml_jax.losses import pair_losses, pairwise, similarity_losses
from dml_jax.losses.mining import Triplets
from dml_jax.losses.options import Mining, MultiSimilarity
from dml_jax.losses.pair_losses import ROUNDING


def _fraction(active: jax.Array, counted: jax.Array) -> jax.Array:
    return jnp.sum(active & counted) / jnp.maximum(counted.sum(), 1)


def contrastive(
    embeddings: jax.Array,
    labels: jax.Array,
    *,
    positive_margin: float = 0.0,
    negative_margin: float = 1.0,
    **_: Any,
) -> jax.Array:
    """Fraction of the pairs of a batch with a positive hinge."""
    x, others = pairwise.compared(embeddings, labels, None)
    pull, push = pair_losses.contrastive_hinges(
        pairwise.distances(x, others.embeddings), others.positive, others.negative,
        positive_margin=positive_margin, negative_margin=negative_margin,
    )  # fmt: skip
    return _fraction(pull + push > ROUNDING, others.positive | others.negative)


def triplet(
    embeddings: jax.Array, labels: jax.Array, *, margin: float, squared: bool, mining: Mining, key: jax.Array
) -> jax.Array:
    """Fraction of the mined triplets that violate the margin."""
    x, triplets = _mine(embeddings, labels, mining, key)
    return of_triplets(x, triplets, margin=margin, squared=squared)


def margin(
    embeddings: jax.Array,
    labels: jax.Array,
    *,
    beta: jax.Array,
    margin: float,
    mining: Mining,
    key: jax.Array,
    **_: Any,
) -> jax.Array:
    """Fraction of the mined triplets with at least one positive hinge."""
    x, triplets = _mine(embeddings, labels, mining, key)
    return of_margin_triplets(x, labels, triplets, beta, margin=margin)


def multi_similarity(
    embeddings: jax.Array,
    labels: jax.Array,
    *,
    alpha: float,
    beta: float,
    base: float,
    epsilon: float,
    mining: bool,
    copies: Literal["drop", "keep"],
    divisor: Literal["batch", "active"],
) -> jax.Array:
    """Fraction of the pairs of a batch that mining keeps."""
    options = MultiSimilarity(alpha, beta, base, epsilon, mining, copies, divisor)
    x, others = pairwise.compared(embeddings, labels, None)
    similarity = pairwise.inner_products(x, others.embeddings)
    positive, negative = similarity_losses.select(similarity, others.positive, others.negative, options)
    return _fraction(positive | negative, others.positive | others.negative)


def of_triplets(embeddings: jax.Array, triplets: Triplets, *, margin: float, squared: bool) -> jax.Array:
    """Fraction of the valid triplets with a positive hinge; arguments as for `pair_losses.triplet_loss`."""
    hinges = pair_losses.triplet_hinges(embeddings, triplets, margin=margin, squared=squared)
    return _fraction(hinges > ROUNDING, triplets.valid)


def of_margin_triplets(
    embeddings: jax.Array, labels: jax.Array, triplets: Triplets, beta: jax.Array, *, margin: float
) -> jax.Array:
    """Fraction of the valid triplets with a positive hinge; arguments as for `pair_losses.margin_loss`."""
    pull, push = pair_losses.margin_hinges(embeddings, labels, triplets, beta, margin=margin)
    return _fraction((pull > ROUNDING) | (push > ROUNDING), triplets.valid)


def _mine(embeddings: jax.Array, labels: jax.Array, mining: Mining, key: jax.Array) -> tuple[jax.Array, Triplets]:
    x, others = pairwise.compared(embeddings, labels, None)
    distances = pairwise.distances(x, x)
    return x, miners.mine(mining, key, distances, others.positive, others.negative, dim=x.shape[-1])
