"""Classes that are hard to tell apart in one batch."""

from collections.abc import Callable

import numpy as np

from dml_jax.config import Data
from dml_jax.data.samplers.balanced import balanced, successive_shuffles
from dml_jax.data.samplers.base import CLASSES, STEPS, Sampler, distinct_classes_per_batch


def hard_classes(data: Data, class_indices: list[np.ndarray], seed: int) -> Sampler:
    """P = B / K distinct classes, K images of each: some classes, each with its nearest ones (`Sampler.mined`).

    The former, ceil(P / (`data.hard_classes` + 1)) per batch, come from successive shuffles of all classes. Places that
    are left, because a class is near to several of them, get random classes. The images of a class are drawn without
    replacement if it has K. Epochs are those of `balanced`, which also gives the batches before the first refresh.
    """
    images, classes = data.images_per_class, len(class_indices)
    per_batch = distinct_classes_per_batch(data, classes)
    first = -(-per_batch // (data.hard_classes + 1))
    draw = successive_shuffles(seed, CLASSES, [classes], first)

    def mined(nearest: np.ndarray) -> Callable[[int], np.ndarray]:
        def batch(step: int) -> np.ndarray:
            rng = np.random.default_rng((seed, STEPS, step, 0))
            leading = draw(0, step * first, first)
            near = np.concatenate([leading[:, None], nearest[leading]], axis=1).ravel()
            wanted = np.concatenate([near, rng.permutation(classes)])
            distinct = wanted[np.sort(np.unique(wanted, return_index=True)[1])][:per_batch]
            return np.concatenate(
                [rng.choice(class_indices[c], images, replace=len(class_indices[c]) < images) for c in distinct]
            )

        return batch

    return balanced(data, class_indices, seed)._replace(mined=mined)
