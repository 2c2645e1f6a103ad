"""HIST: hypergraph-induced semantic tuplet loss for deep metric learning (Lim, Yun, Park, Choi, CVPR 2022).

Each class c is a Gaussian on the unit sphere with mean mu_c and diagonal variance exp(relu6(log sigma2_c)). A batch
becomes a hypergraph with one hyperedge per class in it, to which every sample belongs the more the nearer it lies to
the class. Two losses train both:

    d(i, c)   = sum_f (x_if - mu_cf)^2 / sigma2_cf                                 Mahalanobis, squared
    L_D       = mean_i -log softmax_c(-tau d(i, c))_{y_i}                          distribution loss
    H_ij      = 1 if y_i = j else exp(-alpha d(i, j)),  j a class of the batch     semantic tuplets
    G         = Dv^-1/2 H De^-1 H^T Dv^-1/2                                        propagation over the hypergraph
    X_{l+1}   = leaky_0.1(BN(G (X_l Theta_l + b_l))),   logits = G (X_L Theta + b)   hypergraph network
    L         = L_D + lambda_s mean_i CE(logits_i, y_i)

The hypergraph network serves training only. Expected R@1 with ResNet-50, 512-d: CUB 71.4, Cars196 89.6, SOP 81.4
(the authors); 70.1, 89.8, 80.7 (reproduction by Yuan et al., MLRC 2022, who also tuned it to 72.3, 90.2, 81.0).
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from dml_jax.backbones.contract import Backbone
from dml_jax.config_schema import require
from dml_jax.losses.norms import at_least_float32, unit
from dml_jax.methods import heads
from dml_jax.methods.contract import Batch, Method

GROUPS = ("backbone", "embedding", "distributions", "hgnn")
Distance = Literal["mahalanobis", "euclidean", "cosine", "manhattan"]


@dataclass(frozen=True)
class Config:
    """Options of HIST; the defaults are those of the authors' Cars196 run but for `drop_underflow`."""

    name: str = "hist"
    embedding_dim: int = 512  # D
    hidden_dim: int = 512  # width of the hypergraph network
    hidden_layers: int = 1  # blocks before its output layer; the reproduction's "L" is this plus one
    tau: float = 32.0  # scale of the distances in the distribution loss
    alpha: float = 0.9  # decay of the membership with the distance; negative: other classes weigh more than one's own
    lambda_s: float = 1.0  # weight of the hypergraph network's cross-entropy
    distance: Distance = "mahalanobis"  # the others are ablations and leave the variances untrained
    pooling: heads.Pooling = "avg+max"
    layer_norm: bool = True  # of the embedding, without scale and shift
    drop_underflow: bool = (
        False  # leave samples whose probability underflows to 0 out of L_D, as the authors' code does
    )

    def __post_init__(self) -> None:
        require(self.embedding_dim > 0, "method.embedding_dim", self.embedding_dim, "must be positive")
        require(self.hidden_dim > 0, "method.hidden_dim", self.hidden_dim, "must be positive")
        require(self.hidden_layers >= 0, "method.hidden_layers", self.hidden_layers, "must not be negative")
        require(self.tau > 0, "method.tau", self.tau, "must be positive")
        require(self.lambda_s >= 0, "method.lambda_s", self.lambda_s, "must not be negative")


def embedding_init(key: jax.Array, inputs: int, outputs: int) -> dict[str, jax.Array]:
    """The embedding layer: kernel [inputs, outputs] ~ N(0, 2/outputs) (He, fan out), bias 0."""
    kernel = jax.random.normal(key, (inputs, outputs)) * (2 / outputs) ** 0.5
    return {"kernel": kernel, "bias": jnp.zeros(outputs)}


def embedding(params: dict[str, jax.Array], features: jax.Array, config: Config) -> jax.Array:
    """Feature map [B, h, w, K] -> embeddings [B, D]; not of unit length, the losses normalise where they need it."""
    x = heads.linear(params, heads.pool(features, config.pooling))
    return heads.layer_norm(x) if config.layer_norm else x


def distributions_init(key: jax.Array, classes: int, dim: int) -> dict[str, jax.Array]:
    """Means and log-variances [C, D] ~ N(0, 2/C) (He, fan out)."""
    means, log_vars = jax.random.normal(key, (2, classes, dim)) * (2 / classes) ** 0.5
    return {"means": means, "log_vars": log_vars}


def distances(params: dict[str, jax.Array], embeddings: jax.Array, kind: Distance) -> jax.Array:
    """d(i, c) between samples [N, D] and class distributions [C, D] -> [N, C], after L2 normalisation of both.

    The Mahalanobis distance is three matrix products: (x - mu)^2 p = x^2 p - 2 x mu p + mu^2 p with p = 1 / sigma2.
    """
    x, mu = unit(embeddings), unit(params["means"])
    product = lambda a, b: jnp.matmul(a, b.T, precision=jax.lax.Precision.HIGHEST)  # noqa: E731
    match kind:
        case "mahalanobis":
            log_vars = at_least_float32(params["log_vars"])
            inside = (log_vars > 0) & (log_vars < 6)  # no gradient at the ends either, unlike jax.nn.relu6
            precision = jnp.exp(-jnp.where(inside, log_vars, jnp.where(log_vars >= 6, 6.0, 0.0)))
            constant = jnp.sum(mu * mu * precision, axis=1)
            return product(x * x, precision) - 2 * product(x, mu * precision) + constant[None, :]
        case "euclidean":
            return 2 - 2 * product(x, mu)
        case "cosine":
            return 1 - product(x, mu)
        case "manhattan":
            return jnp.sum(jnp.abs(x[:, None, :] - mu[None, :, :]), axis=-1)  # fused with its sum by the compiler


def distribution_loss(d: jax.Array, labels: jax.Array, *, tau: float, drop_underflow: bool = False) -> jax.Array:
    """L_D: mean over the samples of -log softmax(-tau d)_y.

    Args:
      d: distances [N, C].
      labels: int [N].
      tau: scale.
      drop_underflow: leave out samples whose probability is 0 in d's precision, subnormal numbers included.
    """
    log_p = -optax.softmax_cross_entropy_with_integer_labels(-tau * d, labels)
    info = jnp.finfo(log_p.dtype)
    zero = (info.minexp - info.nmant - 1) * jnp.log(2.0)  # of p; by exp(log_p) it would depend on the device
    kept = log_p > zero if drop_underflow else jnp.ones_like(log_p, bool)
    return -jnp.sum(jnp.where(kept, log_p, 0)) / jnp.maximum(kept.sum(), 1)


def incidence(d: jax.Array, labels: jax.Array, *, alpha: float) -> tuple[jax.Array, jax.Array]:
    """Semantic tuplets with one column per sample instead of one per class in the batch.

    Columns of one class are equal; weighed by 1 / (their number) they act as the class's one hyperedge, and the shape
    is static.

    Returns:
      (H [N, N], weights [N] of its columns).
    """
    same = labels[:, None] == labels[None, :]
    near = jnp.exp(-alpha * jnp.take(d, labels, axis=1))
    return jnp.where(same, 1.0, near), 1.0 / same.sum(axis=0)


def propagation(h: jax.Array, weights: jax.Array) -> jax.Array:
    """G [N, N] from the incidence H [N, E] and the weights [E] of its hyperedges."""
    vertex = jax.lax.rsqrt(h @ weights)  # Dv^-1/2
    edge = weights / h.sum(axis=0)  # W De^-1
    scaled = h * vertex[:, None]
    return (scaled * edge[None, :]) @ scaled.T


def hgnn_init(key: jax.Array, config: Config, classes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(params, batch statistics) of the hypergraph network; hidden blocks are named block1, block2, …"""
    keys = jax.random.split(key, config.hidden_layers + 1)
    params: dict[str, Any] = {}
    stats: dict[str, Any] = {}
    width = config.embedding_dim
    for layer in range(config.hidden_layers):
        bn, stats[f"block{layer + 1}"] = heads.batch_norm_init(config.hidden_dim)
        params[f"block{layer + 1}"] = {
            "theta": heads.linear_init(keys[layer], width, config.hidden_dim),
            "bn": bn,
        }
        width = config.hidden_dim
    params["output"] = heads.linear_init(keys[-1], width, classes)
    return params, stats


def hgnn(params: Any, stats: Any, x: jax.Array, g: jax.Array, *, train: bool) -> tuple[jax.Array, Any]:
    """The hypergraph network: embeddings [N, D] and propagation [N, N] -> (logits [N, C], stats)."""
    updated = {}
    for layer in range(1, len(params)):
        block = params[f"block{layer}"]
        x = g @ heads.linear(block["theta"], x)
        x, updated[f"block{layer}"] = heads.batch_norm(block["bn"], stats[f"block{layer}"], x, train=train)
        x = jax.nn.leaky_relu(x, 0.1)
    return g @ heads.linear(params["output"], x), updated


def loss(
    params: Any, stats: Any, embeddings: jax.Array, labels: jax.Array, config: Config
) -> tuple[jax.Array, tuple[Any, dict[str, jax.Array]]]:
    """L = L_D + lambda_s L_CE of a batch.

    Args:
      params: "distributions" and "hgnn".
      stats: batch statistics of the hypergraph network.
      embeddings: float [N, D], as `embedding` gives them.
      labels: int [N], in 0..C-1.
      config: the options.

    Returns:
      (scalar, (stats, terms)).
    """
    embeddings = at_least_float32(embeddings)
    d = distances(params["distributions"], embeddings, config.distance)
    loss_d = distribution_loss(d, labels, tau=config.tau, drop_underflow=config.drop_underflow)
    g = propagation(*incidence(d, labels, alpha=config.alpha))
    logits, stats = hgnn(params["hgnn"], stats, embeddings, g, train=True)
    loss_ce = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss_d + config.lambda_s * loss_ce, (stats, {"loss_d": loss_d, "loss_ce": loss_ce})


def build(config: Config, backbone: Backbone, num_classes: int) -> Method:
    """HIST on a backbone, for `num_classes` training classes."""

    def init(key: jax.Array, batch: Batch) -> tuple[Any, Any]:
        keys = jax.random.split(key, 4)
        body, body_stats = backbone.init(keys[0], batch.images.shape[2:4])
        network, network_stats = hgnn_init(keys[3], config, num_classes)
        params = {
            "backbone": body,
            "embedding": embedding_init(keys[1], backbone.channels, config.embedding_dim),
            "distributions": distributions_init(keys[2], num_classes, config.embedding_dim),
            "hgnn": network,
        }
        return params, {"backbone": body_stats, "hgnn": network_stats}

    forward = heads.forward(backbone, lambda params, features: embedding(params["embedding"], features, config))

    def batch_loss(
        params: Any, state: Any, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, tuple[Any, dict[str, jax.Array]]]:
        embeddings, body = forward(params, state, batch.images[0], train=True, key=key)
        value, (network, terms) = loss(params, state["hgnn"], embeddings, batch.labels, config)
        return value, ({"backbone": body, "hgnn": network}, terms)

    def embed(params: Any, state: Any, images: jax.Array) -> jax.Array:
        return unit(forward(params, state, images, train=False)[0])

    return Method(init, batch_loss, embed, groups=GROUPS, group=lambda path: path[0])
