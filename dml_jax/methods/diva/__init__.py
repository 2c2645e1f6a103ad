"""DiVA: diverse visual feature aggregation for deep metric learning (Milbich, Roth et al., ECCV 2020).

One backbone f carries four embeddings of unit length, each a linear layer on f trained by a task of its own:

    discriminative   triplets (a, p, n) with y_a = y_p != y_n                       separates classes      Eq. 2
    shared           triplets across classes                                        what classes share     Eq. 3
    intra            triplets within one class                                      how a class varies     Eq. 4
    selfsimilarity   DaNCE: a second view k of the image against a queue of others   single images          Eq. 6

    DaNCE_i = -log exp(q_i k_i / tau) / (exp(q_i k_i / tau) + sum_j exp(w_ij q_i m_j / tau))
    c(a, b) = mean (a * psi_b(b))^2        psi maximises it; the embeddings, through reversed gradients R, minimise it
    L       = L_disc + sum_t alpha_t L_t - sum_(a,b) rho_ab c(R(a), R(b))                                   Eq. 7, 8

w_ij grows with the rarity 1/q(d_ij) of the distance to the queue entry m_j. Keys k and m come from a momentum copy of
the network. At test time the weighted embeddings are concatenated and brought to unit length.

The paper's Figure 4 puts other self-supervised tasks in DaNCE's place (`selfsimilarity`, `dance="off"`), and compares
with an ensemble that is discriminative throughout (`learners`).

`equations="authors"` is what produced the published numbers. "paper" is as printed: negatives only in the denominator,
w = min(lambda, 1/q) (Eq. 5, 6), c summed over dimensions and psi of any length (Eq. 7), plain distances in the triplet
loss (Eq. 1). Expected R@1 with ResNet-50, 4 x 128-d: CUB 69.2, Cars196 87.6, SOP 79.6.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dml_jax.backbones.contract import Backbone
from dml_jax.errors import ConfigError
from dml_jax.losses import mining, ranking
from dml_jax.losses.mining import Triplets
from dml_jax.losses.norms import at_least_float32, root, unit
from dml_jax.methods import heads
from dml_jax.methods import momentum_queue as queues
from dml_jax.methods.contract import Batch, Method, Refresh, keep_state
from dml_jax.methods.diva import self_supervision as alternatives
from dml_jax.methods.diva.options import CLASSIFIERS, TASKS, Config, decorrelated, embedded, ranked, selfsupervised

GROUPS = ("model", "beta", "psi", "temperature")
Miner = Callable[[jax.Array, dict[str, jax.Array], Batch], dict[str, Triplets]]


def criterion_init(key: jax.Array, config: Config, num_classes: int) -> dict[str, Any]:
    """What the losses learn: "beta" [C] of each ranking task, "psi" of each direction, "temperature" []."""
    params: dict[str, Any] = {}
    if config.base == "margin":
        params["beta"] = {task: config.beta * jnp.ones(num_classes) for task in ranked(config)}
    params["psi"] = {}
    for direction in decorrelated(config):
        key, hidden, output = jax.random.split(key, 3)
        params["psi"][direction] = {
            "hidden": heads.linear_init(hidden, config.embedding_dim, config.psi_dim),
            "output": heads.linear_init(output, config.psi_dim, config.embedding_dim),
        }
    if config.learn_temperature and selfsupervised(config) == "contrast":
        params["temperature"] = jnp.asarray(config.temperature, jnp.float32)
    return params


def mine(key: jax.Array, embeddings: dict[str, jax.Array], batch: Batch, config: Config) -> dict[str, Triplets]:
    """The triplets of every ranking task that is on, each drawn in the task's own embedding [B, D].

    The shared task's "random" triplets are those of the discriminative task after a permutation of the labels.
    """
    labels, lower = batch.labels, config.lower_cutoff
    key_discriminative, key_labels, key_shared, key_intra = jax.random.split(key, 4)
    if config.learners == "discriminative":
        keys = jax.random.split(key, len(embeddings))
        draws = zip(embeddings.items(), keys, strict=True)
        return {task: mining.distance_weighted(draw, x, labels, lower=lower) for (task, x), draw in draws}
    triplets = {}
    if "discriminative" in config.tasks:
        triplets["discriminative"] = mining.distance_weighted(
            key_discriminative, embeddings["discriminative"], labels, lower=lower
        )
    if "shared" in config.tasks and config.shared == "random":
        permuted = jax.random.permutation(key_labels, labels)
        triplets["shared"] = mining.distance_weighted(key_shared, embeddings["shared"], permuted, lower=lower)
    elif "shared" in config.tasks:
        triplets["shared"] = mining.across_classes(
            key_shared, embeddings["shared"], labels, weigh_positives=config.shared == "full", lower=lower
        )
    if "intra" in config.tasks:
        triplets["intra"] = mining.within_class(key_intra, labels)
    return triplets


def dance_weights(similarities: jax.Array, dim: int, config: Config) -> jax.Array:
    """w [B, K] of the queue entries, from their cosines q_i m_j [B, K] in `dim` dimensions; no gradient.

    The normalisation is a softmax of log 1/q, cut entries keeping 1e-45 of the largest weight in the matrix
    ("original") or the row ("fixed"): where everything is cut, weights are equal. In logarithms nothing underflows.
    """
    squares = lax.stop_gradient(2 - 2 * similarities)
    if config.equations == "paper":
        density = mining.log_inverse_density(root(squares), dim)
        return jnp.exp(jnp.minimum(density, math.log(config.dance_lambda)))
    distances = jnp.sqrt(jnp.maximum(squares, config.lower_cutoff**2))
    density = mining.log_inverse_density(distances, dim)
    original = config.dance == "original"
    relative = density - jnp.max(density, axis=None if original else 1, keepdims=True)
    relative = jnp.where(distances > config.upper_cutoff, -jnp.inf, relative)
    return jax.nn.softmax(jnp.maximum(relative, math.log(1e-45)), axis=0 if original else 1)


def dance(
    queries: jax.Array, keys: jax.Array, queue: jax.Array, temperature: jax.Array | float, config: Config
) -> jax.Array:
    """Distance-adapted noise contrastive estimation of each sample (Eq. 6; Eq. 5 with dance="off") -> [B].

    Args:
      queries: float [B, D], unit embeddings.
      keys: float [B, D], of the second views, by the key network.
      queue: float [K, D], earlier keys.
      temperature: positive scalar; divides the cosines.
      config: says how negatives are weighed and whether the positive is in the denominator.
    """
    queries = at_least_float32(queries)
    positive = jnp.sum(queries * at_least_float32(keys), axis=1) / temperature
    negative = jnp.matmul(queries, at_least_float32(queue).T, precision=lax.Precision.HIGHEST)
    if config.dance != "off":
        negative = negative * dance_weights(negative, queries.shape[1], config)
    rest = jax.nn.logsumexp(negative / temperature, axis=1)
    return (rest if config.equations == "paper" else jnp.logaddexp(positive, rest)) - positive


def reverse(x: jax.Array) -> jax.Array:
    """R: the identity, with the gradient's sign turned."""
    return 2 * lax.stop_gradient(x) - x


def correlation(psi: dict[str, Any], source: jax.Array, target: jax.Array, config: Config) -> jax.Array:
    """c between embeddings [B, D] of two tasks, psi mapping the source to the target -> scalar."""
    source, target = reverse(at_least_float32(source)), reverse(at_least_float32(target))
    if config.equations == "authors":
        source, target = unit(source), unit(target)
    mapped = heads.linear(psi["output"], jax.nn.relu(heads.linear(psi["hidden"], source)))
    if config.equations == "paper":
        return jnp.mean(jnp.sum((target * mapped) ** 2, axis=1))
    return jnp.mean((target * unit(mapped)) ** 2)


def criterion(
    params: dict[str, Any],
    embeddings: dict[str, jax.Array],
    labels: jax.Array,
    triplets: dict[str, Triplets],
    keys: jax.Array | None,
    queue: jax.Array | None,
    config: Config,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """L of Eq. 7.

    Args:
      params: as `criterion_init` gives them.
      embeddings: [B, D] of each task that is on.
      labels: int [B], in 0..C-1.
      triplets: of each ranking task that is on.
      keys: [B, D], selfsimilarity embeddings of the second views by the key network; None where the task is off.
      queue: [K, D], earlier keys; None where the task is off.
      config: the options.

    Returns:
      (scalar, terms): each task's loss before its weight, and "decorrelation" as it is added.
    """
    terms = {}
    for task, chosen in triplets.items():
        if config.base == "margin":
            beta = params["beta"][task]
            terms[task] = ranking.margin_loss(embeddings[task], labels, chosen, beta, margin=config.margin)
        else:
            squared = config.equations == "authors"
            terms[task] = ranking.triplet_loss(embeddings[task], chosen, margin=config.margin, squared=squared)
    if keys is not None and queue is not None:
        temperature = jnp.clip(params["temperature"], 1e-8, 1e4) if "temperature" in params else config.temperature
        terms["selfsimilarity"] = dance(embeddings["selfsimilarity"], keys, queue, temperature, config).mean()
    for direction, rho in decorrelated(config).items():
        source, target = (embeddings[task] for task in direction.split("-"))
        term = -rho * correlation(params["psi"][direction], source, target, config)
        terms["decorrelation"] = terms.get("decorrelation", 0) + term
    alpha = dict.fromkeys(terms, 1.0) | {t: getattr(config, f"alpha_{t}") for t in terms if t in TASKS[1:]}
    return sum((alpha[t] * term for t, term in terms.items()), start=jnp.zeros(())), terms


def ensemble(embeddings: dict[str, jax.Array], config: Config) -> jax.Array:
    """Test-time embedding: weighted unit embeddings [B, D], concatenated, of unit length -> [B, tasks * D]."""
    parts = [config.ensemble[TASKS.index(task)] * unit(embeddings[task]) for task in embedded(config)]
    return unit(jnp.concatenate(parts, axis=1))


def build(
    config: Config, backbone: Backbone, num_classes: int, *, miner: Miner | None = None, num_images: int = 0
) -> Method:
    """DiVA on a backbone, for `num_classes` training classes.

    The key network always runs in evaluation mode, with the batch statistics the backbone started with: only
    parameters are averaged. The queue is filled by it from the main views, before the first step.

    Args:
      config: the options.
      backbone: gives the feature map f is the spatial mean of.
      num_classes: C.
      miner: (key, embeddings, batch) -> triplets of each ranking task, in place of `mine`.
      num_images: of the training split; matters to instance discrimination and DeepCluster alone.

    Raises:
      ConfigError: too few classes for the triplets asked for, or more clusters than images.
    """
    choose = miner or partial(mine, config=config)
    tasks, selfsupervision = embedded(config), selfsupervised(config)
    contrastive = selfsupervision == "contrast"
    needed = 1 + bool(set(ranked(config)) - {"intra"}) + ("shared" in tasks and config.shared != "random")
    if num_classes < needed:
        raise ConfigError(
            f"method.tasks={config.tasks!r}: their triplets need {needed} training classes, the data has {num_classes}"
        )
    if selfsupervision == "deepcluster" and 0 < num_images < config.clusters:
        raise ConfigError(f"method.clusters={config.clusters}: must not exceed the {num_images} training images")

    def features(params: Any, stats: Any, images: jax.Array, *, train: bool, key: Any = None) -> tuple[jax.Array, Any]:
        maps, stats = backbone.apply(params, stats, backbone.preprocess(images), train=train, key=key)
        return heads.pool(maps, "avg"), stats

    def encode(network: Any, images: jax.Array) -> jax.Array:
        """Keys [B, D]; `network` is the key network's part of the state."""
        pooled, _ = features(network["backbone"], network["stats"], images, train=False)
        return unit(heads.linear(network["heads"]["selfsimilarity"], pooled))

    def init(key: jax.Array, batch: Batch) -> tuple[Any, Any]:
        if selfsupervision == "rotnet":
            alternatives.check_square(*batch.images.shape[2:4])
        key_body, key_heads, key_criterion = jax.random.split(key, 3)
        body, stats = backbone.init(key_body, batch.images.shape[2:4])
        subkeys = jax.random.split(key_heads, len(tasks))
        layers = {
            task: heads.linear_init(sub, backbone.channels, config.embedding_dim)
            for task, sub in zip(tasks, subkeys, strict=True)
        }
        params = {"backbone": body, "heads": layers, **criterion_init(key_criterion, config, num_classes)}
        state = {"backbone": stats}
        if contrastive:
            state |= queues.init(params, stats, config.queue_batches * len(batch.labels), config.embedding_dim)
        beside, model_state = alternatives.init(jax.random.fold_in(key, 3), config, backbone.channels, num_images)
        return params | beside, state | model_state

    def loss(
        params: Any, state: Any, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, tuple[Any, dict[str, jax.Array]]]:
        key_body, key_mine = jax.random.split(key)
        pooled, stats = features(params["backbone"], state["backbone"], batch.images[0], train=True, key=key_body)
        embeddings = {task: unit(heads.linear(params["heads"][task], pooled)) for task in tasks}
        triplets = choose(key_mine, lax.stop_gradient(embeddings), batch)
        keys = encode(state["key"], batch.images[1]) if contrastive else None
        value, terms = criterion(params, embeddings, batch.labels, triplets, keys, state.get("queue"), config)
        if keys is not None:
            terms["keys"] = keys  # for `after`
        elif selfsupervision:
            key_look, key_task = jax.random.split(jax.random.fold_in(key, 2))

            def look(images: jax.Array) -> jax.Array:
                return features(params["backbone"], state["backbone"], images, train=True, key=key_look)[0]

            terms["selfsimilarity"], state = alternatives.loss(params, state, batch, pooled, look, key_task, config)
            value = value + config.alpha_selfsimilarity * terms["selfsimilarity"]
        return value, ({**state, "backbone": stats}, terms)

    def embed(params: Any, state: Any, images: jax.Array) -> jax.Array:
        pooled, _ = features(params["backbone"], state["backbone"], images, train=False)
        return ensemble({task: heads.linear(params["heads"][task], pooled) for task in tasks}, config)

    def after(params: Any, state: Any, terms: dict[str, jax.Array]) -> Any:
        return queues.advance(state, params, terms["keys"], config.momentum)

    def described(params: Any, state: Any, images: jax.Array) -> jax.Array:
        return features(params["backbone"], state["backbone"], images, train=False)[0]

    classifies = selfsupervision in CLASSIFIERS
    groups = GROUPS + (("classifier",) if classifies else ())
    tables = selfsupervision in ("instance", "deepcluster")
    return Method(
        init,
        loss,
        embed,
        groups=groups,
        group=lambda path: path[0] if path[0] in groups else "model",
        after=after if contrastive else keep_state,
        fill=(lambda params, state, batches: queues.fill(state, batches, encode)) if contrastive else None,
        views=2 if selfsupervision in ("contrast", "spread") else 1,
        refresh=Refresh(config.cluster_epochs, described, partial(alternatives.recluster, config=config))
        if selfsupervision == "deepcluster"
        else None,
        sized=(lambda images: build(config, backbone, num_classes, miner=miner, num_images=images)) if tables else None,
    )
