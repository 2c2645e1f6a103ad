"""The self-supervised tasks that Figure 4 of DiVA (Milbich, Roth et al., ECCV 2020) has in place of
DaNCE, each a method beside the discriminative task; rows of the study:

    dml-jax study --study=diva:self_supervision-cub

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

from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import Dtype
from jax import Array, lax

from dml_jax.backbones import functional
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import Dense, normal
from dml_jax.config.fields import NonNegative, section
from dml_jax.errors import ConfigError
from dml_jax.evaluation import kmeans
from dml_jax.losses.classification import cross_entropy
from dml_jax.losses.pairwise import inner_products
from dml_jax.methods import diva, heads
from dml_jax.methods.contract import Aux, Batch, Hooks, Method, PyTree, Refresh, TrainingSet
from dml_jax.methods.diva.method import Heads
from dml_jax.numerics import at_least_float32, unit

SelfSupervised = Literal["instance", "spread", "rotnet", "deepcluster"]
Tasks = tuple[Literal["discriminative"], SelfSupervised]
CLASSIFIERS = ("rotnet", "deepcluster")  # classify the backbone's features and have no embedding
TURNS = 4
# The values of the authors' code.
TEMPERATURE = 0.1  # "instance" and "spread"
MEMORY_MOMENTUM = 0.5  # "instance"
# "deepcluster"; epochs between two clusterings.
CLUSTERS, CLUSTER_EPOCHS, KMEANS_ITERATIONS = 300, 2, 20


@section
class Config(diva.Config):
    """Options of DiVA without its auxiliary tasks.

    Attributes:
      tasks: The discriminative task, and a self-supervised one.
      alpha_selfsimilarity: Weight of the self-supervised loss.
    """

    name: str = "benchmarks.papers.diva"
    tasks: Tasks = ("discriminative", "instance")  # type: ignore[assignment]
    directions: tuple[str, ...] = ()
    alpha_selfsimilarity: NonNegative = 1.0


class Encoded(NamedTuple):
    """Outputs of `Method.encode`, one row per image; each optional one trains a single task."""

    base: Any  # of the discriminative task: pooled features [B, K] and embeddings
    own: Array | None = None  # float [B, D] of unit length; None for classifiers
    second_views: Array | None = None  # "spread": float [B, D], embeddings of the second views
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


def classifier(task: str) -> Dense:
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


def build(config: Config, backbone: Backbone, data: TrainingSet) -> Method:
    """The discriminative task of DiVA and a self-supervised one; see `diva.build`."""
    task, classifies = config.tasks[1], config.tasks[1] in CLASSIFIERS
    options = asdict(config) | {"name": "diva", "tasks": ("discriminative",)}
    base = diva.build(diva.Config(**options), backbone, data)
    head = Heads((task,), config.embedding_dim)
    pool = heads.encoder(backbone, heads.Embedding(0, "avg"))

    def embedded(params: PyTree, features: Array) -> Array:
        return functional.apply(head, params["heads"], {}, features)[0][task]

    def init(key: Array, batch: Batch) -> tuple[PyTree, PyTree]:
        height, width = batch.images.shape[2:4]
        if task == "rotnet" and height != width:
            problem = f"needs square images, but these are {width}x{height}; set data.crop"
            raise ConfigError(f"method.tasks: rotation by quarter turns {problem}")
        keys, x = jax.random.split(key), functional.struct(1, backbone.channels)
        params, state = base.init(keys[0], batch)
        if classifies:
            params["classifier"], _ = functional.init(classifier(task), keys[1], x)
        else:
            params["heads"] = {**params["heads"], **functional.init(head, keys[1], x)[0]}
        match task:
            case "instance":
                drawn = jax.random.normal(keys[1], (data.images, config.embedding_dim))
                state = {**state, "memory": unit(drawn)}
            case "deepcluster":
                state = {**state, "clusters": jnp.zeros(data.images, jnp.int32)}
        return params, state

    def encode(
        params: PyTree, model_state: PyTree, images: Array, *, train: bool, key: Array | None = None
    ) -> tuple[Encoded, PyTree]:
        keys = [None] * 3 if key is None else jax.random.split(key, 3)
        first, state = base.encode(params, model_state, images, train=train, key=keys[0])
        encoded = Encoded(first, None if classifies else embedded(params, first.features))

        def second_pass(images: Array) -> Array:
            """Features of other images, which leave the batch statistics unchanged."""
            return pool(params, model_state, images[None], train=True, key=keys[1])[0]

        match task:
            case "spread" if train:
                views = embedded(params, second_pass(images[1]))
                encoded = encoded._replace(second_views=views)
            case "rotnet" if train:
                turns = random_turns(keys[2], images.shape[1])
                rotated = second_pass(rotate(images[0], turns))
                encoded = encoded._replace(rotated=rotated, turns=turns)
        return encoded, state

    def loss(
        params: PyTree, model_state: PyTree, encoded: Encoded, batch: Batch, step: Array, key: Array
    ) -> tuple[Array, Aux]:
        value, aux = base.loss(params, model_state, encoded.base, batch, step, key)
        state: Any = aux.model_state
        match task:
            case "instance":
                losses = instance_discrimination(
                    encoded.own, state["memory"], batch.index, TEMPERATURE
                )
                rows = lax.stop_gradient(encoded.own)
                memory = update_memory(state["memory"], rows, batch.index, MEMORY_MOMENTUM)
                state = {**state, "memory": memory}
            case "spread":
                losses = spread(encoded.own, encoded.second_views, TEMPERATURE)
            case "rotnet":
                losses = cross_entropy(classified(params, encoded.rotated), encoded.turns)
            case "deepcluster":
                clusters = state["clusters"][batch.index]
                losses = cross_entropy(classified(params, encoded.base.features), clusters)
        term = losses.mean()
        terms = {**aux.metrics, "selfsimilarity": term}
        return value + config.alpha_selfsimilarity * term, Aux(state, terms)

    def classified(params: PyTree, features: Array) -> Array:
        return functional.apply(classifier(task), params["classifier"], {}, features)[0]

    def embed(params: PyTree, model_state: PyTree, images: Array) -> Array:
        encoded, _ = encode(params, model_state, images[None], train=False)
        discriminative = encoded.base.embeddings["discriminative"]
        if classifies:
            return discriminative
        weights = config.ensemble
        return unit(jnp.concatenate([weights[0] * discriminative, weights[1] * encoded.own], 1))

    def features(params: PyTree, model_state: PyTree, images: Array) -> Array:
        return pool(params, model_state, images[None], train=False)[0]

    def update(params: PyTree, model_state: PyTree, rows: np.ndarray, key: Array) -> Any:
        return recluster(params, model_state, rows, key, config)

    hooks = Hooks(
        refresh=Refresh(CLUSTER_EPOCHS, features, update) if task == "deepcluster" else None,
        views=2 if task == "spread" else 1,
        history=("memory", "clusters"),
    )
    groups = (*diva.GROUPS, *(["classifier"] if classifies else []))

    def group(path: tuple[str, ...]) -> str:
        return path[0] if path[0] in groups else "embedding"

    return Method(init, encode, loss, embed, groups, group, hooks=hooks)
