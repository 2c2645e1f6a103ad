"""DiVA as a `Method`."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax.backbones import functional
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import Dense
from dml_jax.errors import DataError
from dml_jax.losses.cross_batch_memory import enqueue
from dml_jax.losses.mining import Triplets
from dml_jax.methods import heads
from dml_jax.methods.contract import Aux, Batch, Hooks, Method, PyTree, TrainingSet
from dml_jax.methods.diva import equations
from dml_jax.methods.diva.options import (
    GROUPS,
    Config,
    embedding_tasks,
    is_contrastive,
    ranking_tasks,
    weighted_parts,
)
from dml_jax.numerics import unit

AVERAGED = ("backbone", "heads")  # subtrees of the parameters that the key network averages
Miner = Callable[[Array, dict[str, Array], Batch], dict[str, Triplets]]


class Encoded(NamedTuple):
    """Outputs of `Method.encode`, one row per image."""

    features: Array  # float [B, K], pooled features of the first views
    embeddings: dict[str, Array]  # float [B, D] of unit length by task, of the first views
    # DaNCE: float [B, D] of unit length, embeddings of the second views by the key network.
    keys: Array | None = None


class Heads(nn.Module):
    """The embedding layer of each task."""

    tasks: Sequence[str]
    dim: int

    @nn.compact
    def __call__(self, features: Array) -> dict[str, Array]:
        """Pooled features [B, K] -> embeddings [B, dim] of unit length by task."""
        return {task: unit(Dense(self.dim, name=task)(features)) for task in self.tasks}


def moving_average(average: PyTree, params: PyTree, momentum: float) -> PyTree:
    """momentum * average + (1 - momentum) * params."""
    return jax.tree.map(lambda a, p: momentum * a + (1 - momentum) * p, average, params)


def build(
    config: Config, backbone: Backbone, data: TrainingSet, *, miner: Miner | None = None
) -> Method:
    """DiVA on the average-pooled feature map of a backbone.

    The key network is a momentum copy of the network, and its outputs are queued as negatives
    (MoCo; He, Fan, Wu, Xie, Girshick, CVPR 2020). Both are part of the model state: "key", whose
    parameters are a moving average of the trained parameters, and "queue", float [K, D], its last K
    outputs. The key network runs in evaluation mode with the backbone's initial batch statistics,
    because only parameters are averaged. Before the first step, keys of first views fill the queue.

    `miner` replaces `equations.mine`: (key, embeddings by task, batch) -> triplets of each ranking
    task.
    """
    tasks = ranking_tasks(config)
    across_classes = "shared" in tasks and config.shared != "random"
    classes = 1 + bool(set(tasks) - {"intra"}) + across_classes
    data.check_classes(classes, f"method.tasks={config.tasks!r}")
    mine = miner or (lambda key, x, batch: equations.mine(key, x, batch.labels, config))
    contrastive = is_contrastive(config)
    layers = Heads(embedding_tasks(config), config.embedding_dim)
    average = heads.Embedding(0, "avg")
    pool = heads.encoder(backbone, average)

    def selfsimilarity(params: PyTree, features: Array) -> Array:
        """Features [B, K] and the `params` of all heads -> selfsimilarity embedding [B, D]."""
        layer = Heads(("selfsimilarity",), config.embedding_dim)
        return functional.apply(layer, params, {}, features)[0]["selfsimilarity"]

    def key_network(params: PyTree, model_state: PyTree) -> PyTree:
        # Copied, because the training step donates its state, and a buffer cannot be donated twice.
        network = {name: params[name] for name in AVERAGED} | {"stats": model_state["backbone"]}
        return jax.tree.map(jnp.copy, network)

    def key_outputs(network: PyTree, images: Array) -> Array:
        """Keys [B, D] of images [B, H, W, 3] by the key network."""
        features, _ = pool(network, {"backbone": network["stats"]}, images[None], train=False)
        return selfsimilarity(network["heads"], features)

    def init(key: Array, batch: Batch) -> tuple[PyTree, PyTree]:
        keys = jax.random.split(key, 4)
        params, model_state = heads.init(backbone, average, keys, batch)
        x = functional.struct(1, backbone.channels)
        params["heads"], _ = functional.init(layers, keys[1], x)
        params |= equations.loss_init(keys[2], config, data.classes)
        if contrastive:
            queue = jnp.zeros((config.queue_batches * len(batch.labels), config.embedding_dim))
            model_state |= {"key": key_network(params, model_state), "queue": queue}
        return params, model_state

    def encode(
        params: PyTree, model_state: PyTree, images: Array, *, train: bool, key: Array | None = None
    ) -> tuple[Encoded, PyTree]:
        features, next_state = pool(params, model_state, images, train=train, key=key)
        embeddings, _ = functional.apply(layers, params["heads"], {}, features)
        keys = key_outputs(model_state["key"], images[1]) if train and contrastive else None
        return Encoded(features, embeddings, keys), next_state

    def loss(
        params: PyTree, model_state: PyTree, encoded: Encoded, batch: Batch, step: Array, key: Array
    ) -> tuple[Array, Aux]:
        key_triplets, key_views = jax.random.split(key)
        triplets = mine(key_triplets, lax.stop_gradient(encoded.embeddings), batch)
        embeddings, keys, queue = encoded.embeddings, encoded.keys, model_state.get("queue")
        if keys is not None and config.learners == "permuted":
            keys = jax.random.permutation(key_views, keys)
        inputs = params, embeddings, batch.labels, triplets, keys, queue
        value, terms = equations.loss(*inputs, config)
        return value, Aux(model_state, terms, carry=encoded.keys)

    def embed(params: PyTree, model_state: PyTree, images: Array) -> Array:
        encoded, _ = encode(params, model_state, images[None], train=False)
        return equations.ensemble(encoded.embeddings, config)

    def after(params: PyTree, model_state: PyTree, keys: Array) -> PyTree:
        network = model_state["key"]
        trained = {name: params[name] for name in AVERAGED}
        averaged = {name: network[name] for name in AVERAGED}
        moved = network | moving_average(averaged, trained, config.momentum)
        return {**model_state, "key": moved, "queue": enqueue(model_state["queue"], keys)}

    def fill(params: PyTree, model_state: PyTree, batches: Iterable[Batch]) -> PyTree:
        @jax.jit
        def push(network: PyTree, queue: Array, images: Array) -> Array:
            return enqueue(queue, key_outputs(network, images))

        # Not from `init`, because a warm start may have replaced the parameters.
        network = key_network(params, model_state)
        queue, filled = model_state["queue"], 0
        for images in (batch.images[0] for batch in batches):
            queue, filled = push(network, queue, images), filled + len(images)
            if filled >= len(queue):
                return {**model_state, "key": network, "queue": queue}
        problem = f"{filled} images cannot fill a queue of {len(queue)} keys"
        raise DataError(f"{problem}; reduce method.queue_batches")

    def diagnose(
        params: PyTree, model_state: PyTree, images: Array, labels: np.ndarray
    ) -> dict[str, float]:
        encoded, _ = jax.jit(partial(encode, train=False))(params, model_state, images[:1])
        return {"head_correlation": equations.head_correlation(encoded.embeddings)}

    several = "discriminative" in config.tasks and len(embedding_tasks(config)) > 1
    hooks = Hooks(
        after=after if contrastive else None,
        fill=fill if contrastive else None,
        diagnose=diagnose if several else None,
        parts=weighted_parts(config),
        views=2 if contrastive else 1,
        history=("key", "queue"),
    )

    def group(path: tuple[str, ...]) -> str:
        return path[0] if path[0] in GROUPS else "embedding"

    return Method(init, encode, loss, embed, GROUPS, group, hooks=hooks)
