"""Cross-batch memory (Wang et al., CVPR 2020): pairs with the embeddings of past batches.

The global batch has one queue: under `jit`, every device appends the same rows to its copy.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from dml_jax.losses.pairwise import Candidates

EMPTY = -1  # label of an unfilled row


def empty(size: int, dim: int) -> dict[str, Array]:
    """A memory for `size` embeddings of length `dim`, all rows unfilled."""
    return {"embeddings": jnp.zeros((size, dim)), "labels": jnp.full(size, EMPTY, jnp.int32)}


def enqueue(queue: Any, rows: Any) -> Any:
    """Appends rows [B, …] to a queue, a tree of arrays [M, …], and drops its oldest rows."""

    def append(old: Array, new: Array) -> Array:
        new = new[-len(old) :].astype(old.dtype)
        shifted = jnp.roll(old, -len(new), axis=0)
        # In place, because concatenation would give a replicated queue the sharding of the rows.
        return lax.dynamic_update_slice_in_dim(shifted, new, len(old) - len(new), axis=0)

    return jax.tree.map(append, queue, rows)


def candidates(
    memory: dict[str, Array],
    labels: Array,
    relation: Callable[..., Any] | None = None,
    *,
    enqueued: bool = False,
) -> Candidates:
    """The memory as candidates for a batch with labels [N], without its unfilled rows.

    `relation` maps labels [N] and [M] to positive and negative pairs [N, M]; None compares labels.
    If the batch is already `enqueued`, as the last rows, no row is paired with its copy.
    """
    used = (memory["labels"] != EMPTY)[None, :]
    if enqueued:
        count, size = len(labels), len(memory["labels"])
        used &= ~jnp.eye(count, size, size - count, dtype=bool)
    same = labels[:, None] == memory["labels"][None, :]
    pairs = relation(labels, jnp.maximum(memory["labels"], 0)) if relation else (same, ~same)
    return Candidates(memory["embeddings"], *(jnp.where(used, pair, False) for pair in pairs))
