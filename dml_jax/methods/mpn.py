"""MPN: learning intra-batch connections for deep metric learning (Seidenschwarz, Elezi, Leal-Taixé, ICML 2021).

The images of a batch are the nodes of a complete graph (self loops included). L steps of message passing with M
attention heads refine their embeddings f; two label-smoothed cross-entropies at a temperature train both:

    h_i^0      = f_i / |f_i|
    a_ij^m     = softmax_j (W_q^m h_i)^T (W_k^m h_j) / sqrt(d)                       eq. 3, i receives from j
    m_i        = cat_m sum_j a_ij^m W^m h_j                                          eq. 4
    g_i        = LayerNorm(m_i + h_i)                                                eq. 5
    h_i'       = LayerNorm(FF(g_i) + g_i)                                            eq. 6
    L          = LS(U f / T) + LS(V h^L / T)                                         auxiliary and MPN loss

The numbers of the paper come from code that differs from what is printed: the sum in the softmax has 1 added to it,
scores are divided by sqrt(d / M), projections have biases, one more linear layer follows the heads and another
precedes the first step, and batch normalisation without a shift stands before V (`equations="authors"`).

The network serves training only; at test time it may refine embeddings in batches of reciprocal neighbours, or in the
others of the paper's appendix C (`evaluation.refine`). Expected R@1 with ResNet-50, 512-d: CUB 70.3, Cars196 88.1, SOP
81.4, In-Shop 92.8 (the authors); 70.1, 87.3, 81.0, 92.5 (a reproduction in the ML Reproducibility Challenge).
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.backbones.contract import Backbone
from dml_jax.config_schema import require
from dml_jax.errors import ConfigError
from dml_jax.evaluation import reciprocal_neighbors
from dml_jax.evaluation.refinement_batches import Groups
from dml_jax.losses.classification import cross_entropy
from dml_jax.losses.norms import at_least_float32, unit
from dml_jax.methods import heads as _heads
from dml_jax.methods.contract import Batch, Method, Teaching
from dml_jax.methods.heads import Pooling

GROUPS = ("backbone", "embedding", "auxiliary", "mpn")
NODES = 2048  # of test-time batches passed at once
Equations = Literal["authors", "transformer", "paper"]


@dataclass(frozen=True)
class Config:
    """Options of MPN; the defaults are those of the authors' CUB run."""

    name: str = "mpn"
    equations: Equations = "authors"  # "transformer": the authors' with a plain softmax; "paper": as printed
    layers: int = 1  # L, message passing steps
    heads: int = 2  # M, attention heads
    concatenate: bool = False  # the outputs of all layers, not the last alone, go to the classifier
    embedding_dim: int = 512  # d
    losses: Literal["both", "auxiliary", "mpn"] = "both"  # "auxiliary": there is no network at all
    temperature: float = 0.2  # T, divides the logits of both losses
    smoothing: float = 0.1  # epsilon of the label smoothing
    dropout: float = 0.1  # of attention weights, messages, and twice in FF
    pooling: Pooling = "max"
    k: int = 30  # reciprocal neighbours of a test-time batch
    k_r: int = 7  # images in a test-time batch, the query included

    def __post_init__(self) -> None:
        require(self.layers > 0, "method.layers", self.layers, "must be at least 1")
        require(self.heads > 0, "method.heads", self.heads, "must be at least 1")
        require(self.embedding_dim > 0, "method.embedding_dim", self.embedding_dim, "must be positive")
        require(
            self.embedding_dim % self.heads == 0,
            "method.heads",
            self.heads,
            f"must divide method.embedding_dim={self.embedding_dim}",
        )
        require(self.temperature > 0, "method.temperature", self.temperature, "must be positive")
        require(0 <= self.smoothing < 1, "method.smoothing", self.smoothing, "must be in [0, 1)")
        require(0 <= self.dropout < 1, "method.dropout", self.dropout, "must be in [0, 1)")
        require(self.k > 1, "method.k", self.k, "must be at least 2")
        require(self.k_r > 1, "method.k_r", self.k_r, "must be at least 2")


def _normal(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Layer normalisation of [..., d] with learned scale and shift."""
    ones = (1,) * (x.ndim - 1)
    return _heads.layer_norm(x) * params["scale"].reshape(*ones, -1) + params["bias"].reshape(*ones, -1)


def _dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    if key is None or rate == 0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def attention(queries: jax.Array, keys: jax.Array, equations: Equations) -> jax.Array:
    """How much each receiver takes from each sender (eq. 3).

    Args:
      queries: W_q h of the receivers [..., R, M, d / M].
      keys: W_k h of the senders [..., S, M, d / M].
      equations: which softmax and which scale.

    Returns:
      [..., M, R, S]; rows sum to 1, in the authors' form to less.
    """
    count, width = queries.shape[-2:]
    scale = (count * width if equations == "paper" else width) ** -0.5
    scores = jnp.einsum("...rmh,...smh->...mrs", queries * scale, keys, precision=lax.Precision.HIGHEST)
    if equations != "authors":
        return jax.nn.softmax(scores, axis=-1)
    # The 1 in the denominator is one more sender, of score 0 and without a message.
    top = lax.stop_gradient(jnp.maximum(scores.max(axis=-1, keepdims=True), 0))
    mass = jnp.exp(scores - top)
    return mass / (mass.sum(axis=-1, keepdims=True) + jnp.exp(-top))


def layer_init(key: jax.Array, config: Config) -> dict[str, Any]:
    """Parameters of one step: attention Xavier-uniform with zero biases, FF as torch's linear layers."""
    d = config.embedding_dim
    keys = jax.random.split(key, 5)

    def projection(key: jax.Array, outputs: int) -> dict[str, jax.Array]:
        bound = (3 / d) ** 0.5
        kernel = jax.random.uniform(key, (d, outputs), minval=-bound, maxval=bound)
        return {"kernel": kernel} if config.equations == "paper" else {"kernel": kernel, "bias": jnp.zeros(outputs)}

    params = {
        "query": projection(keys[0], d),
        "key_value": projection(keys[1], 2 * d),
        "norm1": {"scale": jnp.ones(d), "bias": jnp.zeros(d)},
        "ff1": _heads.linear_init(keys[2], d, 4 * d),
        "ff2": _heads.linear_init(keys[3], 4 * d, d),
        "norm2": {"scale": jnp.ones(d), "bias": jnp.zeros(d)},
    }
    return params if config.equations == "paper" else params | {"output": projection(keys[4], d)}


def step(
    params: Any, receivers: jax.Array, senders: jax.Array, config: Config, key: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """One step of message passing (eq. 3 to 6).

    Args:
      params: as `layer_init` gives them.
      receivers: the nodes to refine [..., R, d].
      senders: all nodes of the batch [..., S, d].
      config: the options.
      key: drives the dropout; None: there is none.

    Returns:
      (the receivers refined [..., R, d], attention weights [..., M, R, S]).
    """
    keys = (None,) * 4 if key is None else jax.random.split(key, 4)
    split = lambda x: x.reshape(*x.shape[:-1], -1, config.embedding_dim // config.heads)  # noqa: E731
    queries = split(_heads.linear(params["query"], receivers))
    packed = split(_heads.linear(params["key_value"], senders))
    weights = attention(queries, packed[..., : config.heads, :], config.equations)
    dropped = _dropout(weights, config.dropout, keys[0])
    message = jnp.einsum("...mrs,...smh->...rmh", dropped, packed[..., config.heads :, :]).reshape(receivers.shape)
    if "output" in params:
        message = _heads.linear(params["output"], message)
    g = _normal(params["norm1"], receivers + _dropout(message, config.dropout, keys[1]))
    hidden = _dropout(jax.nn.relu(_heads.linear(params["ff1"], g)), config.dropout, keys[2])
    refined = g + _dropout(_heads.linear(params["ff2"], hidden), config.dropout, keys[3])
    return _normal(params["norm2"], refined), weights


def network_init(key: jax.Array, config: Config, num_classes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(params, batch statistics) of the message passing network; layers are named layer1, layer2, …"""
    keys = jax.random.split(key, config.layers + 2)
    width = config.embedding_dim * (config.layers if config.concatenate else 1)
    params = {f"layer{i + 1}": layer_init(keys[i], config) for i in range(config.layers)}
    if config.equations == "paper":
        return params | {"classifier": _heads.linear_init(keys[-1], width, num_classes)}, {}
    neck, stats = _heads.batch_norm_init(width)
    params["projection"] = _heads.linear_init(keys[-2], config.embedding_dim, config.embedding_dim)
    params["neck"] = {"scale": neck["scale"]}  # its shift stays 0
    params["classifier"] = {"kernel": 0.001 * jax.random.normal(keys[-1], (width, num_classes))}
    return params, stats


def nodes(params: Any, embeddings: jax.Array) -> jax.Array:
    """h^0 [N, d] from embeddings [N, d] of any length."""
    initial = unit(embeddings)
    return _heads.linear(params["projection"], initial) if "projection" in params else initial


def propagate(
    params: Any, initial: jax.Array, config: Config, key: jax.Array | None = None
) -> list[tuple[jax.Array, jax.Array]]:
    """All steps of one batch: h^0 [N, d] -> (h^l [N, d], attention weights [M, N, N]) of each layer l."""
    layers = []
    hidden = initial
    for i in range(config.layers):
        inner = None if key is None else jax.random.fold_in(key, i)
        hidden, weights = step(params[f"layer{i + 1}"], hidden, hidden, config, inner)
        layers.append((hidden, weights))
    return layers


def readout(outputs: list[jax.Array], config: Config) -> jax.Array:
    """The last layer's nodes [..., d], or those of all layers side by side [..., L d]."""
    return jnp.concatenate(outputs, axis=-1) if config.concatenate else outputs[-1]


def classify(params: Any, stats: Any, refined: jax.Array, *, train: bool) -> tuple[jax.Array, Any]:
    """Logits [N, C] of refined nodes [N, d or L d], and the statistics of the neck."""
    if "neck" in params:
        refined, stats = _heads.batch_norm(params["neck"], stats, refined, train=train)
    return _heads.linear(params["classifier"], refined), stats


def loss(
    params: Any,
    stats: Any,
    embeddings: jax.Array,
    labels: jax.Array,
    config: Config,
    key: jax.Array | None = None,
) -> tuple[jax.Array, tuple[Any, dict[str, jax.Array]]]:
    """The auxiliary and the MPN loss of a batch.

    Args:
      params: "auxiliary" and "mpn", as far as config.losses asks for them.
      stats: batch statistics of the neck.
      embeddings: f, float [N, d], of any length; the auxiliary classifier sees them as they are.
      labels: int [N], in 0..C-1.
      config: the options.
      key: drives the dropout; None: there is none.

    Returns:
      (scalar, (stats, terms)).
    """
    embeddings = at_least_float32(embeddings)
    terms = {}

    def smoothed(logits: jax.Array) -> jax.Array:
        return cross_entropy(logits / config.temperature, labels, smoothing=config.smoothing).mean()

    if config.losses != "mpn":
        terms["loss_auxiliary"] = smoothed(_heads.linear(params["auxiliary"], embeddings))
    if config.losses != "auxiliary":
        layers = propagate(params["mpn"], nodes(params["mpn"], embeddings), config, key)
        refined = readout([hidden for hidden, _ in layers], config)
        logits, stats = classify(params["mpn"], stats, refined, train=True)
        terms["loss_mpn"] = smoothed(logits)
    return jnp.stack(list(terms.values())).sum(), (stats, terms)


def refine_heads(params: Any, embeddings: jax.Array, batches: jax.Array, config: Config, heads: int = 1) -> jax.Array:
    """Message passing at test time.

    Args:
      params: as `network_init` gives them.
      embeddings: float [n, d].
      batches: int [B, S], rows of `embeddings`.
      config: the options.
      heads: how many nodes at the head of each batch are wanted.

    Returns:
      These nodes refined, of unit length, [B, heads, d] or [B, heads, L d].
    """
    initial = nodes(params, embeddings)

    def one(batch: jax.Array) -> jax.Array:
        hidden, wanted = initial[batch], []
        for i in range(config.layers):
            # After the last step nobody listens to the others any more.
            receivers = hidden[:heads] if i + 1 == config.layers else hidden
            hidden, _ = step(params[f"layer{i + 1}"], receivers, hidden, config)
            wanted.append(hidden[:heads])
        return unit(readout(wanted, config))

    return lax.map(one, batches, batch_size=max(1, NODES // batches.shape[1]))


def refine(params: Any, embeddings: jax.Array, batches: jax.Array, config: Config) -> jax.Array:
    """The first node of each batch refined, [Q, d] or [Q, L d]: batches int [Q, k_r] of one query each."""
    return refine_heads(params, embeddings, batches, config)[:, 0]


def build(config: Config, backbone: Backbone, num_classes: int) -> Method:
    """MPN on a backbone, for `num_classes` training classes."""
    rule: reciprocal_neighbors.Rule = "paper" if config.equations == "paper" else "authors"

    def init(key: jax.Array, batch: Batch) -> tuple[Any, Any]:
        keys = jax.random.split(key, 4)
        body, body_stats = backbone.init(keys[0], batch.images.shape[2:4])
        params = {
            "backbone": body,
            "embedding": _heads.linear_init(keys[1], backbone.channels, config.embedding_dim),
        }
        stats: dict[str, Any] = {}
        if config.losses != "mpn":
            params["auxiliary"] = _heads.linear_init(keys[2], config.embedding_dim, num_classes)
        if config.losses != "auxiliary":
            params["mpn"], stats = network_init(keys[3], config, num_classes)
        return params, {"backbone": body_stats, "neck": stats}

    forward = _heads.forward(
        backbone, lambda params, features: _heads.linear(params["embedding"], _heads.pool(features, config.pooling))
    )

    def batch_loss(
        params: Any, state: Any, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, tuple[Any, dict[str, jax.Array]]]:
        depth, dropout = jax.random.split(key)
        embeddings, body = forward(params, state, batch.images[0], train=True, key=depth)
        value, (neck, terms) = loss(params, state["neck"], embeddings, batch.labels, config, dropout)
        return value, ({"backbone": body, "neck": neck}, terms)

    def embed(params: Any, state: Any, images: jax.Array) -> jax.Array:
        return unit(forward(params, state, images, train=False)[0])

    def teach(params: Any, state: Any, images: jax.Array) -> Teaching:
        """What the network makes of the batch, without dropout; without a network, the auxiliary classifier's view."""
        embeddings, _ = forward(params, state, images, train=False)
        if config.losses == "auxiliary":
            return Teaching(unit(embeddings), _heads.linear(params["auxiliary"], embeddings))
        layers = propagate(params["mpn"], nodes(params["mpn"], embeddings), config)
        refined = readout([hidden for hidden, _ in layers], config)
        return Teaching(unit(refined), classify(params["mpn"], state["neck"], refined, train=False)[0])

    @jax.jit
    def refined(params: Any, queries: jax.Array, gallery: jax.Array | None) -> jax.Array:
        batches = reciprocal_neighbors.sets(queries, gallery, k=config.k, size=config.k_r, rule=rule).batches
        embeddings = queries if gallery is None else jnp.concatenate([queries, gallery])
        return refine(params, embeddings, batches, config)

    @functools.partial(jax.jit, static_argnames="heads")
    def grouped(params: Any, embeddings: jax.Array, batches: jax.Array, places: jax.Array, heads: int) -> jax.Array:
        found = refine_heads(params, embeddings, batches, config, heads)
        return found.reshape(-1, found.shape[-1])[places]

    def test_time(
        params: Any, state: Any, queries: jax.Array, gallery: jax.Array | None = None, *, groups: Groups | None = None
    ) -> jax.Array:
        if groups is not None:
            places = np.unique(groups.batches[:, : groups.refined], return_index=True)[1]
            return grouped(params["mpn"], queries, groups.batches, places, heads=groups.refined)
        if gallery is not None and config.concatenate and config.layers > 1:
            raise ConfigError(
                f"method.concatenate=True: refined queries have {config.layers * config.embedding_dim} dimensions and "
                f"the gallery {config.embedding_dim}; refine among the queries alone, or train without concatenation"
            )
        return refined(params["mpn"], queries, gallery)

    return Method(
        init,
        batch_loss,
        embed,
        groups=GROUPS,
        group=lambda path: path[0],
        refine=None if config.losses == "auxiliary" else test_time,
        teach=teach,
    )
