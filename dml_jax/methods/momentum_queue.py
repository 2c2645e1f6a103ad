"""Momentum copy of a network and a queue of its outputs as negatives (MoCo; He, Fan, Wu, Xie, Girshick, CVPR 2020).

The queue is first in, first out. Both are part of `model_state`:

    "key"     the key network: its parameters are a moving average of the trained ones
    "queue"   float [K, D], the last K outputs of the key network
"""

from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp

from dml_jax.errors import DataError
from dml_jax.losses.cross_batch_memory import enqueue
from dml_jax.methods.contract import PyTree


def init(network: dict[str, PyTree], size: int, dim: int) -> dict[str, PyTree]:
    """Initial state: a queue of zeros [size, dim], and a copy of a network and of whatever else it needs."""
    # Copied because the training step donates its state, and a buffer cannot be donated twice.
    return {"key": jax.tree.map(jnp.copy, network), "queue": jnp.zeros((size, dim))}


def moving_average(average: PyTree, params: PyTree, momentum: float) -> PyTree:
    """momentum * average + (1 - momentum) * params."""
    return jax.tree.map(lambda a, p: momentum * a + (1 - momentum) * p, average, params)


def update(
    model_state: PyTree, params: PyTree, outputs: jax.Array, *, averaged: Iterable[str], momentum: float
) -> PyTree:
    """The model state after an update of the parameters.

    Args:
      model_state: contains "key" and "queue".
      outputs: float [B, D], outputs of the key network for this batch, appended to the queue.
      averaged: names of the subtrees of `params` that the key network averages; its other variables stay unchanged.
      momentum: weight of the old average.
    """
    key = model_state["key"]
    averages = {name: moving_average(key[name], params[name], momentum) for name in averaged}
    return {**model_state, "key": {**key, **averages}, "queue": enqueue(model_state["queue"], outputs)}


def fill(
    model_state: PyTree,
    batches: Iterable[jax.Array],
    outputs: Callable[[PyTree, jax.Array], jax.Array],
    *,
    remedy: str,
) -> PyTree:
    """Fills the queue before training, by `outputs`: (key network, images [B, H, W, 3]) -> [B, D].

    The batches must have at least as many images as the queue has rows; the error message ends with the `remedy`.
    """

    @jax.jit
    def push(network: PyTree, queue: jax.Array, images: jax.Array) -> jax.Array:
        return enqueue(queue, outputs(network, images))

    queue, filled = model_state["queue"], 0
    for images in batches:
        queue, filled = push(model_state["key"], queue, images), filled + len(images)
        if filled >= len(queue):
            return {**model_state, "queue": queue}
    raise DataError(f"{filled} images cannot fill a queue of {len(queue)}: {remedy}")
