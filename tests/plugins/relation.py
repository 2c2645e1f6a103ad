"""A relation: classes are combinations of tags; images are similar by the share of tags that their
classes have."""

import jax.numpy as jnp

TAGS = jnp.array(
    [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1]], float
)  # of the training classes 0 to 4


def shared_tags(labels, others):
    """Weights of positive pairs and a mask of negative pairs [N, M] of labels [N] and [M]."""
    a, b = TAGS[labels % 5], TAGS[others % 5]
    both = a @ b.T
    return both / (a.sum(axis=1)[:, None] + b.sum(axis=1)[None] - both), both == 0
