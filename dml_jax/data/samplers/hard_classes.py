"""Classes that are hard to tell apart in one batch."""

from collections.abc import Callable

import numpy as np

from dml_jax.data.samplers.balanced import balanced, successive_shuffles
from dml_jax.data.samplers.base import CLASSES, STEPS, Sampler, distinct_classes_per_batch, indices_by_class


def hard_classes(
    labels: np.ndarray, batch_size: int, images_per_class: int, seed: int = 0, *, near: int = 3
) -> Sampler:
    """P = B / K distinct classes, K images of each: some classes, each with its nearest ones (`Sampler.mined`).

    The former, ceil(P / (`near` + 1)) per batch, come from successive shuffles of all classes; each brings its `near`
    nearest ones. Places that are left, because a class is near to several of them, get random classes. The images of a
    class are drawn without replacement if it has K. Epochs are those of `balanced`, which also gives the batches before
    the nearest classes are known.
    """
    class_indices = indices_by_class(labels)
    images, classes = images_per_class, len(class_indices)
    per_batch = distinct_classes_per_batch(batch_size, images, classes)
    first = -(-per_batch // (near + 1))
    draw = successive_shuffles(seed, CLASSES, [classes], first)

    def mined(nearest: np.ndarray) -> Callable[[int], np.ndarray]:
        def batch(step: int) -> np.ndarray:
            rng = np.random.default_rng((seed, STEPS, step, 0))
            leading = draw(0, step * first, first)
            groups = np.concatenate([leading[:, None], nearest[leading, :near]], axis=1).ravel()
            wanted = np.concatenate([groups, rng.permutation(classes)])
            distinct = wanted[np.sort(np.unique(wanted, return_index=True)[1])][:per_batch]
            return np.concatenate(
                [rng.choice(class_indices[c], images, replace=len(class_indices[c]) < images) for c in distinct]
            )

        return batch

    return balanced(labels, batch_size, images_per_class, seed)._replace(mined=mined)
