"""The Group Loss (Elezi, Vascon, Torcinovich, Pelillo, Leal-Taixé, ECCV 2020).

A classifier's guesses for the images of a batch are refined by those of similar images, and the refined guesses must be
right: images of one class, and of one class alone, have to be similar. A few images a class are anchors, whose labels
are given. With f(x_i) the embedding, X [n, C] the probabilities and W [n, n] the similarities:

    W_ij      = max(0, (f_i - mean f_i) . (f_j - mean f_j) / (|f_i - mean f_i| |f_j - mean f_j|))     Pearson
    X(0)_i    = one-hot of y_i for an anchor, else softmax(logits_i / T)                              priors
    Pi(t)     = W X(t)                                                                                support
    X(t+1)_ic = X(t)_ic Pi(t)_ic / sum_k X(t)_ik Pi(t)_ik                                             replicator
    L         = -mean_i log X(t_end)_{i, y_i} + mean_i CE(logits_i, y_i)

The means in W are over the dimensions of one embedding. As in the authors' code (dvl-tum/group_loss): W keeps its
diagonal of ones; anchors, which the dynamics cannot change and whose loss is 0, count in the mean; the classifier's
cross-entropy is added, its logits not divided by T; the first images of a class in the batch are its anchors. Here the
dynamics run in logarithms, where the code adds 1e-12 to the last probabilities.

At test time the embedding is used alone. The authors embed by BN-Inception's pooled features, which `embedding_dim=0`
stands for. R@1 on CUB, Cars196, SOP: 65.5, 85.6, 75.1, NMI 69.0, 72.7, 90.8 (1,024-d, as quoted by Seidenschwarz et
al., ICML 2021).
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dml_jax.backbones.contract import Backbone
from dml_jax.config_schema import require
from dml_jax.errors import ConfigError
from dml_jax.losses import pairs
from dml_jax.losses.classification import cross_entropy
from dml_jax.losses.norms import at_least_float32, unit
from dml_jax.methods import heads
from dml_jax.methods.contract import Batch, Method, Teaching

GROUPS = ("backbone", "embedding", "classifier")
FLOOR = 1e-30  # of the support, which is 0 where an embedding has no direction


@dataclass(frozen=True)
class Config:
    """Options of the Group Loss; the defaults are those of the authors' CUB run."""

    name: str = "group_loss"
    embedding_dim: int = 0  # of a linear layer after the pooling; 0: none, the pooled features are the embedding
    pooling: heads.Pooling = "avg"
    anchors: int = 2  # images of each class whose label is given; where all are, only cross-entropy is left
    iterations: int = 1  # of the replicator dynamics; the authors' code has 1
    temperature: float = 24.0  # T, divides the logits in the priors
    weight: float = 1.0  # of the loss after the propagation beside the classifier's cross-entropy

    def __post_init__(self) -> None:
        require(self.embedding_dim >= 0, "method.embedding_dim", self.embedding_dim, "must not be negative")
        require(self.anchors >= 0, "method.anchors", self.anchors, "must not be negative")
        require(self.iterations >= 0, "method.iterations", self.iterations, "must not be negative")
        require(self.temperature > 0, "method.temperature", self.temperature, "must be positive")
        require(self.weight >= 0, "method.weight", self.weight, "must not be negative")


def similarity(embeddings: jax.Array) -> jax.Array:
    """Pearson's correlations of embeddings [N, D] with negative ones set to 0 -> W [N, N]."""
    x = at_least_float32(embeddings)
    x = unit(x - x.mean(axis=1, keepdims=True))
    return jax.nn.relu(pairs.products(x, x))


def anchored(labels: jax.Array, count: int) -> jax.Array:
    """labels [N] -> bool [N]: the first `count` images of each class."""
    before = jnp.tril(pairs.same_class(labels), -1).sum(axis=1)
    return before < count


def propagate(log_p: jax.Array, w: jax.Array, labels: jax.Array, anchors: jax.Array, iterations: int) -> jax.Array:
    """The replicator dynamics, in logarithms, so that a probability near 0 keeps its gradient.

    Args:
      log_p: float [N, C], logarithms of the priors of all images, summing to 1 a row after exp.
      w: similarities [N, N], not negative.
      labels: int [N], in 0..C-1.
      anchors: bool [N]; the dynamics leave a one-hot row as it is, so that theirs is put back before each iteration.
      iterations: how often.

    Returns:
      log X(t_end) [N, C], of which the anchors' rows mean nothing. A row that nothing supports keeps its priors.
    """
    known = jax.nn.one_hot(labels, log_p.shape[1], dtype=log_p.dtype)
    for _ in range(iterations):
        x = jnp.where(anchors[:, None], known, jnp.exp(log_p))
        support = jnp.matmul(w, x, precision=jax.lax.Precision.HIGHEST)
        log_p = jax.nn.log_softmax(log_p + jnp.log(jnp.maximum(support, FLOOR)), axis=1)
    return log_p


def group_loss(logits: jax.Array, embeddings: jax.Array, labels: jax.Array, config: Config) -> jax.Array:
    """-log X(t_end)_{i, y_i} of each image; 0 for an anchor.

    Args:
      logits: float [N, C], of the classifier.
      embeddings: float [N, D].
      labels: int [N], in 0..C-1.
      config: the options.

    Returns:
      float [N].
    """
    anchors = anchored(labels, config.anchors)
    log_p = jax.nn.log_softmax(at_least_float32(logits) / config.temperature, axis=1)
    log_p = propagate(log_p, similarity(embeddings), labels, anchors, config.iterations)
    return jnp.where(anchors, 0, -jnp.take_along_axis(log_p, labels[:, None], axis=1)[:, 0])


def build(config: Config, backbone: Backbone, num_classes: int) -> Method:
    """The Group Loss on a backbone, for `num_classes` training classes.

    Raises:
      ConfigError: fewer than two training classes.
    """
    if num_classes < 2:
        raise ConfigError(f"method.name=group_loss: needs two training classes, the data has {num_classes}")
    dim = config.embedding_dim or backbone.channels

    def init(key: jax.Array, batch: Batch) -> tuple[Any, Any]:
        keys = jax.random.split(key, 3)
        body, stats = backbone.init(keys[0], batch.images.shape[2:4])
        params = {"backbone": body, "classifier": heads.linear_init(keys[1], dim, num_classes)}
        if config.embedding_dim:
            params["embedding"] = heads.linear_init(keys[2], backbone.channels, dim)
        return params, {"backbone": stats}

    def head(params: Any, features: jax.Array) -> jax.Array:
        x = heads.pool(features, config.pooling)
        return heads.linear(params["embedding"], x) if config.embedding_dim else x

    forward = heads.forward(backbone, head)

    def loss(params: Any, state: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, tuple[Any, dict[str, Any]]]:
        x, stats = forward(params, state, batch.images[0], train=True, key=key)
        logits = heads.linear(params["classifier"], x)
        group = group_loss(logits, x, batch.labels, config).mean()
        classification = cross_entropy(logits, batch.labels).mean()
        terms = {"group": group, "classification": classification}
        return config.weight * group + classification, ({"backbone": stats}, terms)

    def embed(params: Any, state: Any, images: jax.Array) -> jax.Array:
        return unit(forward(params, state, images, train=False)[0])

    def teach(params: Any, state: Any, images: jax.Array) -> Teaching:
        x, _ = forward(params, state, images, train=False)
        return Teaching(unit(x), heads.linear(params["classifier"], x))

    return Method(init, loss, embed, GROUPS, lambda path: path[0], teach=teach)
