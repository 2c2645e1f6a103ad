"""Images whose labels may be wrong, from the classes of their nearest neighbours."""

from typing import NamedTuple

import numpy as np

from dml_jax.evaluation import neighbors

NEAREST = 10


class Doubtful(NamedTuple):
    """Images without a neighbour of their class."""

    images: np.ndarray  # int [n], first those whose neighbours agree most on one class
    # int [n], the class of at least half of the neighbours; -1 for an outlier, where no class has half.
    suggested: np.ndarray
    neighbors: np.ndarray  # int [n, k], the nearest images


def find(embeddings: np.ndarray, labels: np.ndarray) -> Doubtful:
    """The images, embeddings float32 [N, D], of which none of the 10 nearest others by the cosine is of their class.

    The neighbourhood rule for cleaning training sets: Wilson, Asymptotic properties of nearest neighbor rules using
    edited data, IEEE Trans. SMC 1972, with unanimity. Classes of few images are found less often, those of one image
    always.
    """
    _, nearest = neighbors.search(embeddings, embeddings, min(NEAREST, len(labels) - 1), exclude_self=True)
    votes = np.sort(labels[nearest], axis=1)
    # The class of at least half of sorted votes is one of the two in the middle; the longer run counts.
    k = votes.shape[1]
    middle = votes[:, [(k - 1) // 2, k // 2]]
    counts = (votes[:, :, None] == middle[:, None]).sum(axis=1)
    best = counts.argmax(axis=1)
    rows = np.arange(len(labels))
    most, suggested = counts[rows, best], middle[rows, best]
    found = np.flatnonzero((labels[nearest] != labels[:, None]).all(axis=1))
    found = found[np.argsort(-most[found], kind="stable")]
    return Doubtful(found, np.where(2 * most >= k, suggested, -1)[found], nearest[found])
