"""A relation: the name of a class lists its tags, such as "red round"; images are related by the
share of tags that their classes have in common."""

import numpy as np


def shared_tags(names, others):
    """Weights [N, M] of pairs of names [N] and [M]: 1 for the same tags, 0 for none in common."""
    tags, more = ([set(name.split()) for name in each] for each in (names, others))
    return np.array([[len(a & b) / len(a | b) for b in more] for a in tags])
