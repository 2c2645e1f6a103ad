"""Query expansion: replaces a query by the weighted mean of itself and its nearest gallery rows.

    q' = normalise(q + sum over the k nearest g of max(cos(q, g), 0)^alpha g)

alpha = 0 is average query expansion (AQE; Chum et al., ICCV 2007), alpha around 3 is alpha-QE (Radenovic et al., TPAMI
2019). Expanding every gallery row in the same way is database-side augmentation (Arandjelovic and Zisserman, CVPR
2012).
"""

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import check_inputs, neighbors
from dml_jax.evaluation._engine.tiles import normalize
from dml_jax.evaluation.check_inputs import ArrayLike

K, ALPHA = 10, 3.0


def expand(
    queries: ArrayLike, gallery: ArrayLike, k: int = K, *, alpha: float = 0.0, exclude_self: bool = False
) -> np.ndarray:
    """Expands queries.

    Args:
      queries: [Q, D] real numbers; rows are normalised first.
      gallery: [G, D]; the same object for database-side augmentation.
      k: number of gallery rows added to each query.
      alpha: exponent of the cosine in their weights, finite and at least 0; unless it is 0, rows with a negative cosine
        have weight 0.
      exclude_self: query i does not retrieve gallery row i.

    Returns:
      float32 [Q, D], rows of unit length.
    """
    if not 0 <= alpha < np.inf:
        raise DataError(f"alpha={alpha:g}: must be finite and not negative")
    distances, indices = neighbors.search(queries, gallery, k, exclude_self=exclude_self)
    query_rows, gallery_rows = (np.array(x, np.float32) for x in (queries, gallery))
    normalize(query_rows)
    normalize(gallery_rows)
    expanded = np.empty_like(query_rows)
    step = max(1, check_inputs.BLOCK_ELEMENTS // (8 * k * query_rows.shape[1]))
    for start in range(0, len(query_rows), step):
        block = slice(start, start + step)
        expanded[block] = _weighted_mean(
            query_rows[block], gallery_rows[indices[block]], distances[block].astype(np.float32), alpha
        )
    return expanded


@jax.jit
def _weighted_mean(queries: jax.Array, rows: jax.Array, distances: jax.Array, alpha: jax.Array) -> jax.Array:
    """[B, D] from queries [B, D] and their neighbours [B, k, D] at cosine distances [B, k]."""
    weights = jnp.maximum(1 - distances, 0) ** alpha
    total = queries + jnp.einsum("bk,bkd->bd", weights, rows, precision=jax.lax.Precision.HIGHEST)
    length = jnp.linalg.norm(total, axis=1, keepdims=True)
    return total / jnp.where(length > 0, length, 1)
