"""The self-supervised tasks that the paper's Figure 4 uses in place of DaNCE.

    instance      Wu et al., CVPR 2018: every image is a class, with a memory of embeddings (Eq. 2)
    spread        Ye et al., CVPR 2019: matches two views of each image of a batch (Eq. 1, 2, 3)
    rotnet        Gidaris et al., ICLR 2018: predicts the quarter turns of a rotated image
    deepcluster   Caron et al., ECCV 2018: predicts the k-means cluster of an image

For instance discrimination the paper cites the first, while the authors' code implements the
second. Their RotNet predicts rotations of images that were never rotated; here the images are
rotated.

Second views and rotated images have a separate forward pass, which does not update the running
batch statistics: the other tasks see the same upright images with the same normalisation, whichever
self-supervised task is used.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Dtype
from jax import Array, lax

from dml_jax.backbones import functional
from dml_jax.backbones.layers import Dense, normal
from dml_jax.evaluation import kmeans
from dml_jax.losses.classification import cross_entropy
from dml_jax.losses.pairwise import inner_products
from dml_jax.methods.contract import PyTree
from dml_jax.methods.diva.options import (
    CLASSIFIERS,
    Config,
    Figure4Task,
    SelfSupervision,
    self_supervised_task,
)
from dml_jax.numerics import at_least_float32, unit

TURNS = 4
# The values of the authors' code.
TEMPERATURE = 0.1  # "instance" and "spread"
MEMORY_MOMENTUM = 0.5  # "instance"
# "deepcluster"; epochs between two clusterings.
CLUSTERS, CLUSTER_EPOCHS, KMEANS_ITERATIONS = 300, 2, 20


class Encoded(NamedTuple):
    """Outputs of `Method.encode`, one row per image; each optional one trains a single task."""

    features: Array  # float [B, K], pooled features of the first views
    embeddings: dict[str, Array]  # float [B, D] of unit length by task, of the first views
    # DaNCE: float [B, D] of unit length, embeddings of the second views by the key network.
    keys: Array | None = None
    # "spread": float [B, D] of unit length, selfsimilarity embeddings of the second views.
    second_views: Array | None = None
    rotated: Array | None = None  # "rotnet": float [B, K], features of the rotated first views
    turns: Array | None = None  # "rotnet": int [B], quarter turns of each image


def instance_discrimination(
    embeddings: Array, memory: Array, index: Array, temperature: float
) -> Array:
    """-log exp(v_i f / t) / sum_n exp(v_n f / t) of each sample, float [B], over all N images n.

    f are embeddings [B, D], v the memory [N, D], of unit length; `index` [B] are rows of v.
    """
    cosines = inner_products(at_least_float32(embeddings), at_least_float32(memory))
    return cross_entropy(cosines / temperature, index)


def update_memory(memory: Array, embeddings: Array, index: Array, momentum: float) -> Array:
    """The memory [N, D] after embeddings [B, D] of rows `index` [B]: averages of unit length.

    If several samples have one row, the last one counts.
    """
    order = jnp.arange(1, len(index) + 1)
    last = jnp.argmax((index[:, None] == index[None, :]) * order[None, :], axis=1)
    moved = unit(momentum * memory[index] + (1 - momentum) * embeddings.astype(memory.dtype))
    # Repeated rows get equal values: the order of writes does not matter.
    return memory.at[index].set(moved[last])


def spread(first: Array, second: Array, temperature: float) -> Array:
    """Instance discrimination within a batch, by matching the two views of each image.

    With P_ij the softmax over j != i of x_i x_j / t, and x_k the other view of the image of x_i,
    the loss is

        -log P_ik - sum_(j != k) log(1 - P_ij)

    The gradient flows through x_i only, as in the code of both papers. Two views [B, D] of unit
    length -> [2B], first for the first views, then for the second.
    """
    views = jnp.concatenate([at_least_float32(first), at_least_float32(second)])
    count = len(views)
    itself = jnp.eye(count, dtype=bool)
    other = jnp.roll(itself, count // 2, axis=1)
    logits = inner_products(views, lax.stop_gradient(views)) / temperature
    logits = jax.nn.log_softmax(jnp.where(itself, -jnp.inf, logits), axis=1)
    # Bounded so that 1 - P does not round to 0.
    wrong = jnp.minimum(jnp.exp(logits), 1 - jnp.finfo(logits.dtype).eps)
    return jnp.sum(jnp.where(other, -logits, -jnp.log1p(-wrong)), axis=1)


def random_turns(key: Array, count: int) -> Array:
    """Random quarter turns int [count]: each of 0 to 3 equally often, up to one."""
    return jax.random.permutation(key, jnp.arange(count) % TURNS)


def rotate(images: Array, turns: Array) -> Array:
    """Rotates square images [B, H, H, 3] counter-clockwise by `turns` [B] quarter turns."""
    turned = jnp.stack([jnp.rot90(images, turn, axes=(1, 2)) for turn in range(TURNS)])
    return turned[turns, jnp.arange(len(images))]


def normal_inverse_fan_in(key: Array, shape: tuple[int, ...], dtype: Dtype = jnp.float32) -> Array:
    """N(0, 1 / inputs^2) for a kernel [inputs, outputs], as for DeepCluster's classifier."""
    return normal(key, shape, 1 / shape[0]).astype(dtype)


def classifier(task: SelfSupervision | None) -> Dense:
    """Features [B, K] -> logits of the turns [B, 4] or of the clusters [B, CLUSTERS]."""
    if task == "rotnet":
        return Dense(TURNS, use_bias=False)
    return Dense(CLUSTERS, use_bias=False, kernel_init=normal_inverse_fan_in)


def principal_components(features: np.ndarray, dim: int) -> np.ndarray:
    """The first `dim` principal components of features [N, K] -> [N, min(dim, K)]."""
    centred = features - features.mean(axis=0)
    _, axes = np.linalg.eigh((centred.T @ centred).astype(np.float64))
    return centred @ axes[:, ::-1][:, :dim].astype(centred.dtype)


def recluster(
    params: PyTree, model_state: PyTree, features: np.ndarray, key: Array, config: Config
) -> tuple[PyTree, PyTree]:
    """(params, model_state) with new cluster labels and a re-initialised classifier.

    Clusters come from the first `embedding_dim` principal components of the features [N, K] of all
    training images.
    """
    key_centres, key_classifier = jax.random.split(key)
    seed = int(jax.random.randint(key_centres, (), 0, np.iinfo(np.int32).max))
    points = principal_components(features, config.embedding_dim)
    rounds = KMEANS_ITERATIONS
    found = kmeans.fit(points, CLUSTERS, init="random", seed=seed, max_iterations=rounds)
    clusters = jnp.asarray(found.assignments, jnp.int32)
    x = functional.struct(1, features.shape[1])
    layer, _ = functional.init(classifier("deepcluster"), key_classifier, x)
    return {**params, "classifier": layer}, {**model_state, "clusters": clusters}


def init(
    key: Array, config: Config, channels: int, images: int
) -> tuple[dict[str, PyTree], dict[str, PyTree]]:
    """(params, model_state) of the task, for K = `channels` features and N = `images`."""
    task, x, params = self_supervised_task(config), functional.struct(1, channels), {}
    if task in CLASSIFIERS:
        params["classifier"], _ = functional.init(classifier(task), key, x)
    match task:
        case "instance":
            return params, {"memory": unit(jax.random.normal(key, (images, config.embedding_dim)))}
        case "deepcluster":
            return params, {"clusters": jnp.zeros(images, jnp.int32)}
    return params, {}


def loss(
    task: Figure4Task, params: PyTree, model_state: PyTree, encoded: Encoded, index: Array
) -> tuple[Array, PyTree]:
    """(loss, model_state) of the task on a batch with the positions `index` [B] in the training
    split."""
    match task:
        case "instance":
            x = encoded.embeddings["selfsimilarity"]
            losses = instance_discrimination(x, model_state["memory"], index, TEMPERATURE)
            rows = lax.stop_gradient(x)
            memory = update_memory(model_state["memory"], rows, index, MEMORY_MOMENTUM)
            model_state = {**model_state, "memory": memory}
        case "spread":
            assert encoded.second_views is not None
            losses = spread(encoded.embeddings["selfsimilarity"], encoded.second_views, TEMPERATURE)
        case "rotnet":
            assert encoded.rotated is not None
            assert encoded.turns is not None
            x, layer = encoded.rotated, params["classifier"]
            logits, _ = functional.apply(classifier(task), layer, {}, x)
            losses = cross_entropy(logits, encoded.turns)
        case "deepcluster":
            x, layer = encoded.features, params["classifier"]
            logits, _ = functional.apply(classifier(task), layer, {}, x)
            losses = cross_entropy(logits, model_state["clusters"][index])
    return losses.mean(), model_state
