"""Exact nearest neighbours, in blocks of queries."""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

BLOCK = 1024


@partial(jax.jit, static_argnames="k")
def _block(queries: jax.Array, gallery: jax.Array, first: jax.Array, excluded: jax.Array, k: int) -> Any:
    scores = jnp.matmul(queries, gallery.T, precision=jax.lax.Precision.HIGHEST)
    own = (jnp.arange(queries.shape[0])[:, None] + first) == jnp.arange(gallery.shape[0])[None, :]
    return jax.lax.top_k(jnp.where(own & excluded, -jnp.inf, scores), k)


def search(
    queries: Any,
    gallery: Any,
    k: int,
    *,
    metric: Literal["cosine", "euclidean"] = "cosine",
    exclude_self: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """(distances [Q, k], indices [Q, k]) of the nearest gallery rows; ties to the lower index."""
    q, g = (np.asarray(x, np.float32) for x in (queries, gallery))
    if metric == "cosine":
        q, g = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (q, g))
    else:
        q = np.concatenate([2 * q, -np.ones((len(q), 1), np.float32)], axis=1)
        g = np.concatenate([g, (g * g).sum(1, keepdims=True)], axis=1)
    values, indices = [], []
    for start in range(0, len(q), BLOCK):
        value, index = _block(q[start : start + BLOCK], g, start, exclude_self, k)
        values.append(np.asarray(value))
        indices.append(np.asarray(index))
    scores, found = np.concatenate(values), np.concatenate(indices)
    if metric == "cosine":
        return 1 - scores, found
    squares = (np.asarray(queries, np.float32) ** 2).sum(1)[:, None] - scores
    return np.sqrt(np.maximum(squares, 0)), found
