"""Which share of its pairs or triplets a pair loss still learns from; the others have no gradient.

Each function takes the arguments of the loss of its name, with which it shares mining and hinges. It returns a scalar
in [0, 1]; 0 also where there are no pairs.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from dml_jax.losses import mining as miners
from dml_jax.losses import pair_losses, pairwise, similarity_losses
from dml_jax.losses.mining import Mining, Triplets
from dml_jax.losses.pair_losses import ROUNDING
from dml_jax.losses.similarity_losses import MultiSimilarity


def _share(active: jax.Array, of: jax.Array) -> jax.Array:
    return jnp.sum(active & of) / jnp.maximum(of.sum(), 1)


def contrastive(
    embeddings: jax.Array,
    labels: jax.Array,
    *,
    positive_margin: float = 0.0,
    negative_margin: float = 1.0,
    **_: Any,
) -> jax.Array:
    """Of all pairs of a batch, those with a positive hinge."""
    x, others = pairwise.compared(embeddings, labels, None)
    pull, push = pair_losses.contrastive_hinges(
        pairwise.distances(x, others.embeddings), others.positive, others.negative,
        positive_margin=positive_margin, negative_margin=negative_margin,
    )  # fmt: skip
    return _share(pull + push > ROUNDING, others.positive | others.negative)


def triplet(
    embeddings: jax.Array, labels: jax.Array, *, margin: float, squared: bool, mining: Mining, key: jax.Array
) -> jax.Array:
    """Of the mined triplets, those that violate the margin."""
    x, triplets = _mined(embeddings, labels, mining, key)
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
    """Of the mined triplets, those with one of the two hinges positive."""
    x, triplets = _mined(embeddings, labels, mining, key)
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
    """Of all pairs of a batch, those that the mining keeps."""
    options = MultiSimilarity(alpha, beta, base, epsilon, mining, copies, divisor)
    x, others = pairwise.compared(embeddings, labels, None)
    similarity = pairwise.inner_products(x, others.embeddings)
    positive, negative = similarity_losses.select(similarity, others.positive, others.negative, options)
    return _share(positive | negative, others.positive | others.negative)


def of_triplets(embeddings: jax.Array, triplets: Triplets, *, margin: float, squared: bool) -> jax.Array:
    """Of the valid triplets, those with a positive hinge; arguments as for `pair_losses.triplet_loss`."""
    hinges = pair_losses.triplet_hinges(embeddings, triplets, margin=margin, squared=squared)
    return _share(hinges > ROUNDING, triplets.valid)


def of_margin_triplets(
    embeddings: jax.Array, labels: jax.Array, triplets: Triplets, beta: jax.Array, *, margin: float
) -> jax.Array:
    """Of the valid triplets, those with a positive hinge; arguments as for `pair_losses.margin_loss`."""
    pull, push = pair_losses.margin_hinges(embeddings, labels, triplets, beta, margin=margin)
    return _share((pull > ROUNDING) | (push > ROUNDING), triplets.valid)


def _mined(embeddings: jax.Array, labels: jax.Array, mining: Mining, key: jax.Array) -> tuple[jax.Array, Triplets]:
    x, others = pairwise.compared(embeddings, labels, None)
    distances = pairwise.distances(x, x)
    return x, miners.mine(mining, key, distances, others.positive, others.negative, dim=x.shape[-1])
