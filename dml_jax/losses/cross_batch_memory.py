"""Cross-batch memory (Wang, Zhang, Huang, Scott, CVPR 2020): embeddings of past batches as further pairs.

One queue for the whole batch: under `jit` every device holds it and appends the same rows.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

EMPTY = -1  # label of a place not filled yet


def empty(size: int, dim: int) -> dict[str, jax.Array]:
    """A memory of `size` embeddings of length `dim` with nothing in it."""
    return {"embeddings": jnp.zeros((size, dim)), "labels": jnp.full(size, EMPTY, jnp.int32)}


def enqueue(queue: Any, rows: Any) -> Any:
    """First in, first out: the oldest rows leave at the front, new ones join at the end.

    Args:
      queue: tree of arrays [M, …].
      rows: the same tree of [B, …].
    """

    def push(old: jax.Array, new: jax.Array) -> jax.Array:
        new = new[-len(old) :].astype(old.dtype)
        kept = jnp.roll(old, -len(new), axis=0)
        # Written in place, a queue that every device holds stays so; a concatenation takes on the layout of the rows.
        return lax.dynamic_update_slice_in_dim(kept, new, len(old) - len(new), axis=0)

    return jax.tree.map(push, queue, rows)


def masks(labels: jax.Array, memory_labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Positive and negative pairs of a batch with the memory.

    Args:
      labels: int [N] of the batch.
      remembered: int [M] of the memory.

    Returns:
      bool [N, M] each; a place not filled yet is in neither.
    """
    same = labels[:, None] == memory_labels[None, :]
    filled = (memory_labels != EMPTY)[None, :]
    return same & filled, ~same & filled
