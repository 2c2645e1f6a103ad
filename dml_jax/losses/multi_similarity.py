"""Multi-similarity loss with general pair weighting (Wang, Han, Huang, Dong, Scott, CVPR 2019).

Similarities S are cosines. Mining keeps a positive pair that is less similar than the anchor's hardest negative, and
a negative pair that is more similar than its hardest positive, by a margin epsilon (equations 11 and 12):

    P_i = { p : S_ip - epsilon < max_{n negative} S_in },   N_i = { n : S_in + epsilon > min_{p positive} S_ip }

and the loss of anchor i is (equation 16)

    1/alpha log(1 + sum_{p in P_i} exp(-alpha (S_ip - base))) + 1/beta log(1 + sum_{n in N_i} exp(beta (S_in - base))).

The paper states alpha=2, beta=50, base=1, epsilon=0.1; the authors' repository (MalongTech/research-ms-loss) has
beta=40 and base=0.5. It also drops positive pairs with S >= 1 - 1e-5, which are copies of one image where a small class
was filled up with replacement; other implementations keep those.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from dml_jax.config_schema import require
from dml_jax.losses.norms import at_least_float32

COPY = 1e-5  # 1 - S of two embeddings taken for one


@dataclass(frozen=True)
class Options:
    """Options of the loss; the defaults are those of the authors' repository."""

    alpha: float = 2.0  # steepness for positive pairs
    beta: float = 40.0  # steepness for negative pairs; the paper: 50
    base: float = 0.5  # similarity where a pair begins to weigh, lambda; the paper: 1
    epsilon: float = 0.1  # margin of the mining
    mining: bool = True  # without it every pair counts
    copies: Literal["drop", "keep"] = "drop"  # positive pairs of similarity 1
    divisor: Literal["batch", "active"] = "batch"  # mean over all anchors, or over those with a pair left

    def __post_init__(self) -> None:
        require(self.alpha > 0, "method.multi_similarity.alpha", self.alpha, "must be positive")
        require(self.beta > 0, "method.multi_similarity.beta", self.beta, "must be positive")
        require(self.epsilon >= 0, "method.multi_similarity.epsilon", self.epsilon, "must not be negative")


def mine(
    similarity: jax.Array, positive: jax.Array, negative: jax.Array, *, epsilon: float
) -> tuple[jax.Array, jax.Array]:
    """The pairs the loss looks at.

    Args:
      similarity: float [N, M], anchors against a batch or a memory.
      positive, negative: bool [N, M], the pairs to choose from.
      epsilon: margin, in units of the similarity.

    Returns:
      Positive and negative pairs, bool [N, M] each; an anchor that lacks one kind is left with none of the other.
    """
    similarity = jax.lax.stop_gradient(similarity)
    hardest_negative = jnp.max(similarity, axis=1, keepdims=True, initial=-jnp.inf, where=negative)
    hardest_positive = jnp.min(similarity, axis=1, keepdims=True, initial=jnp.inf, where=positive)
    return (
        positive & (similarity - epsilon < hardest_negative),
        negative & (similarity + epsilon > hardest_positive),
    )


def select(
    similarity: jax.Array, positive: jax.Array, negative: jax.Array, options: Options
) -> tuple[jax.Array, jax.Array]:
    """Positive and negative pairs, bool [N, M] each, that the options leave of the given ones."""
    if options.copies == "drop":
        positive = positive & (similarity < 1 - COPY)
    return mine(similarity, positive, negative, epsilon=options.epsilon) if options.mining else (positive, negative)


def _log1p_sum_exp(exponents: jax.Array, where: jax.Array) -> jax.Array:
    """log(1 + sum of exp over the chosen entries of each row), without overflow."""
    exponents = jnp.where(where, exponents, -jnp.inf)
    shift = jax.lax.stop_gradient(jnp.max(exponents, axis=1, initial=0.0))
    return shift + jnp.log(jnp.exp(-shift) + jnp.sum(jnp.exp(exponents - shift[:, None]), axis=1))


def anchor_losses(
    similarity: jax.Array, positive: jax.Array, negative: jax.Array, *, alpha: float, beta: float, base: float
) -> jax.Array:
    """Loss of each anchor, float [N]; 0 where it has no pairs.

    Args:
      similarity: float [N, M].
      positive, negative: bool [N, M], the pairs that count.
      alpha, beta, base: see the module.
    """
    s = at_least_float32(similarity) - base
    return _log1p_sum_exp(-alpha * s, positive) / alpha + _log1p_sum_exp(beta * s, negative) / beta


def multi_similarity(
    similarity: jax.Array, positive: jax.Array, negative: jax.Array, options: Options
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss of a batch.

    Args:
      similarity: float [N, M], cosines of the anchors with a batch or a memory.
      positive, negative: bool [N, M]; an anchor is not its own positive.
      options: of the loss.

    Returns:
      (scalar, {"positives", "negatives"}): 0 where no anchor has a pair; the terms count the pairs that counted.
    """
    positive, negative = select(similarity, positive, negative, options)
    losses = anchor_losses(similarity, positive, negative, alpha=options.alpha, beta=options.beta, base=options.base)
    active = jnp.any(positive | negative, axis=1)
    anchors = len(losses) if options.divisor == "batch" else jnp.maximum(active.sum(), 1)
    return losses.sum() / anchors, {"positives": positive.sum(), "negatives": negative.sum()}
