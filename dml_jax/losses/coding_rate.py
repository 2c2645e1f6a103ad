"""Anti-Collapse loss (Jiang et al., 2024).

"Anti-Collapse loss for deep metric learning based on coding rate metric", arXiv:2407.03106.

The average coding rate of N unit vectors z of D dimensions up to a distortion epsilon (Yu et al., "Learning diverse and
discriminative representations via the principle of maximal coding rate reduction", NeurIPS 2020),

    R = 1/2 log det(I + D / (N epsilon^2) sum_i z_i z_i^T),

grows with the number of directions in which they spread. The loss is -R. It does not depend on labels and is added to
another loss, as in `method.loss=multi_similarity+anti_collapse`, with a small weight.
"""

import jax
import jax.numpy as jnp

from dml_jax.config.fields import Positive
from dml_jax.losses.pairwise import inner_products
from dml_jax.losses.signature import loss
from dml_jax.numerics import root, unit


@loss
def anti_collapse(
    embeddings: jax.Array,
    labels: jax.Array,
    *,
    epsilon: Positive = 0.5,  # distortion
    weights: jax.Array | None = None,
) -> jax.Array:
    """Minus the average coding rate of unit embeddings, or of proxies, in nats -> scalar; labels are not used.

    `per_anchor` gives the same value for every row, since the rate of a single row does not depend on its direction.
    """
    z = unit(embeddings)
    count, dim = z.shape
    w = jnp.ones(count, z.dtype) if weights is None else jnp.asarray(weights, z.dtype)
    z = z * root(w * dim / (jnp.where(w.sum() > 0, w.sum(), 1) * epsilon**2))[:, None]
    z = z if count < dim else z.T  # the determinant is the same
    factor = jnp.linalg.cholesky(jnp.eye(len(z), dtype=z.dtype) + inner_products(z, z))
    return -jnp.sum(jnp.log(jnp.diagonal(factor)))
