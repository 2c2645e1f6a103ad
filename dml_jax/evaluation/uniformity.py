"""How evenly embeddings cover the sphere."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from dml_jax.errors import DataError
from dml_jax.evaluation import validation
from dml_jax.evaluation._ranking import tiles
from dml_jax.evaluation._ranking.kernels import EVERYWHERE, product


def uniformity(embeddings: Any, *, sharpness: float = 2.0, mesh: Mesh | None = None) -> float:
    """log of the mean over pairs i != j of exp(-t |x_i - x_j|^2) for unit rows (Wang & Isola, ICML 2020, eq. 2).

    Args:
      embeddings: [N, D] real numbers; normalised here.
      sharpness: t.
      mesh: devices, those of this process by default.

    Returns:
      At most 0, where all rows are equal; lower is more even.

    Raises:
      DataError: wrong shape or type, rows that are not finite, fewer than two rows.
    """
    points = validation.embeddings(embeddings)
    if len(points) < 2:
        raise DataError("embeddings: has one row; uniformity is a mean over pairs and needs two")
    mesh = mesh or tiles.mesh()
    frame = tiles.frame([points], "cosine")
    edge = tiles.edge(len(points), mesh)
    rows = tiles.Rows(points, np.arange(len(points)), edge, "cosine", frame, validation.working(points))
    per = max(1, tiles.memory(mesh) // 4 // (edge * rows.width * rows.dtype.itemsize))
    everywhere = NamedSharding(mesh, EVERYWHERE)
    total = 0.0
    for j in range(0, rows.tiles, per):
        right = jax.device_put(rows.prepared(slice(j, j + per), right=True), everywhere)
        for i in range(0, j + 1, per):
            left = right if i == j else jax.device_put(rows.prepared(slice(i, i + per), right=False), everywhere)
            pairs = [(a, b) for b in range(len(right)) for a in range(b + 1 if i == j else len(left))]
            for start in range(0, len(pairs), mesh.size):
                batch = pairs[start : start + mesh.size]
                idle = [batch[0]] * (mesh.size - len(batch))
                scores = product(left, right, np.array(batch + idle, np.int32), mesh)
                first = np.array([[i + a, j + b] for a, b in batch] + [[-1, -1] for _ in idle], np.int32) * edge
                total += float(np.sum(np.asarray(_energy(scores, first, len(points), sharpness), np.float64)))
    return float(np.log(2 * total / (len(points) * (len(points) - 1.0))))


@partial(jax.jit, static_argnames="sharpness")
def _energy(scores: jax.Array, first: jax.Array, rows: int, sharpness: float) -> jax.Array:
    """Sum over the pairs i < j of each tile.

    Args:
      scores: [n, T, T], cosines.
      first: int32 [n, 2], index of the first row and column; negative: counts nothing.
      rows: N.
      sharpness: t.

    Returns:
      [n, T], for each column.
    """
    offset = jnp.arange(scores.shape[1], dtype=jnp.int32)
    row = (first[:, :1] + offset[None, :])[:, :, None]
    column = (first[:, 1:] + offset[None, :])[:, None, :]
    counted = (row < column) & (column < rows) & (first[:, :1, None] >= 0)
    squares = jnp.maximum(2 - 2 * scores, 0)
    return jnp.sum(jnp.where(counted, jnp.exp(-sharpness * squares), 0), axis=1)
