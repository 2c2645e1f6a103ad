"""Query expansion: a query becomes the weighted mean of itself and its nearest gallery rows.

    q' = unit(q + sum over the k nearest g of max(cos(q, g), 0)^alpha g)

alpha = 0 is average query expansion (AQE; Chum et al., ICCV 2007), alpha around 3 is alpha-QE (Radenovic et al., TPAMI
2019). The same done to every gallery row with the other gallery rows is database-side augmentation (Arandjelovic and
Zisserman, CVPR 2012).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import neighbors, validation
from dml_jax.evaluation._ranking.tiles import normalize

K, ALPHA = 10, 3.0


def expand(queries: Any, gallery: Any, k: int = K, *, alpha: float = 0.0, exclude_self: bool = False) -> np.ndarray:
    """Expanded queries.

    Args:
      queries: [Q, D] real numbers of any length; what counts is their direction.
      gallery: [G, D]; the same object for database-side augmentation.
      k: how many gallery rows are added to the query.
      alpha: power of the cosine that weighs them; rows at a right angle or more count 0 unless alpha is 0.
      exclude_self: query i does not find gallery row i.

    Returns:
      float32 [Q, D], rows of unit length.

    Raises:
      DataError: as `neighbors.search`; alpha negative or not finite.
    """
    if not 0 <= alpha < np.inf:
        raise DataError(f"alpha={alpha:g}: must be a number from 0 up")
    distances, indices = neighbors.search(queries, gallery, k, exclude_self=exclude_self)
    asking, others = (np.array(x, np.float32) for x in (queries, gallery))
    normalize(asking)
    normalize(others)
    found = np.empty_like(asking)
    step = max(1, validation.ROWS_AT_ONCE // (8 * k * asking.shape[1]))
    for start in range(0, len(asking), step):
        part = slice(start, start + step)
        found[part] = _mean(asking[part], others[indices[part]], distances[part].astype(np.float32), alpha)
    return found


@jax.jit
def _mean(queries: jax.Array, rows: jax.Array, distances: jax.Array, alpha: jax.Array) -> jax.Array:
    """[B, D] of queries [B, D] and their neighbours [B, k, D] at distances [B, k]."""
    weights = jnp.maximum(1 - distances, 0) ** alpha
    total = queries + jnp.einsum("bk,bkd->bd", weights, rows, precision=jax.lax.Precision.HIGHEST)
    length = jnp.linalg.norm(total, axis=1, keepdims=True)
    return total / jnp.where(length > 0, length, 1)
