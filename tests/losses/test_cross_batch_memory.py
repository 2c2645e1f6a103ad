"""The memory of past embeddings."""

import jax.numpy as jnp

from dml_jax.losses import cross_batch_memory


def test_memory_is_first_in_first_out() -> None:
    queue = cross_batch_memory.empty(3, 2)
    for step in range(3):
        rows = {"embeddings": jnp.full((2, 2), float(step)), "labels": jnp.array([10 * step, 10 * step + 1])}
        queue = cross_batch_memory.enqueue(queue, rows)
        if step == 0:
            assert queue["labels"].tolist() == [cross_batch_memory.EMPTY, 0, 1]
            _, positive, negative = cross_batch_memory.candidates(queue, jnp.array([1, 7]))
            assert positive.tolist() == [[False, False, True], [False, False, False]]
            assert negative.tolist() == [[False, True, False], [False, True, True]]
    assert queue["labels"].tolist() == [11, 20, 21]
    assert queue["embeddings"][:, 0].tolist() == [1.0, 2.0, 2.0]
