"""DiVA as a `Method`."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from dml_jax.backbones import functional
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import Dense
from dml_jax.errors import ConfigError, DataError
from dml_jax.losses.cross_batch_memory import enqueue
from dml_jax.losses.mining import Triplets
from dml_jax.methods import heads
from dml_jax.methods.contract import Aux, Batch, Hooks, Method, PyTree, Refresh, TrainingSet
from dml_jax.methods.diva import equations, self_supervision
from dml_jax.methods.diva.options import (
    CLASSIFIERS,
    GROUPS,
    Config,
    embedding_tasks,
    ranking_tasks,
    self_supervised_task,
    weighted_parts,
)
from dml_jax.methods.diva.self_supervision import Encoded
from dml_jax.numerics import unit

AVERAGED = ("backbone", "heads")  # subtrees of the parameters that the key network averages
Miner = Callable[[Array, dict[str, Array], Batch], dict[str, Triplets]]


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
    parameters are a moving average of the trained ones, and "queue", float [K, D], its last K
    outputs. It runs in evaluation mode with the backbone's initial batch statistics: only
    parameters are averaged. Before the first step, the queue is filled with keys of first views.

    `miner` replaces `equations.mine`: (key, embeddings by task, batch) -> triplets of each ranking
    task.
    """
    tasks = ranking_tasks(config)
    across_classes = "shared" in tasks and config.shared != "random"
    needed = 1 + bool(set(tasks) - {"intra"}) + across_classes
    data.check_classes(needed, f"method.tasks={config.tasks!r}")
    mine = miner or (lambda key, x, batch: equations.mine(key, x, batch.labels, config))
    task = self_supervised_task(config)
    layers = Heads(embedding_tasks(config), config.embedding_dim)
    average = heads.Embedding(0, "avg")
    pool = heads.encoder(backbone, average)

    def selfsimilarity(params: PyTree, features: Array) -> Array:
        """The selfsimilarity embedding [B, D] of features [B, K]; `params` belong to all heads."""
        layer = Heads(("selfsimilarity",), config.embedding_dim)
        return functional.apply(layer, params, {}, features)[0]["selfsimilarity"]

    def key_network(params: PyTree, model_state: PyTree) -> PyTree:
        # Copied because the training step donates its state, and a buffer cannot be donated twice.
        network = {name: params[name] for name in AVERAGED} | {"stats": model_state["backbone"]}
        return jax.tree.map(jnp.copy, network)

    def key_outputs(network: PyTree, images: Array) -> Array:
        """Keys [B, D] of images [B, H, W, 3] by the key network."""
        features, _ = pool(network, {"backbone": network["stats"]}, images[None], train=False)
        return selfsimilarity(network["heads"], features)

    def init(key: Array, batch: Batch) -> tuple[PyTree, PyTree]:
        height, width = batch.images.shape[2:4]
        if task == "rotnet" and height != width:
            needs = "rotation by quarter turns needs square images"
            found = f"these are {width}x{height}; set data.crop"
            raise ConfigError(f"method.selfsimilarity='rotnet': {needs}, but {found}")
        keys = jax.random.split(key, 4)
        params, model_state = heads.init(backbone, average, keys, batch)
        x = functional.struct(1, backbone.channels)
        params["heads"], _ = functional.init(layers, keys[1], x)
        params |= equations.loss_init(keys[2], config, data.classes)
        if task == "contrast":
            queue = jnp.zeros((config.queue_batches * len(batch.labels), config.embedding_dim))
            model_state |= {"key": key_network(params, model_state), "queue": queue}
        sizes = backbone.channels, data.images
        task_params, task_state = self_supervision.init(keys[3], config, *sizes)
        return params | task_params, model_state | task_state

    def encode(
        params: PyTree, model_state: PyTree, images: Array, *, train: bool, key: Array | None = None
    ) -> tuple[Encoded, PyTree]:
        keys = (None, None, None) if key is None else jax.random.split(key, 3)
        key_first, key_second, key_turns = keys
        features, next_state = pool(params, model_state, images, train=train, key=key_first)
        encoded = Encoded(features, functional.apply(layers, params["heads"], {}, features)[0])
        if not train:
            return encoded, next_state

        def second_pass(images: Array) -> Array:
            """Features of other images, which leave the batch statistics unchanged."""
            return pool(params, model_state, images[None], train=True, key=key_second)[0]

        match task:
            case "contrast":
                encoded = encoded._replace(keys=key_outputs(model_state["key"], images[1]))
            case "spread":
                second_views = selfsimilarity(params["heads"], second_pass(images[1]))
                encoded = encoded._replace(second_views=second_views)
            case "rotnet":
                assert key_turns is not None, "training needs a key"
                turns = self_supervision.random_turns(key_turns, images.shape[1])
                rotated = second_pass(self_supervision.rotate(images[0], turns))
                encoded = encoded._replace(rotated=rotated, turns=turns)
        return encoded, next_state

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
        if task is not None and task != "contrast":
            state = params, model_state
            term, model_state = self_supervision.loss(task, *state, encoded, batch.index)
            terms["selfsimilarity"] = term
            value = value + config.alpha_selfsimilarity * term
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

        # A warm start may have replaced the parameters since `init`.
        network = key_network(params, model_state)
        queue, filled = model_state["queue"], 0
        for images in (batch.images[0] for batch in batches):
            queue, filled = push(network, queue, images), filled + len(images)
            if filled >= len(queue):
                return {**model_state, "key": network, "queue": queue}
        problem = f"{filled} images cannot fill a queue of {len(queue)}"
        raise DataError(f"{problem}: lower method.queue_batches")

    def pooled_features(params: PyTree, model_state: PyTree, images: Array) -> Array:
        return pool(params, model_state, images[None], train=False)[0]

    def diagnose(
        params: PyTree, model_state: PyTree, images: Array, labels: np.ndarray
    ) -> dict[str, float]:
        encoded, _ = jax.jit(partial(encode, train=False))(params, model_state, images[:1])
        return {"head_correlation": equations.head_correlation(encoded.embeddings)}

    several = "discriminative" in config.tasks and len(embedding_tasks(config)) > 1
    groups = GROUPS + (("classifier",) if task in CLASSIFIERS else ())
    update = partial(self_supervision.recluster, config=config)
    recluster = Refresh(self_supervision.CLUSTER_EPOCHS, pooled_features, update)
    hooks = Hooks(
        after=after if task == "contrast" else None,
        fill=fill if task == "contrast" else None,
        refresh=recluster if task == "deepcluster" else None,
        diagnose=diagnose if several else None,
        parts=weighted_parts(config),
        views=2 if task in ("contrast", "spread") else 1,
        history=("key", "queue", "memory", "clusters"),
    )

    def group(path: tuple[str, ...]) -> str:
        return path[0] if path[0] in groups else "embedding"

    return Method(init, encode, loss, embed, groups, group, hooks=hooks)
