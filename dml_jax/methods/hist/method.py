"""HIST: hypergraph-induced semantic tuplet loss for deep metric learning.

Lim, Yun, Park, Choi, CVPR 2022.

Each class c is a Gaussian on the unit sphere with mean mu_c and diagonal variance exp(relu6(log
sigma2_c)). A batch forms a hypergraph with one hyperedge per class, in which a sample's membership
decays with its distance to the class. The sum of two losses is minimised:

    d(i, c)  = sum_f (x_if - mu_cf)^2 / sigma2_cf          squared Mahalanobis distance
    L_D      = mean_i -log softmax_c(-tau d(i, c))_{y_i}   distribution loss
    H_ij     = 1 if y_i = j else exp(-alpha d(i, j))       semantic tuplets, j a class of the batch
    G        = Dv^-1/2 H De^-1 H^T Dv^-1/2                 propagation over the hypergraph
    X_{l+1}  = leaky_0.1(BN(G (X_l Theta_l + b_l)))        hidden layers of the hypergraph network
    logits   = G (X_L Theta + b)                           its output layer
    L        = L_D + lambda_s mean_i CE(logits_i, y_i)

The hypergraph network is used in training only. Expected Recall@1 with ResNet-50, 512-d: CUB 71.4,
Cars196 89.6, SOP 81.4 (the authors); 70.1, 89.8, 80.7 (reproduction by Yuan et al., MLRC 2022, who
also tuned it to 72.3, 90.2, 81.0).
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from dml_jax.backbones import functional
from dml_jax.backbones.batch_norm import BatchNorm
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import (
    Dense,
    LayerNorm,
    Pooling,
    global_pool,
    he_fan_out,
    normal_init,
    uniform_fan_in,
)
from dml_jax.config.fields import (
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    Rules,
    section,
)
from dml_jax.losses.pairwise import inner_products
from dml_jax.methods import heads
from dml_jax.methods.contract import Aux, Batch, Hooks, Method, PyTree, TrainingSet
from dml_jax.numerics import at_least_float32, product, unit

Distance = Literal["mahalanobis", "euclidean", "cosine", "manhattan"]
Tuplets = Literal["semantic", "random", "permuted", "none"]
GROUPS = ("backbone", "embedding", "distributions", "hgnn")  # parameter groups


@section
class Config:
    """Options of HIST, with the defaults of the authors' Cars196 run except for `drop_underflow`.

    Attributes:
      name: Module of dml_jax/methods, or an import path.
      embedding_dim: Length D of the embeddings.
      hidden_dim: Width of the hypergraph network.
      hidden_layers: Layers of the hypergraph network before its output layer; "L" of the
        reproduction minus one.
      tau: Scale of the distances in the distribution loss.
      alpha: Decay of membership with distance; if negative, other classes weigh more than a
        sample's own.
      lambda_s: Weight of the hypergraph network's cross-entropy.
      tuplets: The hyperedges: "semantic" (H above), or a placebo with the same number of
        parameters: memberships from U(0, 1) in every step ("random"), memberships exchanged between
        samples ("permuted"), or hyperedges of one sample each ("none").
      distance: Distance to the class distributions; all but the default are ablations, which do not
        train the variances.
      pooling: Pooling of the feature map.
      layer_norm: Normalises the embeddings, without scale and bias.
      drop_underflow: Leaves samples whose probability underflows to 0 out of L_D, as the authors'
        code does.
    """

    name: str = "hist"
    embedding_dim: PositiveInt = 512
    hidden_dim: PositiveInt = 512
    hidden_layers: NonNegativeInt = 1
    tau: Positive = 32.0
    alpha: float = 0.9
    lambda_s: NonNegative = 1.0
    tuplets: Tuplets = "semantic"
    distance: Distance = "mahalanobis"
    pooling: Pooling = "avg+max"
    layer_norm: bool = True
    drop_underflow: bool = False

    def inert(self, config: Any) -> Rules:
        """What options need; see `config.fields.inert`."""
        semantic = self.tuplets in ("semantic", "permuted")
        network = ("hidden_dim", "hidden_layers", "alpha", "tuplets")
        return (
            (self.lambda_s, "method.lambda_s", *network),
            (self.hidden_layers, "method.hidden_layers", "hidden_dim"),
            (semantic, "method.tuplets='semantic' or 'permuted'", "alpha"),
        )


class Embedding(nn.Module):
    """Pooling, a linear layer and layer normalisation; the losses normalise to unit length."""

    config: Config

    @nn.compact
    def __call__(self, features: Array) -> Array:
        """Feature map [B, h, w, K] -> [B, D]."""
        dim, zeros = self.config.embedding_dim, nn.initializers.zeros_init()
        layer = Dense(dim, kernel_init=he_fan_out, bias_init=zeros, name="embedding")
        x = layer(global_pool(features, self.config.pooling))
        return LayerNorm(affine=False)(x) if self.config.layer_norm else x


class Distributions(nn.Module):
    """The Gaussians of the classes; initial means and log-variances are N(0, 2/C) (He, fan out)."""

    classes: int
    config: Config

    @nn.compact
    def __call__(self, embeddings: Array) -> Array:
        """Embeddings [N, D] -> distances d [N, C]."""
        shape = (self.classes, self.config.embedding_dim)
        init = normal_init((2 / self.classes) ** 0.5)
        means, log_vars = self.param("means", init, shape), self.param("log_vars", init, shape)
        return distances(embeddings, means, log_vars, self.config.distance)


def distances(embeddings: Array, means: Array, log_vars: Array, kind: Distance) -> Array:
    """d(i, c) [N, C] of samples [N, D] and classes [C, D]; samples and means are normalised.

    Mahalanobis: (x - mu)^2 p = x^2 p - 2 x mu p + mu^2 p with p = 1 / sigma2, in matrix products.
    """
    x, mu = unit(embeddings), unit(means)
    match kind:
        case "mahalanobis":
            log_vars = at_least_float32(log_vars)
            # Without a gradient at 0 and 6, unlike jax.nn.relu6.
            inside = (log_vars > 0) & (log_vars < 6)
            precision = jnp.exp(-jnp.where(inside, log_vars, jnp.where(log_vars >= 6, 6.0, 0.0)))
            constant = jnp.sum(mu * mu * precision, axis=1)[None, :]
            mixed = inner_products(x, mu * precision)
            return inner_products(x * x, precision) - 2 * mixed + constant
        case "euclidean":
            return 2 - 2 * inner_products(x, mu)
        case "cosine":
            return 1 - inner_products(x, mu)
        case "manhattan":
            # XLA fuses this, so that [N, C, D] is never stored.
            return jnp.sum(jnp.abs(x[:, None, :] - mu[None, :, :]), axis=-1)


def distribution_loss(
    d: Array, labels: Array, *, tau: float, drop_underflow: bool = False
) -> Array:
    """L_D: mean over the samples of -log softmax(-tau d)_y, d [N, C].

    `drop_underflow` omits samples with probability 0 in the precision of d, subnormals included.
    """
    log_p = -optax.softmax_cross_entropy_with_integer_labels(-tau * d, labels)
    info = jnp.finfo(log_p.dtype)
    # Log of the smallest p, because exp(log_p) would depend on the device.
    zero = (info.minexp - info.nmant - 1) * jnp.log(2.0)
    counted = log_p > zero if drop_underflow else jnp.ones_like(log_p, bool)
    return -jnp.sum(jnp.where(counted, log_p, 0)) / jnp.maximum(counted.sum(), 1)


def incidence(d: Array, labels: Array, *, alpha: float) -> tuple[Array, Array]:
    """Semantic tuplets -> (H [N, N], weights [N] of its columns).

    For a static shape, there is one column per sample instead of one per class in the batch. The
    columns of a class are equal; with weights 1 / (their number), they act as its one hyperedge.
    """
    same = labels[:, None] == labels[None, :]
    membership = jnp.exp(-alpha * jnp.take(d, labels, axis=1))
    return jnp.where(same, 1.0, membership), 1.0 / same.sum(axis=0)


def placebo_incidence(h: Array, labels: Array, tuplets: Tuplets, key: Array) -> tuple[Array, Array]:
    """A placebo for the incidence H [N, N] of a batch, with the weights [N] of its columns."""
    same = labels[:, None] == labels[None, :]
    weights: Array = 1.0 / same.sum(axis=0)
    match tuplets:
        case "random":  # with equal columns for samples of a class
            return jax.random.uniform(key, h.shape, h.dtype)[:, jnp.argmax(same, axis=0)], weights
        case "permuted":
            return jax.random.permutation(key, h, axis=0), weights
        case _:
            return jnp.eye(len(labels), dtype=h.dtype), jnp.ones_like(weights)


def tuplet_statistics(h: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Statistics of the memberships H [N, N] of samples in the hyperedges of different classes.

    Returns their mean, and the mean of KL(memberships of a sample, divided by their sum || uniform)
    in nats, which is 0 if all classes are equally near; nothing for a batch of a single class.
    """
    columns = np.unique(labels, return_index=True)[1]
    if len(columns) == 1:
        return {}
    classes, memberships = labels[columns], np.asarray(h, np.float64)[:, columns]
    different = memberships[labels[:, None] != classes].reshape(len(labels), -1)
    shares = different / different.sum(axis=1, keepdims=True)
    terms = shares * np.log(np.where(shares > 0, shares * shares.shape[1], 1))
    divergence = float(terms.sum(axis=1).mean())
    return {"tuplet_divergence": divergence, "tuplet_membership": float(different.mean())}


class Propagation(NamedTuple):
    """Factors of G = S diag(e) S^T: devices that share rows need not exchange an [N, N] matrix."""

    scaled: Array  # S = Dv^-1/2 H, float [N, E]
    edges: Array  # e, the diagonal of W De^-1, float [E]

    def times(self, x: Array) -> Array:
        """X [N, D] -> G X."""
        gathered = self.edges[:, None] * product("ne,nd->ed", self.scaled, x)
        return product("ne,ed->nd", self.scaled, gathered)


def propagation(h: Array, weights: Array) -> Propagation:
    """G from the incidence H [N, E] and the weights [E] of its hyperedges."""
    vertex = jax.lax.rsqrt(h @ weights)  # Dv^-1/2
    return Propagation(h * vertex[:, None], weights / h.sum(axis=0))


class Layer(nn.Module):
    """G (X Theta + b) as (G X) Theta + (G 1) b: devices exchange rows of X, not of X Theta."""

    features: int

    @nn.compact
    def __call__(self, x: Array, g: Propagation) -> Array:
        """X [N, D] -> [N, features]."""
        init = uniform_fan_in(x.shape[1])
        kernel = self.param("kernel", init, (x.shape[1], self.features))
        bias = self.param("bias", init, (self.features,))
        ones = g.times(jnp.ones_like(x[:, :1]))
        return product("nd,dc->nc", g.times(x), kernel) + ones * bias[None, :]


class Block(nn.Module):
    """One hidden layer of the hypergraph network."""

    features: int

    @nn.compact
    def __call__(self, x: Array, g: Propagation, train: bool) -> Array:
        """X_l [N, D] -> X_{l+1} [N, features]."""
        x = Layer(self.features, name="theta")(x, g)
        return jax.nn.leaky_relu(BatchNorm(name="bn")(x, train), 0.1)


class HypergraphNetwork(nn.Module):
    """Classifies the samples of a batch after propagating their embeddings over the hypergraph."""

    classes: int
    config: Config

    @nn.compact
    def __call__(self, x: Array, g: Propagation, train: bool) -> Array:
        """Embeddings X [N, D] -> logits [N, C]."""
        for layer in range(1, self.config.hidden_layers + 1):
            x = Block(self.config.hidden_dim, name=f"block{layer}")(x, g, train)
        return Layer(self.classes, name="output")(x, g)


def classify(
    params: PyTree, stats: PyTree, x: Array, g: Propagation, config: Config, *, train: bool
) -> tuple[Array, PyTree]:
    """The hypergraph network on embeddings [N, D] -> (logits [N, C], batch statistics by block)."""
    network = HypergraphNetwork(params["output"]["kernel"].shape[1], config)
    nested = {block: {"bn": values} for block, values in stats.items()}
    logits, nested = functional.apply(network, params, nested, x, g, train, mutable=train)
    return logits, {block: values["bn"] for block, values in nested.items()}


def loss(
    params: PyTree,
    stats: PyTree,
    embeddings: Array,
    labels: Array,
    config: Config,
    key: Array | None = None,
) -> tuple[Array, tuple[PyTree, dict[str, Array]]]:
    """(L, (stats, terms)) of embeddings [N, D]; `stats` are the batch statistics by block.

    Only placebos need the `key`.
    """
    embeddings = at_least_float32(embeddings)
    classes = len(params["distributions"]["means"])
    d, _ = functional.apply(Distributions(classes, config), params["distributions"], {}, embeddings)
    loss_d = distribution_loss(d, labels, tau=config.tau, drop_underflow=config.drop_underflow)
    h, weights = incidence(d, labels, alpha=config.alpha)
    if config.tuplets != "semantic":
        assert key is not None, "placebos need a key"
        h, weights = placebo_incidence(h, labels, config.tuplets, key)
    g = propagation(h, weights)
    logits, stats = classify(params["hgnn"], stats, embeddings, g, config, train=True)
    loss_ce = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss_d + config.lambda_s * loss_ce, (stats, {"loss_d": loss_d, "loss_ce": loss_ce})


def build(config: Config, backbone: Backbone, data: TrainingSet) -> Method:
    """HIST on a backbone."""
    embedding = Embedding(config)

    def init(key: Array, batch: Batch) -> tuple[PyTree, PyTree]:
        keys = jax.random.split(key, 4)
        size, x = len(batch.labels), functional.struct(len(batch.labels), config.embedding_dim)
        params, model_state = heads.init(backbone, embedding, keys, batch)
        gaussians, _ = functional.init(Distributions(data.classes, config), keys[2], x)
        g = jax.eval_shape(propagation, functional.struct(size, size), functional.struct(size))
        hgnn = HypergraphNetwork(data.classes, config)
        network, stats = functional.init(hgnn, keys[3], x, g, True)
        model_state["hgnn"] = {block: values["bn"] for block, values in stats.items()}
        return {**params, "distributions": gaussians, "hgnn": network}, model_state

    encode = heads.encoder(backbone, embedding)

    def batch_loss(
        params: PyTree, model_state: PyTree, encoded: Array, batch: Batch, step: Array, key: Array
    ) -> tuple[Array, Aux]:
        inputs = params, model_state["hgnn"], encoded, batch.labels, config, key
        value, (stats, terms) = loss(*inputs)
        return value, Aux({**model_state, "hgnn": stats}, terms)

    def diagnose(
        params: PyTree, model_state: PyTree, images: Array, labels: np.ndarray
    ) -> dict[str, float]:
        embeddings, _ = jax.jit(partial(encode, train=False))(params, model_state, images)
        gaussians = Distributions(data.classes, config)
        d, _ = functional.apply(gaussians, params["distributions"], {}, embeddings)
        h, _ = incidence(d, jnp.asarray(labels), alpha=config.alpha)
        return tuplet_statistics(np.asarray(h), labels)

    hooks = Hooks(diagnose=diagnose if config.tuplets == "semantic" else None)
    return Method(init, encode, batch_loss, heads.unit_embed(encode), GROUPS, hooks=hooks)
