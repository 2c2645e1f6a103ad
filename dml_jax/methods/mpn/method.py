"""MPN: learning intra-batch connections for deep metric learning.

Seidenschwarz, Elezi, Leal-Taixé, ICML 2021.

The images of a batch are the nodes of a complete graph with self-loops. L layers of message passing
with M attention heads refine their embeddings f. The sum of two label-smoothed cross-entropies LS
with temperature T is minimised:

    h_i^0   = f_i
    a_ij^m  = softmax_j (W_q^m h_i)^T (W_k^m h_j) / sqrt(d)     eq. 3, messages from j to i
    m_i     = cat_m sum_j a_ij^m W^m h_j                        eq. 4
    g_i     = LayerNorm(m_i + h_i)                              eq. 5
    h_i'    = LayerNorm(FF(g_i) + g_i)                          eq. 6
    L       = LS(U f / T) + LS(V h^L / T)                       auxiliary loss and MPN loss

The code behind the published results (`equations="authors"`) differs from these equations: it adds
1 to the denominator of the softmax, divides scores by sqrt(d / M), has biases in projections, and
adds three layers: linear after the concatenated heads, linear on f / |f| before the first message
passing layer, and batch normalisation without a bias before V.

By default, the network is used in training only. With `evaluation.refine`, it also refines the test
embeddings, in batches of reciprocal neighbours or the other batches of the paper's appendix C. It
then starts from the stored embeddings of unit length, whatever the equations are. Expected
R@1 with ResNet-50, 512-d: CUB 70.3, Cars196 88.1, SOP 81.4, In-Shop 92.8 (the authors); 70.1, 87.3,
81.0, 92.5 (reproduction in the ML Reproducibility Challenge).
"""

import functools
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax.backbones import functional
from dml_jax.backbones.batch_norm import BatchNorm
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import (
    Dense,
    LayerNorm,
    Pooling,
    attend,
    attention_weights,
    normal_init,
)
from dml_jax.config.fields import (
    AtLeastTwo,
    Effect,
    Fraction,
    Mark,
    Positive,
    PositiveInt,
    Rules,
    require,
    section,
)
from dml_jax.config.resolve import Config as Run
from dml_jax.errors import ConfigError
from dml_jax.losses.classification import cross_entropy
from dml_jax.methods import heads
from dml_jax.methods.contract import (
    Aux,
    Batch,
    Embeddings,
    Encode,
    Hooks,
    Method,
    PyTree,
    Teaching,
    TrainingSet,
)
from dml_jax.methods.mpn import refinement
from dml_jax.numerics import at_least_float32, unit

Equations = Literal["authors", "transformer", "paper"]
GROUPS = ("backbone", "embedding", "auxiliary", "mpn")  # parameter groups


@section
class Config:
    """Options of MPN, with the defaults of the authors' CUB run.

    Attributes:
      name: Module of dml_jax/methods, or an import path.
      equations: "authors": as in their code; "transformer": the same with a plain softmax; "paper":
        as printed.
      layers: Number L of message passing layers.
      heads: Number M of attention heads.
      concatenate: Classifies the concatenated outputs of all layers instead of the last output.
      embedding_dim: Length d of the embeddings.
      messages: Weights of the messages to a node: "attention" (eq. 3), or a placebo with the same
        number of parameters: equal weights ("uniform"), the weights of a different node
        ("permuted"), or only its own message ("none").
      losses: Losses to train; "auxiliary" does not need the message passing network.
      temperature: T, which divides the logits of both losses.
      smoothing: Label smoothing epsilon.
      dropout: Dropout rate of attention weights, of messages, and twice in FF.
      pooling: Pooling of the feature map.
      k: Number of reciprocal neighbours for the batches at test time.
      k_r: Images per batch at test time, including the query.
      clusters: Number of clusters for "kmeans", "ward", "spectral" and "birch" at test time.
      eps: Largest distance of neighbours for "dbscan" and "optics", between unit embeddings.
      min_samples: Neighbours that make a point a core point for "dbscan" and "optics".
    """

    name: str = "mpn"
    equations: Equations = "authors"
    layers: PositiveInt = 1
    heads: PositiveInt = 2
    concatenate: bool = False
    embedding_dim: PositiveInt = 512
    messages: Literal["attention", "uniform", "permuted", "none"] = "attention"
    losses: Literal["both", "auxiliary", "mpn"] = "both"
    temperature: Positive = 0.2
    smoothing: Fraction = 0.1
    dropout: Fraction = 0.1
    pooling: Pooling = "max"
    k: Annotated[AtLeastTwo, Effect.NONE] = 30
    k_r: Annotated[AtLeastTwo, Effect.NONE] = 7
    clusters: Annotated[AtLeastTwo, Effect.NONE, Mark.SAME_EXPERIMENT] = 900
    eps: Annotated[Positive, Effect.NONE, Mark.SAME_EXPERIMENT] = 0.9
    min_samples: Annotated[AtLeastTwo, Effect.NONE, Mark.SAME_EXPERIMENT] = 5

    def __post_init__(self) -> None:
        rule = f"must divide embedding_dim={self.embedding_dim}"
        divides = self.losses == "auxiliary" or self.embedding_dim % self.heads == 0
        require(divides, "heads", self.heads, rule)

    def inert(self, config: Any) -> Rules:
        """What options need; see `config.fields.inert`."""
        passing = "message passing (method.losses='both' or 'mpn')"
        options = ("equations", "layers", "heads", "concatenate", "messages", "dropout")
        kinds, key = {*config.evaluation.refine}, "evaluation.refine"
        reciprocal = refinement.RECIPROCAL in kinds
        fixed, dense = (
            (not kinds.isdisjoint(some), f"one of {', '.join(some)} in {key}")
            for some in (refinement.FIXED_COUNT, refinement.DENSITY_BASED)
        )
        return (
            (self.losses != "auxiliary", passing, *options),
            (self.layers > 1, "method.layers of 2 or more", "concatenate"),
            (reciprocal, f"{refinement.RECIPROCAL!r} in {key}", "k", "k_r"),
            (*fixed, "clusters"),
            (*dense, "eps", "min_samples"),
        )


NODES = 2048  # nodes per refinement call at test time


def attention(queries: Array, keys: Array, equations: Equations) -> Array:
    """a [..., M, R, S] (eq. 3) from W_q h of R receivers and W_k h of S senders, [..., d / M]."""
    heads, size = queries.shape[-2:]
    scale = (heads * size if equations == "paper" else size) ** -0.5
    return attention_weights(queries, keys, scale=scale, off_by_one=equations == "authors")


def placebo_weights(weights: Array, messages: str) -> Array:
    """Weights [..., M, R, S] with which R receivers add messages; see `Config.messages`.

    The permutation is fixed, because batches are random anyway.
    """
    *_, receivers, senders = weights.shape
    match messages:
        case "uniform":
            return jnp.full_like(weights, 1 / senders)
        case "permuted":
            return weights[..., np.random.default_rng(0).permutation(receivers), :]
        case "none":
            own: Array = jnp.eye(receivers, senders, dtype=weights.dtype)
            return jnp.broadcast_to(own, weights.shape)
    return weights


class MessagePassingLayer(nn.Module):
    """One layer of message passing (eq. 3 to 6)."""

    config: Config

    @nn.compact
    def __call__(self, receivers: Array, senders: Array, train: bool) -> tuple[Array, Array]:
        """Senders [..., S, d] -> (receivers [..., R, d], a before dropout [..., M, R, S])."""
        d, as_printed = self.config.embedding_dim, self.config.equations == "paper"
        # U(±sqrt(3 / d)) is Xavier's for a square matrix; "key_value" contains two of them.
        projection = functools.partial(
            Dense,
            use_bias=not as_printed,
            kernel_init=nn.initializers.lecun_uniform(),
            bias_init=nn.initializers.zeros_init(),
        )
        dropout = nn.Dropout(self.config.dropout, deterministic=not train)
        split_heads = lambda x: x.reshape(*x.shape[:-1], -1, d // self.config.heads)  # noqa: E731
        queries = split_heads(projection(d, name="query")(receivers))
        both = split_heads(projection(2 * d, name="key_value")(senders))
        keys, values = jnp.split(both, 2, axis=-2)
        weights = placebo_weights(
            attention(queries, keys, self.config.equations), self.config.messages
        )
        message = attend(dropout(weights), values)
        if not as_printed:
            message = projection(d, name="output")(message)
        g = LayerNorm(name="norm1")(dropout(message) + receivers)
        hidden = dropout(jax.nn.relu(Dense(4 * d, name="ff1")(g)))
        return LayerNorm(name="norm2")(dropout(Dense(d, name="ff2")(hidden)) + g), weights


class MessagePassingNetwork(nn.Module):
    """Refines the embeddings of a batch by message passing and classifies the result."""

    config: Config
    classes: int

    def setup(self) -> None:
        config = self.config
        layers = range(1, config.layers + 1)
        self.layers = [MessagePassingLayer(config, name=f"layer{i}") for i in layers]
        if config.equations == "paper":
            self.classifier = Dense(self.classes)
        else:
            self.projection = Dense(config.embedding_dim)
            self.neck = BatchNorm(use_bias=False)
            self.classifier = Dense(self.classes, use_bias=False, kernel_init=normal_init(0.001))

    def __call__(self, embeddings: Array, train: bool) -> tuple[Array, Array]:
        """Embeddings f [N, d] of any norm -> (refined nodes [N, d] or [N, L d], logits [N, C])."""
        refined = readout(self.propagate(self.initial_nodes(embeddings), train=train), self.config)
        return refined, self.classify(refined, train)

    def initial_nodes(self, embeddings: Array) -> Array:
        """Embeddings f [N, d] of any norm -> h^0 [N, d]."""
        if self.config.equations == "paper":
            return at_least_float32(embeddings)
        return self.projection(unit(embeddings))

    def propagate(
        self, nodes: Array, *, first: int | None = None, train: bool = False
    ) -> list[tuple[Array, Array]]:
        """(h^l, attention weights) of each layer l, from nodes h^0 [N, d].

        With `first`, only the first nodes are returned, and the last layer computes no others.
        """
        outputs = []
        for layer in self.layers:
            receivers = nodes[:first] if layer is self.layers[-1] else nodes
            nodes, weights = layer(receivers, nodes, train)
            outputs.append((nodes[:first], weights))
        return outputs

    def classify(self, refined: Array, train: bool) -> Array:
        """Refined nodes [N, d] or [N, L d] -> logits [N, C]."""
        as_printed = self.config.equations == "paper"
        return self.classifier(refined if as_printed else self.neck(refined, train))


def readout(outputs: list[tuple[Array, Array]], config: Config) -> Array:
    """h^L [N, d], or h^1 to h^L concatenated [N, L d], from the outputs of `propagate`."""
    nodes = [h for h, _ in outputs]
    return jnp.concatenate(nodes, axis=-1) if config.concatenate else nodes[-1]


def loss(
    params: PyTree,
    stats: PyTree,
    embeddings: Array,
    labels: Array,
    network: MessagePassingNetwork,
    key: Array | None = None,
) -> tuple[Array, tuple[PyTree, dict[str, Array]]]:
    """(L, (stats, terms)) of embeddings f [N, d] of any norm; `key` is for the dropout."""
    config, terms = network.config, {}

    def smoothed(logits: Array) -> Array:
        return cross_entropy(logits / config.temperature, labels, smoothing=config.smoothing).mean()

    if config.losses != "mpn":
        scores: PyTree = Dense(network.classes).apply({"params": params["auxiliary"]}, embeddings)
        terms["loss_auxiliary"] = smoothed(scores)
    if config.losses != "auxiliary":
        rngs = None if key is None else {"dropout": key}
        inputs = network, params["mpn"], stats, embeddings, True
        (_, logits), stats = functional.apply(*inputs, rngs=rngs, mutable=True)
        terms["loss_mpn"] = smoothed(logits)
    return jnp.stack(list(terms.values())).sum(), (stats, terms)


def refine(
    params: PyTree,
    embeddings: Array,
    batches: Array,
    network: MessagePassingNetwork,
    first: int = 1,
) -> Array:
    """Refines embeddings [n, d] at test time by message passing in batches of rows, int [B, S].

    Returns the first nodes of each batch, of unit length, [B, first, d] or [B, first, L d].
    """
    variables = {"params": params}
    nodes: PyTree = network.apply(variables, embeddings, method="initial_nodes")

    def refine_one(batch: Array) -> Array:
        outputs: PyTree = network.apply(variables, nodes[batch], first=first, method="propagate")
        return unit(readout(outputs, network.config))

    return lax.map(refine_one, batches, batch_size=max(1, NODES // batches.shape[1]))


class AttentionStatistics(NamedTuple):
    """Attention of each layer and head, averaged over the nodes of a batch: float [L, M] each."""

    divergence: np.ndarray  # KL(weights || uniform), in nats; at most log N
    same_class: np.ndarray  # weight on nodes of the same class, the node itself included
    # N times the difference between the mean weights on other nodes of the class and on nodes of
    # different classes, averaged over the nodes with both; 0 for uniform weights or without any.
    preference: np.ndarray


def batch_attention(
    encode: Encode,
    network: MessagePassingNetwork,
    params: PyTree,
    model_state: PyTree,
    images: Array,
) -> Array:
    """Attention [layer, head, receiver, sender] of a batch of images uint8 [1, B, H, W, 3]."""
    embeddings, _ = jax.jit(functools.partial(encode, train=False))(params, model_state, images)
    variables = {"params": params["mpn"]}
    nodes: PyTree = network.apply(variables, embeddings, method="initial_nodes")
    outputs: PyTree = network.apply(variables, nodes, method="propagate")
    return jnp.stack([attention for _, attention in outputs])


def attention_statistics(rows: np.ndarray, labels: np.ndarray) -> AttentionStatistics:
    """Statistics of attention weights [L, M, B, B] with row sums 1, for labels int [B]."""
    same = labels[:, None] == labels[None, :]
    logs = np.log(np.where(rows > 0, rows * rows.shape[-1], 1))
    divergence, own_class = (np.sum(rows * part, axis=-1).mean(axis=-1) for part in (logs, same))
    masks = same & ~np.eye(len(labels), dtype=bool), ~same
    near, far = (np.sum(rows * mask, axis=-1) / np.maximum(mask.sum(axis=-1), 1) for mask in masks)
    has_both = masks[0].any(axis=-1) & masks[1].any(axis=-1)
    preference = len(labels) * (near - far) @ has_both / max(has_both.sum(), 1)
    return AttentionStatistics(divergence, own_class, preference)


def normalise_rows(attention: np.ndarray | Array) -> np.ndarray:
    """Divides rows [..., B] by their sums, in float64."""
    rows = np.asarray(attention, np.float64)
    return rows / rows.sum(axis=-1, keepdims=True)


def build(config: Config, backbone: Backbone, data: TrainingSet) -> Method:
    """MPN on a backbone."""
    embedding = heads.Embedding(config.embedding_dim, config.pooling)
    auxiliary = Dense(data.classes)
    network = MessagePassingNetwork(config, data.classes)
    rule: refinement.Rule = "paper" if config.equations == "paper" else "authors"

    def init(key: Array, batch: Batch) -> tuple[PyTree, PyTree]:
        keys = jax.random.split(key, 4)
        x = functional.struct(len(batch.labels), config.embedding_dim)
        params, model_state = heads.init(backbone, embedding, keys, batch)
        model_state["neck"] = {}
        if config.losses != "mpn":
            params["auxiliary"], _ = functional.init(auxiliary, keys[2], x)
        if config.losses != "auxiliary":
            params["mpn"], stats = functional.init(network, keys[3], x, False)
            model_state |= stats
        return params, model_state

    encode = heads.encoder(backbone, embedding)

    def batch_loss(
        params: PyTree, model_state: PyTree, encoded: Array, batch: Batch, step: Array, key: Array
    ) -> tuple[Array, Aux]:
        stats = {"neck": model_state["neck"]}
        value, (stats, terms) = loss(params, stats, encoded, batch.labels, network, key)
        return value, Aux(model_state | stats, terms)

    def teach(params: PyTree, model_state: PyTree, encoded: Array) -> Teaching:
        """Refined nodes and their logits."""
        stats = {"neck": model_state["neck"]}
        (refined, logits), _ = functional.apply(network, params["mpn"], stats, encoded, False)
        return Teaching(unit(refined), logits)

    @functools.partial(jax.jit, static_argnames="first")
    def refine_groups(
        params: PyTree, embeddings: Array, batches: Array, positions: Array, first: int
    ) -> Array:
        nodes = refine(params, embeddings, batches, network, first)
        return nodes.reshape(-1, nodes.shape[-1])[positions]

    def refine_at_test(
        kind: str, params: PyTree, model_state: PyTree, embeddings: Embeddings, run: Run
    ) -> tuple[Embeddings, dict[str, int]]:
        mpn, name = params["mpn"], next(iter(embeddings))
        if kind == refinement.RECIPROCAL:  # the queries only, as the authors do
            refined = reciprocally(mpn, embeddings[name], embeddings.get("gallery"))
            return {**embeddings, name: np.asarray(refined)}, {}
        points = np.concatenate(list(embeddings.values()))
        groups, facts = refinement.groups(kind, points, run)
        first = groups.refined
        # The first node of each row.
        _, positions = np.unique(groups.batches[:, :first], return_index=True)
        rows = np.asarray(refine_groups(mpn, points, groups.batches, positions, first=first))
        ends = np.cumsum([len(x) for x in embeddings.values()])[:-1]
        return dict(zip(embeddings, np.split(rows, ends), strict=True)), facts

    def reciprocally(mpn: PyTree, queries: Any, gallery: Any) -> Array:
        dim = config.embedding_dim
        if gallery is not None and config.concatenate and config.layers > 1:
            sizes = f"refined queries have {config.layers * dim} dimensions, but the gallery {dim}"
            remedy = "refine without a gallery, or train without concatenation"
            raise ConfigError(f"method.concatenate=True: {sizes}; {remedy}")
        neighbours = {"k": config.k, "size": config.k_r}
        sets = refinement.reciprocal_sets(queries, gallery, **neighbours, rule=rule)
        embeddings = queries if gallery is None else jnp.concatenate([queries, gallery])
        return refine_groups(mpn, embeddings, sets.batches, np.arange(len(queries)), first=1)

    def group(path: tuple[str, ...]) -> str:
        return "mpn" if path[0] == "neck" else path[0]  # batch statistics of the network

    def diagnose(
        params: PyTree, model_state: PyTree, images: Array, labels: np.ndarray
    ) -> dict[str, float]:
        """AttentionStatistics, averaged over layers and heads."""
        rows = normalise_rows(batch_attention(encode, network, params, model_state, images))
        statistics = attention_statistics(rows, labels)
        return {
            "attention_divergence": float(statistics.divergence.mean()),
            "attention_own_class": float(statistics.same_class.mean()),
            "attention_preference": float(statistics.preference.mean()),
        }

    kinds = tuple((kind, functools.partial(refine_at_test, kind)) for kind in refinement.KINDS)
    hooks = Hooks(
        refine=kinds, check_refine=refinement.check_options, teach=teach, diagnose=diagnose
    )
    if config.losses == "auxiliary":
        hooks = Hooks(teach=heads.teach_by(auxiliary, "auxiliary"))
    return Method(init, encode, batch_loss, heads.unit_embed(encode), GROUPS, group, hooks=hooks)
