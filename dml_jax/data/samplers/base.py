"""The `Sampler` type and the functions that construct samplers.

A sampler is a pure function of the seed and the step. It keeps no state between calls, so the batch of a step depends
neither on the number of workers nor on where a run was interrupted. It returns the indices of the whole global batch,
of which each host takes its slice.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dml_jax.errors import ConfigError, DataError

# Random streams of the samplers, distinct from each other and from those of the images, (seed, step, slot, view).
CLASSES, IMAGES, EPOCHS, STEPS = (2**31 + i for i in range(1, 5))


class Sampler(NamedTuple):
    """How the training split becomes batches.

    Attributes:
      batch: step -> int64 [B], indices into the training split.
      first_step: epoch -> its first step; epoch e has first_step(e + 1) - first_step(e) steps.
      epoch: step -> the epoch that contains it.
    """

    batch: Callable[[int], np.ndarray]
    first_step: Callable[[int], int]
    epoch: Callable[[int], int]


class Cached:
    """An LRU cache around a pure function that is pickled without its entries, e.g. for worker processes."""

    def __init__(self, function: Callable[..., np.ndarray], size: int) -> None:
        self.function, self.size, self.call = function, size, lru_cache(maxsize=size)(function)

    def __call__(self, *arguments: int) -> np.ndarray:
        return self.call(*arguments)

    def __reduce__(self) -> tuple[type["Cached"], tuple[Callable[..., np.ndarray], int]]:
        return Cached, (self.function, self.size)


def from_batches(batch: Callable[[int], np.ndarray], steps: int) -> Sampler:
    """A sampler that draws each batch independently by `batch`, step -> int [B]; every epoch has `steps` steps."""
    return Sampler(batch, first_step=lambda epoch: epoch * steps, epoch=lambda step: step // steps)


def from_epochs(order: Callable[[int], np.ndarray], batch_size: int, steps: int) -> Sampler:
    """A sampler that draws a whole epoch at a time; every epoch has `steps` steps.

    `order` maps an epoch to its concatenated batches, int [steps * batch_size].
    """
    orders = Cached(order, 4)

    def batch(step: int) -> np.ndarray:
        epoch, position = divmod(step, steps)
        return orders(epoch)[position * batch_size : (position + 1) * batch_size]

    return from_batches(batch, steps)


def from_varying_epochs(order: Callable[[int], np.ndarray], length: Callable[[int], int], batch_size: int) -> Sampler:
    """A sampler that draws a whole epoch at a time; epochs differ in length.

    `order` maps an epoch to its concatenated batches, `length` to its number of steps. The latter is called for every
    epoch of the run before the first step, so it must be fast.
    """
    orders = Cached(order, 4)
    lengths = Cached(lambda epoch: np.asarray(length(epoch)), 2**16)

    def locate(step: int) -> tuple[int, int]:
        """(epoch, position in the epoch) of a step."""
        epoch = 0
        while step >= (steps := int(lengths(epoch))):
            step, epoch = step - steps, epoch + 1
        return epoch, step

    def batch(step: int) -> np.ndarray:
        epoch, position = locate(step)
        return orders(epoch)[position * batch_size : (position + 1) * batch_size]

    return Sampler(
        batch,
        first_step=lambda epoch: sum(int(lengths(e)) for e in range(epoch)),
        epoch=lambda step: locate(step)[0],
    )


def classes_per_batch(batch_size: int, images_per_class: int) -> int:
    """B / K; raises ConfigError unless that is a whole number above 1."""
    if not 0 < images_per_class < batch_size or batch_size % images_per_class:
        raise ConfigError(
            f"images_per_class={images_per_class}: must divide batch_size={batch_size}, into two classes or more"
        )
    return batch_size // images_per_class


def distinct_classes_per_batch(batch_size: int, images_per_class: int, available: int) -> int:
    """B / K, the number of distinct classes in a batch; raises ConfigError if it exceeds the `available` ones."""
    classes = classes_per_batch(batch_size, images_per_class)
    if classes > available:
        raise ConfigError(
            f"batch_size={batch_size}: with images_per_class={images_per_class} a batch needs {classes} classes, but "
            f"the training split has {available}; use at most batch_size={images_per_class * available}"
        )
    return classes


def indices_by_class(labels: np.ndarray) -> list[np.ndarray]:
    """Groups image indices by class: labels int [N] in 0..C-1 -> C arrays int64; all classes must have images."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.size == 0 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"training labels are {labels.dtype} {list(labels.shape)}: must be integers [N] with N > 0")
    if labels.min() < 0:
        raise DataError(f"training label {labels.min()}: labels must not be negative")
    counts = np.bincount(labels)
    if len(counts) < 2:
        raise DataError(f"the training split has one class of {labels.size} images: at least two classes are needed")
    if counts.min() == 0:
        raise DataError(f"training class {counts.argmin()} of 0..{len(counts) - 1} has no images")
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
