"""The self-supervised tasks that DiVA compares DaNCE with (Fig. 4), each in DaNCE's place.

    instance      Wu et al., CVPR 2018: each image is a class, its weight vector a memory of its embeddings (Eq. 2)
    spread        Ye et al., CVPR 2019: the batch's second views are recognised among the batch (Eq. 1, 2, 3)
    rotnet        Gidaris et al., ICLR 2018: by which quarter turn was the image rotated?
    deepcluster   Caron et al., ECCV 2018: which cluster of the training images does it belong to?

The paper cites the first as instance discrimination, the authors' code has the second. Their code lets RotNet guess the
rotation of images that were not rotated; here they are.

Second views and rotated images go through the network in a pass of their own, whose batch statistics are forgotten: the
other tasks see the same upright images, normalised in the same way, whichever task stands beside them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.errors import ConfigError
from dml_jax.evaluation import kmeans
from dml_jax.losses.classification import cross_entropy
from dml_jax.losses.norms import at_least_float32, unit
from dml_jax.methods import heads
from dml_jax.methods.contract import Batch
from dml_jax.methods.diva.options import Config, selfsupervised

TURNS = 4
ITERATIONS = 20  # of the k-means that makes DeepCluster's labels, as the authors have it


def instance_discrimination(
    embeddings: jax.Array, memory: jax.Array, index: jax.Array, temperature: float
) -> jax.Array:
    """-log exp(v_i f / t) / sum_n exp(v_n f / t) of each sample, over all N images instead of a draw of them -> [B].

    Args:
      embeddings: float [B, D], f of unit length.
      memory: float [N, D], v of unit length.
      index: int [B], rows of the memory.
      temperature: t, positive.
    """
    cosines = jnp.matmul(at_least_float32(embeddings), at_least_float32(memory).T, precision=lax.Precision.HIGHEST)
    return cross_entropy(cosines / temperature, index)


def remember(memory: jax.Array, embeddings: jax.Array, index: jax.Array, momentum: float) -> jax.Array:
    """The memory [N, D] with the rows `index` [B] moved towards embeddings [B, D]; the last of equals counts."""
    order = jnp.arange(1, len(index) + 1)
    last = jnp.argmax((index[:, None] == index[None, :]) * order[None, :], axis=1)
    moved = unit(momentum * memory[index] + (1 - momentum) * embeddings.astype(memory.dtype))
    return memory.at[index].set(moved[last])  # equal positions write the same row, in whichever order


def spread(first: jax.Array, second: jax.Array, temperature: float) -> jax.Array:
    """Each view recognises the other one, and is not taken for any other image of the batch.

    With P_ij the softmax over j != i of x_i x_j / t and x_k the other view of x_i, the loss is

        -log P_ik - sum_(j != k) log(1 - P_ij)

    Gradients flow through x_i only, as in the code of both papers.

    Args:
      first: float [B, D], of unit length.
      second: float [B, D], of the same images' second views.
      temperature: t, positive.

    Returns:
      [2B], of the first views, then the second.
    """
    views = jnp.concatenate([at_least_float32(first), at_least_float32(second)])
    count = len(views)
    own = jnp.eye(count, dtype=bool)
    other = jnp.roll(own, count // 2, axis=1)
    logits = jnp.matmul(views, lax.stop_gradient(views).T, precision=lax.Precision.HIGHEST) / temperature
    logits = jax.nn.log_softmax(jnp.where(own, -jnp.inf, logits), axis=1)
    # Near 1 the probability of a wrong image is cut where its complement would round to 0.
    wrong = jnp.minimum(jnp.exp(logits), 1 - jnp.finfo(logits.dtype).eps)
    return jnp.sum(jnp.where(other, -logits, -jnp.log1p(-wrong)), axis=1)


def rotate(images: jax.Array, turns: jax.Array) -> jax.Array:
    """Square images [B, H, H, 3], each by its number of quarter turns [B], counter-clockwise."""
    turned = jnp.stack([jnp.rot90(images, turn, axes=(1, 2)) for turn in range(TURNS)])
    return turned[turns, jnp.arange(len(images))]


def check_square(height: int, width: int) -> None:
    """Raises ConfigError unless quarter turns leave the shape of an image as it is."""
    if height != width:
        raise ConfigError(
            f"method.selfsimilarity='rotnet': quarter turns need square images, these are {width}x{height}; set "
            "data.crop"
        )


def classifier_init(key: jax.Array, features: int, clusters: int) -> dict[str, jax.Array]:
    """DeepCluster's classifier, drawn anew for each clustering: kernel [features, clusters], no bias."""
    return {"kernel": jax.random.normal(key, (features, clusters)) / features}


def principal(features: np.ndarray, dim: int) -> np.ndarray:
    """Features [N, K] along their `dim` directions of largest variance, centred -> [N, min(dim, K)]."""
    centred = features - features.mean(axis=0)
    _, axes = np.linalg.eigh((centred.T @ centred).astype(np.float64))
    return centred @ axes[:, ::-1][:, :dim].astype(centred.dtype)


def recluster(params: Any, state: Any, features: np.ndarray, key: jax.Array, config: Config) -> tuple[Any, Any]:
    """(params, state) with DeepCluster's labels found anew, and a new classifier for them.

    Args:
      params, state: of the method.
      features: float [N, K] of the training images, of the backbone.
      key: draws the first centres and the classifier.
      config: number of clusters; `embedding_dim` is that of the space they are found in.
    """
    key_centres, key_classifier = jax.random.split(key)
    seed = int(jax.random.randint(key_centres, (), 0, np.iinfo(np.int32).max))
    points = principal(features, config.embedding_dim)
    found = kmeans.fit(points, config.clusters, init="random", seed=seed, max_iterations=ITERATIONS)
    classifier = classifier_init(key_classifier, features.shape[1], config.clusters)
    return {**params, "classifier": classifier}, {**state, "clusters": jnp.asarray(found.assignments, jnp.int32)}


def init(key: jax.Array, config: Config, channels: int, num_images: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(params, state) of the self-supervised task, on features of `channels` numbers; empty where it needs none."""
    match selfsupervised(config):
        case "instance":
            return {}, {"memory": unit(jax.random.normal(key, (num_images, config.embedding_dim)))}
        case "rotnet":
            return {"classifier": {"kernel": heads.linear_init(key, channels, TURNS)["kernel"]}}, {}
        case "deepcluster":
            classifier = classifier_init(key, channels, config.clusters)
            return {"classifier": classifier}, {"clusters": jnp.zeros(num_images, jnp.int32)}
        case _:
            return {}, {}


def loss(
    params: Any,
    state: Any,
    batch: Batch,
    pooled: jax.Array,
    look: Callable[[jax.Array], jax.Array],
    key: jax.Array,
    config: Config,
) -> tuple[jax.Array, Any]:
    """The task's loss on a batch.

    Args:
      params: of the method.
      state: of the method.
      batch: two views for "spread".
      pooled: float [B, K], features of the first views.
      look: further images [B, H, W, 3] -> their features [B, K].
      key: draws the rotations, as many of each.
      config: the options; the task is none of "contrast" and "".

    Returns:
      (scalar, state).
    """

    def embedding(pooled: jax.Array) -> jax.Array:
        return unit(heads.linear(params["heads"]["selfsimilarity"], pooled))

    match selfsupervised(config):
        case "instance":
            own = embedding(pooled)
            value = instance_discrimination(own, state["memory"], batch.index, config.instance_temperature)
            memory = remember(state["memory"], lax.stop_gradient(own), batch.index, config.memory_momentum)
            return value.mean(), {**state, "memory": memory}
        case "spread":
            second = embedding(look(batch.images[1]))
            return spread(embedding(pooled), second, config.instance_temperature).mean(), state
        case "rotnet":
            turns = jax.random.permutation(key, jnp.arange(len(batch.labels)) % TURNS)
            pooled, labels = look(rotate(batch.images[0], turns)), turns
        case _:
            labels = state["clusters"][batch.index]
    return cross_entropy(heads.linear(params["classifier"], pooled), labels).mean(), state
