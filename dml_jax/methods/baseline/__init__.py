"""One loss of the literature on any backbone: what the papers compare themselves with, trained by the same recipe.

A global pooling and a linear layer make the embedding, as in Musgrave et al., "A metric learning reality check" (ECCV
2020), and Roth et al., "Revisiting training strategies" (ICML 2020). `loss` picks one of

    classifiers  cross_entropy, normalized_softmax, arcface, cosface           dml_jax/losses/classification.py
    proxies      proxy_nca, proxy_nca_pp, proxy_anchor, soft_triple            dml_jax/losses/proxies.py
    pairs        contrastive, triplet, margin, n_pair, lifted_structure        dml_jax/losses/ranking.py
                 multi_similarity                                              dml_jax/losses/multi_similarity.py

and the section of its name holds its options. Pair losses may also look at a memory of past batches (Wang et al., CVPR
2020). R@1 on CUB, Cars196, SOP with ResNet-50: normalised softmax, 512-d, 61.3, 84.2, 78.2 (as quoted by Seidenschwarz
et al., ICML 2021); margin, 512-d, 64.4, 82.2, 78.3 (Milbich et al., ECCV 2020); multi-similarity, 128-d, 62.64, 79.92,
76.49 (Kan et al., NeurIPS 2022); Proxy-Anchor, 512-d, 69.9, 87.7 on the first two (its authors' repository).
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from dml_jax.backbones.contract import Backbone
from dml_jax.config_schema import require
from dml_jax.errors import ConfigError
from dml_jax.losses import classification, cross_batch_memory, mining, pairs, proxies, ranking
from dml_jax.losses import multi_similarity as ms
from dml_jax.losses.norms import at_least_float32, unit
from dml_jax.methods import heads
from dml_jax.methods.baseline import options
from dml_jax.methods.contract import Batch, Method, Teaching

# "loss" holds classifier, proxies or boundaries; for most pair losses it is empty.
GROUPS = ("backbone", "embedding", "loss")


@dataclass(frozen=True)
class Config:
    """Options of a baseline; only the section of the chosen loss may differ from its defaults."""

    name: str = "baseline"
    loss: options.Loss = "normalized_softmax"
    embedding_dim: int = 512
    pooling: heads.Pooling = "avg"
    layer_norm: bool = False  # of the pooled features, without scale and shift, as Zhai & Wu and ProxyNCA++ have it
    memory: int = 0  # embeddings of past batches that pair losses look at as well
    memory_weight: float = 1.0  # of the loss against the memory
    memory_after: int = 0  # steps before the memory counts; 1,000 in its paper
    cross_entropy: options.CrossEntropy = field(default_factory=options.CrossEntropy)
    normalized_softmax: options.NormalizedSoftmax = field(default_factory=options.NormalizedSoftmax)
    arcface: options.ArcFace = field(default_factory=options.ArcFace)
    cosface: options.CosFace = field(default_factory=options.CosFace)
    proxy_nca: options.ProxyNCA = field(default_factory=options.ProxyNCA)
    proxy_nca_pp: options.ProxyNCAPP = field(default_factory=options.ProxyNCAPP)
    proxy_anchor: options.ProxyAnchor = field(default_factory=options.ProxyAnchor)
    soft_triple: options.SoftTriple = field(default_factory=options.SoftTriple)
    contrastive: options.Contrastive = field(default_factory=options.Contrastive)
    triplet: options.Triplet = field(default_factory=options.Triplet)
    margin: options.Margin = field(default_factory=options.Margin)
    n_pair: options.NPair = field(default_factory=options.NPair)
    lifted_structure: options.LiftedStructure = field(default_factory=options.LiftedStructure)
    multi_similarity: ms.Options = field(default_factory=ms.Options)

    def __post_init__(self) -> None:
        require(self.embedding_dim > 0, "method.embedding_dim", self.embedding_dim, "must be positive")
        require(self.memory >= 0, "method.memory", self.memory, "must not be negative")
        require(
            self.memory == 0 or self.loss in options.PAIR_LOSSES,
            "method.memory",
            self.memory,
            f"method.loss={self.loss} has no pairs; a memory goes with {', '.join(options.PAIR_LOSSES)}",
        )
        require(self.memory_weight >= 0, "method.memory_weight", self.memory_weight, "must not be negative")
        require(self.memory_after >= 0, "method.memory_after", self.memory_after, "must not be negative")
        for section in dataclasses.fields(self):
            chosen = getattr(self, section.name)
            if not dataclasses.is_dataclass(chosen):
                continue
            for option in dataclasses.fields(chosen):
                key, value = f"method.{section.name}.{option.name}", getattr(chosen, option.name)
                require(
                    section.name == self.loss or value == option.default,
                    key,
                    value,
                    f"is an option of another loss; method.loss is {self.loss}",
                )
                if option.name in ("temperature", "scale", "gamma", "alpha", "centers"):
                    require(value > 0, key, value, "must be positive")
                elif isinstance(value, float) and option.name != "base":
                    require(value >= 0, key, value, "must not be negative")


def loss_init(key: jax.Array, classes: int, config: Config) -> dict[str, jax.Array]:
    """Parameters of the loss itself: {} where it has none.

    Proxies are N(0, 2 / C) as in Proxy-Anchor's code; only their direction counts, their length sets how fast it turns.
    """
    dim = config.embedding_dim
    if config.loss == "cross_entropy":
        return heads.linear_init(key, dim, classes)
    if config.loss == "margin":
        return {"beta": jnp.full(classes, config.margin.beta)}
    if config.loss in options.PAIR_LOSSES:
        return {}
    shape = (classes, config.soft_triple.centers, dim) if config.loss == "soft_triple" else (classes, dim)
    return {"proxies": jax.random.normal(key, shape) * (2 / classes) ** 0.5}


def class_loss(params: Any, embeddings: jax.Array, labels: jax.Array, config: Config) -> jax.Array:
    """Value of a loss against classes or proxies.

    Args:
      params: of the loss.
      embeddings: float [B, D].
      labels: int [B], in 0..C-1.
      config: the options.

    Returns:
      float [B], one for each sample, or a scalar where the loss has no such form.
    """
    chosen = getattr(config, config.loss)
    given = (params.get("proxies"), embeddings, labels)
    match config.loss:
        case "cross_entropy":
            return classification.cross_entropy(heads.linear(params, embeddings), labels, smoothing=chosen.smoothing)
        case "normalized_softmax":
            return classification.normalized_softmax(*given, temperature=chosen.temperature, smoothing=chosen.smoothing)
        case "arcface":
            return classification.arcface(*given, margin=chosen.margin, scale=chosen.scale)
        case "cosface":
            return classification.cosface(*given, margin=chosen.margin, scale=chosen.scale)
        case "proxy_nca":
            return proxies.proxy_nca(*given, scale=chosen.scale)
        case "proxy_nca_pp":
            return proxies.proxy_nca_pp(*given, temperature=chosen.temperature)
        case "proxy_anchor":
            return proxies.proxy_anchor(*given, margin=chosen.margin, alpha=chosen.alpha)
        case _:
            each = proxies.soft_triple(*given, scale=chosen.scale, gamma=chosen.gamma, margin=chosen.margin)
            return each + chosen.spread * proxies.center_spread(params["proxies"])


def logits(params: Any, embeddings: jax.Array, config: Config) -> jax.Array | None:
    """Scores [B, C] of the classes, without a margin, for embeddings [B, D]; None where the loss is no classifier."""
    chosen = getattr(config, config.loss)
    match config.loss:
        case "cross_entropy":
            return heads.linear(params, embeddings)
        case "normalized_softmax":
            return pairs.cosine(embeddings, params["proxies"]) / chosen.temperature
        case "arcface" | "cosface":
            return chosen.scale * pairs.cosine(embeddings, params["proxies"])
        case _:
            return None


def _mean(values: jax.Array, where: jax.Array) -> jax.Array:
    """Mean of the chosen values; 0 where there are none."""
    return jnp.sum(values, where=where) / jnp.maximum(where.sum(), 1)


def _triplets(
    key: jax.Array,
    x: jax.Array,
    distances: jax.Array,
    positive: jax.Array,
    negative: jax.Array,
    kind: options.Mining,
) -> mining.Triplets:
    match kind:
        case "random":
            return mining.random_triplets(key, positive, negative)
        case "semi_hard":
            return mining.semi_hard_triplets(key, distances, positive, negative)
        case "hard":
            return mining.hard_triplets(distances, positive, negative)
        case _:
            return mining.weighted_triplets(key, distances, positive, negative, dim=x.shape[-1])


def _n_pair(x: jax.Array, labels: jax.Array, positive: jax.Array, negative: jax.Array, key: jax.Array) -> jax.Array:
    """N-pair loss: within a batch, one pair a class against the other classes' positives, as published."""
    count = len(positive)
    if count == len(x):
        partners, valid = mining.class_pairs(key, labels)
        others = valid[None, :] & negative
        return _mean(ranking.n_pair(pairs.products(x, x[partners]), jnp.arange(count), others), valid)
    partners, valid = mining.draw_uniform(key, positive)
    return _mean(ranking.n_pair(pairs.products(x[:count], x), partners, negative), valid)


def pair_loss(
    params: Any,
    points: jax.Array,
    labels: jax.Array,
    positive: jax.Array,
    negative: jax.Array,
    key: jax.Array,
    config: Config,
) -> jax.Array:
    """Value of a pair loss for the anchors among some points.

    Args:
      params: of the loss.
      points: float [M, D]; the first N are the anchors.
      labels: int [M], in 0..C-1 where a mask points at it.
      positive: bool [N, M], the pairs to choose from.
      negative: bool [N, M].
      key: of the mining.
      config: the options.

    Returns:
      scalar; 0 where nothing can be compared.
    """
    chosen = getattr(config, config.loss)
    count = len(positive)
    if config.loss == "n_pair":
        return _n_pair(at_least_float32(points), labels, positive, negative, key)
    x = at_least_float32(points) if config.loss == "lifted_structure" and not chosen.normalize else unit(points)
    if config.loss == "multi_similarity":
        return ms.multi_similarity(pairs.cosine(x[:count], x), positive, negative, chosen)[0]
    distances = pairs.distances(x[:count], x)
    match config.loss:
        case "contrastive":
            margins = {"positive_margin": chosen.positive_margin, "negative_margin": chosen.negative_margin}
            pull, push = ranking.contrastive_hinges(distances, positive, negative, **margins, squared=chosen.squared)
            if chosen.average == "active":
                positive, negative = pull > 0, push > 0
            return _mean(pull, positive) + _mean(push, negative)
        case "lifted_structure":
            return _mean(ranking.lifted_structure(distances, positive, negative, margin=chosen.margin), positive)
        case "triplet":
            triplets = _triplets(key, x, distances, positive, negative, chosen.mining)
            return ranking.triplet_loss(x, triplets, margin=chosen.margin, squared=chosen.squared)
        case _:
            triplets = _triplets(key, x, distances, positive, negative, chosen.mining)
            return ranking.margin_loss(x, labels, triplets, params["beta"], margin=chosen.margin, nu=chosen.nu)


def build(config: Config, backbone: Backbone, num_classes: int) -> Method:
    """The baseline on a backbone, for `num_classes` training classes.

    Raises:
      ConfigError: fewer than two training classes.
    """
    if num_classes < 2:
        raise ConfigError(f"method.loss={config.loss!r}: needs two training classes, the data has {num_classes}")

    def init(key: jax.Array, batch: Batch) -> tuple[Any, Any]:
        keys = jax.random.split(key, 3)
        body, stats = backbone.init(keys[0], batch.images.shape[2:4])
        params = {
            "backbone": body,
            "embedding": heads.linear_init(keys[1], backbone.channels, config.embedding_dim),
            "loss": loss_init(keys[2], num_classes, config),
        }
        state = {"backbone": stats}
        if config.memory:
            state["memory"] = cross_batch_memory.empty(config.memory, config.embedding_dim)
            state["seen"] = jnp.zeros((), jnp.int32)
        return params, state

    def head(params: Any, features: jax.Array) -> jax.Array:
        x = heads.pool(features, config.pooling)
        return heads.linear(params["embedding"], heads.layer_norm(x) if config.layer_norm else x)

    forward = heads.forward(backbone, head)

    def memory_loss(params: Any, state: Any, x: jax.Array, labels: jax.Array, key: jax.Array) -> jax.Array:
        past = state["memory"]
        absent = jnp.zeros((len(x), len(x)), bool)
        positive, negative = (
            jnp.concatenate([absent, mask], axis=1) for mask in cross_batch_memory.masks(labels, past["labels"])
        )
        points = jnp.concatenate([x, past["embeddings"].astype(x.dtype)])
        value = pair_loss(
            params["loss"], points, jnp.concatenate([labels, past["labels"]]), positive, negative, key, config
        )
        return jnp.where(state["seen"] >= config.memory_after, value, 0)

    def loss(params: Any, state: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, tuple[Any, dict[str, Any]]]:
        key_body, key_batch, key_memory = jax.random.split(key, 3)
        x, stats = forward(params, state, batch.images[0], train=True, key=key_body)
        labels, state = batch.labels, {**state, "backbone": stats}
        if config.loss not in options.PAIR_LOSSES:
            return class_loss(params["loss"], x, labels, config).mean(), (state, {})
        total = pair_loss(params["loss"], x, labels, *pairs.masks(labels), key_batch, config)
        terms = {}
        if config.loss == "n_pair":
            total = total + config.n_pair.l2 * jnp.mean(jnp.sum(at_least_float32(x) ** 2, axis=1))
        if config.memory:
            terms["memory"] = memory_loss(params, state, x, labels, key_memory)
            total = total + config.memory_weight * terms["memory"]
            terms |= {"embeddings": jax.lax.stop_gradient(x), "labels": labels}  # for `after`
        return total, (state, terms)

    def after(params: Any, state: Any, terms: Any) -> Any:
        if not config.memory:
            return state
        rows = {name: terms[name] for name in ("embeddings", "labels")}
        return {**state, "memory": cross_batch_memory.enqueue(state["memory"], rows), "seen": state["seen"] + 1}

    def embed(params: Any, state: Any, images: jax.Array) -> jax.Array:
        return unit(forward(params, state, images, train=False)[0])

    def teach(params: Any, state: Any, images: jax.Array) -> Teaching:
        x, _ = forward(params, state, images, train=False)
        return Teaching(unit(x), logits(params["loss"], x, config))

    return Method(init, loss, embed, GROUPS, lambda path: path[0], after, teach=teach)
