"""Batches larger than the memory: images are encoded in chunks, and the loss sees all embeddings at once.

The forward pass keeps the encoded images only; the backward pass encodes each chunk again for its gradient (Gao et al.,
"Scaling deep contrastive learning batch size under memory limited setup", RepL4NLP 2021, who call it GradCache). As
rows are encoded independently of one another, value and gradient are those of the whole batch up to rounding.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dml_jax.methods.contract import Method, PyTree


def in_chunks(function: Callable[..., PyTree], chunks: int, rows: jax.Array, *others: jax.Array) -> PyTree:
    """Calls a function that treats rows independently on one chunk of them after the other.

    Args:
      function: (rows [B / chunks, ...], *others without their first axis) -> a pytree with one row per row.
      chunks: their number, a divisor of B.
      rows: [B, ...], sharded along the first axis or not.
      others: [chunks, ...], one entry per chunk.

    Returns:
      A pytree with leaves [B, ...].
    """
    # Chunk i has every row i + chunks * j, so that each device computes its own rows of every chunk.
    split = jnp.moveaxis(rows.reshape(-1, chunks, *rows.shape[1:]), 1, 0)
    results = jax.lax.map(lambda arguments: function(*arguments), (split, *others))
    return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), results)


def chunked(method: Method, chunks: int) -> Method:
    """The method with the images of a training batch encoded in chunks, whose number divides the batch size.

    `encode` must not change batch statistics. Each chunk draws its own random numbers (erasing, dropped paths).
    """
    if chunks == 1:
        return method

    def encode(
        params: PyTree, model_state: PyTree, images: jax.Array, *, train: bool, key: jax.Array | None = None
    ) -> tuple[PyTree, PyTree]:
        @jax.checkpoint
        def one_chunk(rows: jax.Array, key: jax.Array | None = None) -> PyTree:
            return method.encode(params, model_state, jnp.moveaxis(rows, 0, 1), train=train, key=key)[0]

        keys = () if key is None else (jax.random.split(key, chunks),)
        return in_chunks(one_chunk, chunks, jnp.moveaxis(images, 1, 0), *keys), model_state

    return method._replace(encode=encode)
