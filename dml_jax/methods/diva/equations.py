"""The triplets and losses of DiVA.

    L_disc    ranking loss of triplets (a, p, n), y_a = y_p != y_n                           Eq. 2
    L_shared  ranking loss of triplets across classes                                        Eq. 3
    L_intra   ranking loss of triplets within one class                                      Eq. 4
    w_ij      grows with 1/q(d_ij), the rarity of the distance of query q_i and entry m_j
    p_i, n_ij = exp(q_i k_i / tau),  exp(w_ij q_i m_j / tau)
    DaNCE_i   = -log p_i / (p_i + sum_j n_ij)                                                Eq. 6
    c(a, b)   = mean (a * psi_b(b))^2
    L         = L_disc + sum_t alpha_t L_t - sum_(a,b) rho_ab c(R(a), R(b))                  Eq. 7

The pairs (a, b) are the directions P of Eq. 8. psi maximises c, while a and b, whose gradients R
reverses, minimise it. Keys k and queue entries m are outputs of a momentum copy of the network; k
belongs to a second view of the image. With w = 1, DaNCE is the plain NCE of Eq. 5. The paper
defines w and c in the text of section 3.2, without numbers.

`equations="authors"` follows the code that produced the published numbers. "paper" follows the
printed equations: only negatives in the denominator (Eq. 5, 6), w = min(lambda, 1/q), c summed over
dimensions with psi of any length, and plain instead of squared distances in the triplet loss (Eq.
1).
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax.backbones import functional
from dml_jax.backbones.layers import Dense
from dml_jax.losses import mining, pair_losses
from dml_jax.losses.mining import Triplets
from dml_jax.losses.pairwise import inner_products
from dml_jax.methods.contract import PyTree
from dml_jax.methods.diva.options import (
    TASKS,
    Config,
    decorrelation_weights,
    embedding_tasks,
    ranking_tasks,
)
from dml_jax.numerics import at_least_float32, root, unit

LOWER_CUTOFF = mining.LOWER  # smaller distances are raised to this value, in mining and in DaNCE
UPPER_CUTOFF = 1.4  # queue entries beyond this distance have weight 0 in DaNCE


class Psi(nn.Module):
    """psi of one direction: embeddings [B, D] of the source task -> [B, D] of the target task."""

    hidden_dim: int

    @nn.compact
    def __call__(self, embeddings: Array) -> Array:
        hidden = jax.nn.relu(Dense(self.hidden_dim, name="hidden")(embeddings))
        return Dense(embeddings.shape[-1], name="output")(hidden)


def loss_init(key: Array, config: Config, classes: int) -> dict[str, PyTree]:
    """Parameters of the losses: "beta" [C] of each ranking task, "psi" of each direction."""
    params: dict[str, PyTree] = {}
    if config.base == "margin":
        params["beta"] = {task: config.beta * jnp.ones(classes) for task in ranking_tasks(config)}
    psi, x = Psi(config.psi_dim), functional.struct(1, config.embedding_dim)
    directions = list(decorrelation_weights(config))
    keys = jax.random.split(key, len(directions))
    psis = (functional.init(psi, subkey, x)[0] for subkey in keys)
    params["psi"] = dict(zip(directions, psis, strict=True))
    return params


def mine(
    key: Array, embeddings: dict[str, Array], labels: Array, config: Config
) -> dict[str, Triplets]:
    """Samples the triplets of every ranking task in its embedding [B, D] of unit length.

    For `config.shared="random"`, the triplets of the shared task are discriminative triplets for
    permuted labels, whatever `config.learners` is.
    """
    if config.learners == "discriminative":
        keys = jax.random.split(key, len(embeddings))
        return {
            task: mining.distance_weighted(subkey, x, labels)
            for (task, x), subkey in zip(embeddings.items(), keys, strict=True)
        }
    key_discriminative, key_labels, key_shared, key_intra = jax.random.split(key, 4)
    triplets = {}
    if "discriminative" in config.tasks:
        x = embeddings["discriminative"]
        triplets["discriminative"] = mining.distance_weighted(key_discriminative, x, labels)
    if "shared" in config.tasks:
        x = embeddings["shared"]
        match config.shared:
            case "random":
                permuted = jax.random.permutation(key_labels, labels)
                triplets["shared"] = mining.distance_weighted(key_shared, x, permuted)
            case "standard":
                triplets["shared"] = mining.across_classes(key_shared, x, labels)
    if "intra" in config.tasks:
        if config.learners == "permuted":
            labels = jax.random.permutation(key_labels, labels)
        triplets["intra"] = mining.within_class(key_intra, labels)
    return triplets


def dance_weights(similarities: Array, dim: int, config: Config) -> Array:
    """w [B, K], without gradient, from the cosines q_i m_j [B, K] in D = `dim` dimensions.

    A softmax of log 1/q computes the authors' normalisation without underflow. Entries beyond the
    upper cutoff have 1e-45 of the largest weight in the matrix ("original") or in the row
    ("fixed"), so that weights are equal if all entries are beyond the cutoff.
    """
    squares = lax.stop_gradient(2 - 2 * similarities)
    if config.equations == "paper":
        density = mining.log_inverse_density(root(squares), dim)
        return jnp.exp(jnp.minimum(density, math.log(config.dance_lambda)))
    distances = jnp.sqrt(jnp.maximum(squares, LOWER_CUTOFF**2))
    density = mining.log_inverse_density(distances, dim)
    original = config.dance == "original"
    relative = density - jnp.max(density, axis=None if original else 1, keepdims=True)
    relative = jnp.where(distances > UPPER_CUTOFF, -jnp.inf, relative)
    return jax.nn.softmax(jnp.maximum(relative, math.log(1e-45)), axis=0 if original else 1)


def dance(
    queries: Array, keys: Array, queue: Array, temperature: Array | float, config: Config
) -> Array:
    """DaNCE of each sample, float [B] (Eq. 6; plain NCE with dance="off").

    Queries, and keys of the second views, are [B, D] of unit length; earlier keys are [K, D].
    """
    queries = at_least_float32(queries)
    positive = jnp.sum(queries * at_least_float32(keys), axis=1) / temperature
    negative = inner_products(queries, at_least_float32(queue))
    if config.dance != "off":
        negative = negative * dance_weights(negative, queries.shape[1], config)
    log_negatives = jax.nn.logsumexp(negative / temperature, axis=1)
    match config.equations:
        case "authors":
            return jnp.logaddexp(positive, log_negatives) - positive
        case "paper":
            return log_negatives - positive


def reverse_gradient(x: Array) -> Array:
    """R: the identity, whose gradient has the opposite sign."""
    return 2 * lax.stop_gradient(x) - x


def correlation(psi: PyTree, source: Array, target: Array, config: Config) -> Array:
    """c(R(a), R(b)) of embeddings [B, D] of two tasks -> scalar, with the parameters of `Psi`."""
    source, target = (reverse_gradient(at_least_float32(x)) for x in (source, target))
    network = Psi(config.psi_dim)
    match config.equations:
        case "authors":
            mapped, _ = functional.apply(network, psi, {}, unit(source))
            return jnp.mean((unit(target) * unit(mapped)) ** 2)
        case "paper":
            mapped, _ = functional.apply(network, psi, {}, source)
            return jnp.mean(jnp.sum((target * mapped) ** 2, axis=1))


def ranking_loss(
    params: PyTree, task: str, embeddings: Array, labels: Array, triplets: Triplets, config: Config
) -> Array:
    """The loss of a task's triplets -> scalar; `params`, `embeddings`, `labels` as in `loss`."""
    match config.base:
        case "margin":
            inputs = embeddings, labels, triplets, params["beta"][task]
            return pair_losses.margin_loss(*inputs, margin=config.margin)
        case "triplet":
            squared = config.equations == "authors"
            return pair_losses.triplet_loss(
                embeddings, triplets, margin=config.margin, squared=squared
            )


def loss(
    params: PyTree,
    embeddings: dict[str, Array],
    labels: Array,
    triplets: dict[str, Triplets],
    keys: Array | None,
    queue: Array | None,
    config: Config,
) -> tuple[Array, dict[str, Array]]:
    """(L, terms) of Eq. 7: the unweighted loss of each task, and "decorrelation" with -rho.

    `params` are those of `loss_init`; embeddings [B, D] and triplets are by task. Keys [B, D] are
    the key network's selfsimilarity embeddings of the second views; the queue [K, D] contains
    earlier keys. Both are None without DaNCE.
    """
    terms = {
        task: ranking_loss(params, task, embeddings[task], labels, task_triplets, config)
        for task, task_triplets in triplets.items()
    }
    if keys is not None and queue is not None:
        x = embeddings["selfsimilarity"]
        terms["selfsimilarity"] = dance(x, keys, queue, config.temperature, config).mean()
    for direction, rho in decorrelation_weights(config).items():
        source, target = (embeddings[task] for task in direction.split("-"))
        term = -rho * correlation(params["psi"][direction], source, target, config)
        terms["decorrelation"] = terms.get("decorrelation", 0) + term
    alpha = {
        "selfsimilarity": config.alpha_selfsimilarity,
        "shared": config.alpha_shared,
        "intra": config.alpha_intra,
    }
    weighted = (alpha.get(name, 1.0) * term for name, term in terms.items())
    return sum(weighted, start=jnp.zeros(())), terms


def head_correlation(embeddings: dict[str, Array]) -> float:
    """Mean correlation of the similarities of a batch between tasks, from unit embeddings [B, D].

    For each auxiliary task, Pearson's correlation with the discriminative task over all pairs of
    images; 1 if all heads agree.
    """
    rows, columns = np.triu_indices(len(embeddings["discriminative"]), 1)
    similarities = {
        task: (np.asarray(x) @ np.asarray(x).T)[rows, columns] for task, x in embeddings.items()
    }
    first = similarities.pop("discriminative")
    return float(np.mean([np.corrcoef(first, second)[0, 1] for second in similarities.values()]))


def ensemble(embeddings: dict[str, Array], config: Config) -> Array:
    """Test-time embedding [B, tasks * D]: weighted unit embeddings, joined and normalised."""
    weights = dict(zip(TASKS, config.ensemble, strict=True))
    weighted = [weights[task] * unit(embeddings[task]) for task in embedding_tasks(config)]
    return unit(jnp.concatenate(weighted, axis=1))
