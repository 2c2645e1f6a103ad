"""What a sampler is, and the two shapes it takes.

Nothing is remembered from one call to the next, so the batch of a step depends neither on how many workers prepare
batches nor on where a run was interrupted. A sampler yields the indices of the whole batch; hosts slice it.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dml_jax.config import Data
from dml_jax.errors import ConfigError

# Streams of random numbers, kept apart from each other and from those of the images, (seed, step, slot, view).
CLASSES, IMAGES, EPOCHS, STEPS = (2**31 + i for i in range(1, 5))


class Sampler(NamedTuple):
    """How the training split becomes batches.

    Attributes:
      batch: step -> int64 [B], indices into the training split.
      start: epoch -> its first step; epoch e has start(e + 1) - start(e) steps.
      epoch: step -> the epoch it belongs to.
    """

    batch: Callable[[int], np.ndarray]
    start: Callable[[int], int]
    epoch: Callable[[int], int]


class Cached:
    """A pure function that keeps its last results; worker processes receive it without them."""

    def __init__(self, function: Callable[..., np.ndarray], size: int) -> None:
        self.function, self.size, self.call = function, size, lru_cache(maxsize=size)(function)

    def __call__(self, *arguments: int) -> np.ndarray:
        return self.call(*arguments)

    def __reduce__(self) -> tuple[type["Cached"], tuple[Any, ...]]:
        return Cached, (self.function, self.size)


def by_step(batch: Callable[[int], np.ndarray], steps: int) -> Sampler:
    """A sampler whose epochs all have the same number of steps."""
    return Sampler(batch, start=lambda epoch: epoch * steps, epoch=lambda step: step // steps)


def by_epoch(order: Callable[[int], np.ndarray], size: int, steps: int) -> Sampler:
    """A sampler that plans an epoch of `steps` steps at a time.

    Args:
      order: epoch -> int [steps * size], the images of its batches one after the other, a pure function.
      size: images in a batch.
      steps: in an epoch.
    """
    planned = Cached(order, 4)

    def batch(step: int) -> np.ndarray:
        epoch, position = divmod(step, steps)
        return planned(epoch)[position * size : (position + 1) * size]

    return by_step(batch, steps)


def by_varying_epoch(order: Callable[[int], np.ndarray], length: Callable[[int], int], size: int) -> Sampler:
    """A sampler that plans an epoch at a time, epochs not being of one length.

    Args:
      order: epoch -> int [steps * size], the images of its batches one after the other, a pure function.
      length: epoch -> its steps; asked of all epochs before the first step is made, so it should not take long.
      size: images in a batch.
    """
    planned = Cached(order, 4)
    steps = Cached(lambda epoch: np.asarray(length(epoch)), 2**16)

    def locate(step: int) -> tuple[int, int]:
        epoch = 0
        while step >= (taken := int(steps(epoch))):
            step, epoch = step - taken, epoch + 1
        return epoch, step

    def batch(step: int) -> np.ndarray:
        epoch, position = locate(step)
        return planned(epoch)[position * size : (position + 1) * size]

    return Sampler(
        batch,
        start=lambda epoch: sum(int(steps(e)) for e in range(epoch)),
        epoch=lambda step: locate(step)[0],
    )


def distinct_classes(data: Data, members: list[np.ndarray]) -> int:
    """How many classes a batch of the sampler holds.

    Raises:
      ConfigError: there are not so many.
    """
    classes = data.batch_size // data.images_per_class
    if classes > len(members):
        raise ConfigError(
            f"data.batch_size={data.batch_size}: with data.images_per_class={data.images_per_class} a batch needs "
            f"{classes} classes, and the training split has {len(members)}; give at most "
            f"--config.data.batch_size={data.images_per_class * len(members)}"
        )
    return classes
