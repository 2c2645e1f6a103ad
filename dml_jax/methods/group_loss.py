"""The Group Loss (Elezi, Vascon, Torcinovich, Pelillo, Leal-Taixé, ECCV 2020).

The class probabilities of each image in a batch are refined with those of similar images. Training
the refined probabilities to be correct makes images similar if, and only if, they share a class.
A few images per class are anchors, whose labels are revealed. With embeddings f_i, probabilities
X [n, C] and similarities W [n, n]:

    g_i       = f_i - mean f_i,   W_ij = max(0, g_i . g_j / (|g_i| |g_j|))     Pearson
    X(0)_i    = one-hot of y_i for an anchor, else softmax(logits_i / T)       priors
    Pi(t)     = W X(t)                                                         support
    X(t+1)_ic = X(t)_ic Pi(t)_ic / sum_k X(t)_ik Pi(t)_ik                      replicator
    L         = -mean_i log X(t_end)_{i, y_i} + mean_i CE(logits_i, y_i)

The mean in g is over the dimensions of one embedding. As in the authors' code (dvl-tum/group_loss),
W keeps its diagonal of ones; the mean includes anchors, whose loss is 0; the classifier's
cross-entropy, without T, is added; and the first images of each class in the batch are its anchors.
Unlike that code, which adds 1e-12 to the final probabilities, the dynamics are computed in the log
domain.

At test time, only the embedding is used; for the authors, the pooled features of BN-Inception
(`embedding_dim=0`). R@1 on CUB, Cars196, SOP: 65.5, 85.6, 75.1; NMI: 69.0, 72.7, 90.8 (1,024-d, as
quoted by Seidenschwarz et al., ICML 2021).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from dml_jax.backbones import functional
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import Dense, Pooling
from dml_jax.config.fields import NonNegativeInt, Positive, PositiveInt, Rules, section
from dml_jax.config.sections import WITHOUT_CLASSES
from dml_jax.losses import pairwise
from dml_jax.losses.classification import cross_entropy
from dml_jax.methods import heads
from dml_jax.methods.contract import Aux, Batch, Hooks, Method, PyTree, TrainingSet
from dml_jax.numerics import at_least_float32, unit

GROUPS = ("backbone", "embedding", "classifier")  # parameter groups


@section
class Config:
    """Options of the Group Loss, with the defaults of the authors' CUB run.

    Attributes:
      name: Module of dml_jax/methods, or an import path.
      embedding_dim: Length of the embeddings, from a linear layer on the pooled features; 0: no
        layer.
      pooling: Pooling of the feature map.
      anchors: Images per class whose labels are revealed; fewer than data.images_per_class.
      iterations: Number t_end of iterations; 1 in the authors' code.
      temperature: T, which divides the logits in the priors.
      weight: Weight of the group loss; the cross-entropy has weight 1.
    """

    name: str = "group_loss"
    embedding_dim: NonNegativeInt = 0
    pooling: Pooling = "avg"
    anchors: NonNegativeInt = 2
    iterations: PositiveInt = 1
    temperature: Positive = 24.0
    weight: Positive = 1.0

    def doubtful(self, config: Any) -> Rules:
        """The group loss needs images that are not anchors; see `config.fields.doubtful`."""
        images = config.data.images_per_class
        has_others = config.data.sampler in WITHOUT_CLASSES or self.anchors < images
        problem = "leaves only the cross-entropy, because all images are anchors"
        remedy = f"set it below data.images_per_class={images}"
        return ((has_others, f"{problem}; {remedy}", "anchors"),)


FLOOR = 1e-30  # lower bound of the support, which is 0 if an embedding is constant


def similarity(embeddings: Array) -> Array:
    """W [N, N]: Pearson correlations of embeddings [N, D], with negative values set to 0."""
    x = at_least_float32(embeddings)
    x = unit(x - x.mean(axis=1, keepdims=True))
    return jax.nn.relu(pairwise.inner_products(x, x))


def anchor_mask(labels: Array, count: int) -> Array:
    """Marks the first `count` images of each class: labels int [N] -> bool [N]."""
    rank = jnp.tril(pairwise.same_class(labels), -1).sum(axis=1)
    return rank < count


def replicator_dynamics(
    log_p: Array, w: Array, labels: Array, anchors: Array, iterations: int
) -> Array:
    """log X(t_end) [N, C] from log X(0) [N, C]; logarithms keep gradients of small values.

    `w` is W [N, N], not negative; `anchors` is bool [N]. The labels of anchors replace their rows,
    which are undefined in the result. A row without support keeps its priors.
    """
    one_hot = jax.nn.one_hot(labels, log_p.shape[1], dtype=log_p.dtype)
    for _ in range(iterations):
        x = jnp.where(anchors[:, None], one_hot, jnp.exp(log_p))
        support = jnp.matmul(w, x, precision=jax.lax.Precision.HIGHEST)
        log_p = jax.nn.log_softmax(log_p + jnp.log(jnp.maximum(support, FLOOR)), axis=1)
    return log_p


def group_loss(logits: Array, embeddings: Array, labels: Array, config: Config) -> Array:
    """-log X(t_end)_{i, y_i} [N] from logits [N, C] and f [N, D]; 0 for an anchor."""
    anchors = anchor_mask(labels, config.anchors)
    log_p = jax.nn.log_softmax(at_least_float32(logits) / config.temperature, axis=1)
    log_p = replicator_dynamics(log_p, similarity(embeddings), labels, anchors, config.iterations)
    return jnp.where(anchors, 0, -jnp.take_along_axis(log_p, labels[:, None], axis=1)[:, 0])


def build(config: Config, backbone: Backbone, data: TrainingSet) -> Method:
    """The Group Loss on a backbone; needs at least two training classes."""
    data.check_classes(2, "method.name='group_loss'")
    embedding = heads.Embedding(config.embedding_dim, config.pooling)
    classifier = Dense(data.classes)

    def init(key: Array, batch: Batch) -> tuple[PyTree, PyTree]:
        keys = jax.random.split(key, 3)
        params, model_state = heads.init(backbone, embedding, keys, batch)
        x = functional.struct(1, config.embedding_dim or backbone.channels)
        params["classifier"], _ = functional.init(classifier, keys[2], x)
        return params, model_state

    encode = heads.encoder(backbone, embedding)

    def loss(
        params: PyTree, model_state: PyTree, encoded: Array, batch: Batch, step: Array, key: Array
    ) -> tuple[Array, Aux]:
        logits: PyTree = classifier.apply({"params": params["classifier"]}, encoded)
        group = group_loss(logits, encoded, batch.labels, config).mean()
        classification = cross_entropy(logits, batch.labels).mean()
        terms = {"group": group, "classification": classification}
        return config.weight * group + classification, Aux(model_state, terms)

    hooks = Hooks(teach=heads.teach_by(classifier, "classifier"))
    return Method(init, encode, loss, heads.unit_embed(encode), GROUPS, hooks=hooks)
