"""Class-balanced batches without replacement: class and image counts are even at every step, not only on average."""

from collections.abc import Callable
from math import ceil, gcd

import numpy as np

from dml_jax.data.samplers.base import (
    CLASSES,
    IMAGES,
    Cached,
    Sampler,
    distinct_classes_per_batch,
    from_batches,
    indices_by_class,
)


def balanced(labels: np.ndarray, batch_size: int, images_per_class: int, seed: int = 0) -> Sampler:
    """P classes times K images; the default of this library, not taken from a paper.

    A class is drawn again only after all other classes have been drawn, and an image only after all other images of its
    class. So at every step the number of draws differs by at most one between any two classes, and between any two
    images of a class.

    An epoch has N // B steps, or ceil(C / P) steps if that is more, so that every class appears in it.
    """
    class_indices = indices_by_class(labels)
    images, classes, total = images_per_class, len(class_indices), len(labels)
    per_batch = distinct_classes_per_batch(batch_size, images_per_class, classes)
    draw_classes = successive_shuffles(seed, CLASSES, [classes], per_batch)
    draw_images = successive_shuffles(seed, IMAGES, [len(indices) for indices in class_indices], images)

    def batch(step: int) -> np.ndarray:
        position = step * per_batch
        drawn = draw_classes(0, position, per_batch).tolist()
        earlier = [(position + i) // classes for i in range(per_batch)]  # number of earlier draws of each class
        return np.concatenate(
            [class_indices[c][draw_images(c, n * images, images)] for c, n in zip(drawn, earlier, strict=True)]
        )

    return from_batches(batch, max(total // batch_size, ceil(classes / per_batch)))


def successive_shuffles(seed: int, stream: int, sizes: list[int], group: int) -> Callable[[int, int, int], np.ndarray]:
    """Samples without replacement from successive shuffles of each of several sets.

    The sequence of a set is one random permutation of it after another, drawn by `seed` and `stream`. It is consumed in
    groups of `group` elements, and a group contains no element twice unless it is larger than the set: where it spans
    two permutations, the second one begins with elements that the group does not contain yet.

    Returns:
      (set, position, count) -> int [count], `count` elements of the sequence of a set, from `position` on.
    """

    def shuffle(which: int, number: int) -> np.ndarray:
        order = np.random.default_rng((seed, stream, which, number)).permutation(sizes[which]).astype(np.int32)
        carried = number * sizes[which] % group  # elements that the first group takes from the previous permutation
        if carried == 0 or carried >= sizes[which]:
            return order
        unused = ~np.isin(order, permutation(which, number - 1)[-carried:])
        first = np.flatnonzero(unused)[: group - carried]
        return np.concatenate([order[first], np.delete(order, first)])

    permutation = Cached(shuffle, group + 4 * len(sizes))

    def elements(which: int, position: int, count: int) -> np.ndarray:
        size = sizes[which]
        first, last = position // size, (position + count - 1) // size
        period = group // gcd(group, size)  # every `period` permutations, a group starts together with a permutation
        for number in range(first - first % period, first):
            permutation(which, number)  # depends on the previous one: ascending order avoids deep recursion
        sequence = np.concatenate([permutation(which, number) for number in range(first, last + 1)])
        return sequence[position - first * size :][:count]

    return elements
