"""Losses on the similarities of pairs, by default cosines.

Multi-similarity loss with general pair weighting (Wang, Han, Huang, Dong, Scott, CVPR 2019). Mining
keeps a positive pair that is less similar than the anchor's hardest negative, and a negative pair
that is more similar than its hardest positive, by a margin epsilon (Eq. 11 and 12):

    P_i = { p : S_ip - epsilon < max_{n negative} S_in }                            (11)
    N_i = { n : S_in + epsilon > min_{p positive} S_ip }                            (12)

and the loss of anchor i is

    1/alpha log(1 + sum_{p in P_i} exp(-alpha (S_ip - base)))
      + 1/beta log(1 + sum_{n in N_i} exp(beta (S_in - base))).                     (16)

The paper states alpha=2, beta=50, base=1, epsilon=0.1. The authors' code (research-ms-loss) has
beta=40 and base=0.5, and drops positive pairs with S >= 1 - 1e-5: repetitions of an image that fill
up a small class. Other implementations keep these pairs.

Circle loss for pair-wise labels (Sun et al., CVPR 2020, Eq. 6): with similarities s_p to the
positives and s_n to the negatives of an anchor,

    log(1 + sum_n exp(gamma alpha_n (s_n - m)) sum_p exp(-gamma alpha_p (s_p - (1 - m)))),
    alpha_n = [s_n + m]+,   alpha_p = [1 + m - s_p]+,

where the weights alpha are constants in the gradient.

Supervised contrastive loss (Khosla et al., NeurIPS 2020, Eq. 2, "out") of anchor i, temperature t:

    -1/|P_i| sum_{p positive} log(exp(S_ip / t) / sum_{a != i} exp(S_ia / t)).

Weights of pairs: in the multi-similarity and circle losses, and for negatives of NT-Xent, a pair
with weight 2 counts as two pairs. In NT-Xent and the supervised contrastive loss, the mean over the
positives is weighted. With a `distance`, similarities are negative distances.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from dml_jax.config.fields import NonNegative, Positive
from dml_jax.losses import pairwise
from dml_jax.losses.pairwise import (
    Distance,
    Divisor,
    Mean,
    Reduce,
    Relation,
    WeightedCandidates,
    find_pairs,
    reduce_terms,
)
from dml_jax.losses.signature import loss, only_with
from dml_jax.numerics import at_least_float32, log1p_sum_exp, log_sum_exp

COPY = 1e-5  # 1 - S below which two embeddings count as copies of one image


@loss
@only_with("mining", True, "epsilon")
def multi_similarity(
    embeddings: Array,
    labels: Array | None = None,
    *,
    alpha: Positive = 2.0,
    beta: Positive = 40.0,
    base: float = 0.5,
    epsilon: NonNegative = 0.1,
    mining: bool = True,
    copies: Literal["drop", "keep"] = "drop",
    divisor: Divisor = "all",
    candidates: WeightedCandidates = None,
    candidate_labels: Array | None = None,
    positive: Array | None = None,
    negative: Array | None = None,
    relation: Relation | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
    reduce: Reduce = "mean",
) -> Array:
    """Multi-similarity loss (Wang et al., CVPR 2019, Eq. 16) -> scalar; 0 if no anchor has a pair.

    Args:
      alpha: Steepness for positive pairs; greater than 0.
      beta: Steepness for negative pairs; 50 in the paper. Greater than 0.
      base: lambda, the similarity from which pairs are weighted; 1 in the paper.
      epsilon: Margin of the mining, in cosine; at least 0.
      mining: If false, every pair counts.
      copies: Whether to "drop" or to "keep" positive pairs of similarity 1.
      divisor: Averages over "all" anchors, or over the "active" ones, which have a pair left.
    """
    pairs = find_pairs(embeddings, labels, candidates, weights, distance)
    each = multi_similarity_terms(
        pairs.normalized().similarities(), pairs.positive, pairs.negative, alpha=alpha, beta=beta,
        base=base, epsilon=epsilon, mining=mining, copies=copies, divisor=divisor,
    )[0]  # fmt: skip
    return reduce_terms(each, weights, reduce=reduce)


def multi_similarity_terms(
    similarity: Array,
    positive: Array,
    negative: Array,
    *,
    alpha: float,
    beta: float,
    base: float,
    epsilon: float,
    mining: bool,
    copies: Literal["drop", "keep"],
    divisor: Divisor,
) -> tuple[Mean, Array, Array]:
    """(losses [N] of the anchors, P, N) from cosines and masks or weights of pairs, [N, M].

    P and N, bool [N, M], are the pairs that count. With mining, an anchor without positives or
    without negatives has no pairs. The loss of an anchor without pairs is 0.
    """
    p, n = positive > 0, negative > 0
    if copies == "drop":
        p = p & (similarity < 1 - COPY)
    if mining:  # Eq. 11 and 12
        s = jax.lax.stop_gradient(similarity)
        hardest_negative = jnp.max(s, axis=1, keepdims=True, initial=-jnp.inf, where=n)
        hardest_positive = jnp.min(s, axis=1, keepdims=True, initial=jnp.inf, where=p)
        # Negated, so that pairs with similarity NaN stay and make the loss NaN.
        p, n = p & ~(s - epsilon >= hardest_negative), n & ~(s + epsilon <= hardest_positive)
    s = at_least_float32(similarity) - base  # Eq. 16
    pull = log1p_sum_exp(-alpha * s + pairwise.log_weights(positive), p, axis=1)
    push = log1p_sum_exp(beta * s + pairwise.log_weights(negative), n, axis=1)
    counted = jnp.any(p | n, axis=1) if divisor == "active" else None
    return Mean(pull / alpha + push / beta, counted), p, n


@loss
def circle(
    embeddings: Array,
    labels: Array | None = None,
    *,
    margin: NonNegative = 0.4,
    gamma: Positive = 80.0,
    divisor: Divisor = "all",
    candidates: WeightedCandidates = None,
    candidate_labels: Array | None = None,
    positive: Array | None = None,
    negative: Array | None = None,
    relation: Relation | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
    reduce: Reduce = "mean",
) -> Array:
    """Circle loss (Sun et al., CVPR 2020, Eq. 6) -> scalar.

    The mean over the anchors with positives and negatives; 0 without any. The defaults are the
    paper's values for fine-grained retrieval (CUB, Cars196, SOP). The weights alpha are constants
    in all derivatives, so that the gradient is not the derivative of the value, and Hessian
    products are not the derivative of the gradient.

    Args:
      margin: m; 0.25 for face recognition. At least 0.
      gamma: Scale; 256 for face recognition. Greater than 0.
    """
    pairs = find_pairs(embeddings, labels, candidates, weights, distance)
    s, near, far = pairs.normalized().similarities(), pairs.positive > 0, pairs.negative > 0
    alpha_n, alpha_p = jax.lax.stop_gradient((jax.nn.relu(s + margin), jax.nn.relu(1 + margin - s)))
    push = gamma * alpha_n * (s - margin) + pairwise.log_weights(pairs.negative)
    pull = -gamma * alpha_p * (s - (1 - margin)) + pairwise.log_weights(pairs.positive)
    both = log_sum_exp(push, far, axis=1) + log_sum_exp(pull, near, axis=1)
    each = Mean(jax.nn.softplus(both), near.any(axis=1) & far.any(axis=1))
    return reduce_terms(each, weights, divisor, reduce)


@loss
def sup_con(
    embeddings: Array,
    labels: Array | None = None,
    *,
    temperature: Positive = 0.1,
    divisor: Divisor = "all",
    candidates: WeightedCandidates = None,
    candidate_labels: Array | None = None,
    positive: Array | None = None,
    negative: Array | None = None,
    relation: Relation | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
    reduce: Reduce = "mean",
) -> Array:
    """Supervised contrastive loss (Khosla et al., NeurIPS 2020, Eq. 2) -> scalar.

    The mean over the anchors with positives; 0 without any.

    Args:
      temperature: Divides the similarities; greater than 0.
    """
    pairs = find_pairs(embeddings, labels, candidates, weights, distance)
    logits = pairs.normalized().similarities() / temperature
    positive = pairs.positive
    normalizer = log_sum_exp(logits, (positive > 0) | (pairs.negative > 0), axis=1)
    count = positive.sum(axis=1)
    pull = jnp.sum(positive * logits, axis=1, where=positive > 0) / jnp.where(count > 0, count, 1)
    return reduce_terms(Mean(normalizer - pull, count > 0), weights, divisor, reduce)


@loss
def nt_xent(
    embeddings: Array,
    labels: Array | None = None,
    *,
    temperature: Positive = 0.07,
    divisor: Divisor = "all",
    candidates: WeightedCandidates = None,
    candidate_labels: Array | None = None,
    positive: Array | None = None,
    negative: Array | None = None,
    relation: Relation | None = None,
    weights: Array | None = None,
    distance: Distance | None = None,
    reduce: Reduce = "mean",
) -> Array:
    """NT-Xent (Sohn, 2016; Chen et al., ICML 2020), the mean over the positive pairs -> scalar.

    -log(exp(s_ap / t) / (exp(s_ap / t) + sum over negatives n of exp(s_an / t))); the denominator
    lacks the anchor's other positives. The weight of an anchor applies to each of its pairs.

    Args:
      temperature: Divides the similarities; greater than 0.
    """
    pairs = find_pairs(embeddings, labels, candidates, weights, distance)
    logits = pairs.normalized().similarities() / temperature
    shifted = logits + pairwise.log_weights(pairs.negative)
    push = log_sum_exp(shifted, pairs.negative > 0, axis=1)
    each = Mean(jax.nn.softplus(push[:, None] - logits), pairs.positive > 0, pairs.positive)
    return reduce_terms(each, weights, divisor, reduce)
