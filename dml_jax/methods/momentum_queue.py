"""DaNCE's negatives: a momentum copy of the network and the queue of the keys it has made (He et al., CVPR 2020)."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from dml_jax.errors import DataError
from dml_jax.losses import cross_batch_memory
from dml_jax.methods.contract import Batch

AVERAGED = ("backbone", "heads")


def init(params: Any, stats: Any, size: int, dim: int) -> dict[str, Any]:
    """State of the key network, a copy of what the parameters start from, and of a queue of zeros [size, dim]."""
    network = {**{name: params[name] for name in AVERAGED}, "stats": stats}
    # Buffers of its own: the step donates its state.
    return {"key": jax.tree.map(jnp.copy, network), "queue": jnp.zeros((size, dim))}


def follow(key_params: Any, params: Any, momentum: float) -> Any:
    """Moving average of the parameters: momentum * key + (1 - momentum) * params."""
    return jax.tree.map(lambda k, p: momentum * k + (1 - momentum) * p, key_params, params)


def advance(state: Any, params: Any, keys: jax.Array, momentum: float) -> Any:
    """The state after an update of the parameters: the network follows, its keys [B, D] join the queue."""
    averaged = {name: follow(state["key"][name], params[name], momentum) for name in AVERAGED}
    return {**state, "key": {**state["key"], **averaged}, "queue": cross_batch_memory.enqueue(state["queue"], keys)}


def fill(state: Any, batches: Iterable[Batch], encode: Callable[[Any, jax.Array], jax.Array]) -> Any:
    """The state with a full queue.

    Args:
      state: of the method.
      batches: whose main views become keys.
      encode: (key network, images) -> keys [B, D].

    Raises:
      DataError: the batches end before.
    """

    @jax.jit
    def push(network: Any, queue: jax.Array, images: jax.Array) -> jax.Array:
        return cross_batch_memory.enqueue(queue, encode(network, images))

    queue, filled = state["queue"], 0
    for batch in batches:
        queue, filled = push(state["key"], queue, batch.images[0]), filled + batch.images.shape[1]
        if filled >= queue.shape[0]:
            return {**state, "queue": queue}
    raise DataError(
        f"{filled} images cannot fill a queue of {queue.shape[0]}: give more batches or lower method.queue_batches"
    )
