"""Which images make up the batch of a step: pure functions of (seed, step).

Nothing is remembered from one call to the next, so the batch of a step depends neither on how many workers prepare
batches nor on where a run was interrupted. A sampler yields the indices of the whole batch; hosts slice it.
"""

from collections.abc import Callable
from functools import lru_cache
from math import ceil, gcd
from typing import Any, NamedTuple

import numpy as np

from dml_jax.config import Data
from dml_jax.errors import ConfigError, DataError

# Streams of random numbers, kept apart from each other and from those of the images, (seed, step, slot, view).
CLASSES, IMAGES, EPOCHS = 2**31 + 1, 2**31 + 2, 2**31 + 3


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


def build(data: Data, labels: np.ndarray, seed: int) -> Sampler:
    """The sampler that `data.sampler` names.

    Args:
      data: `sampler`, `batch_size` and `images_per_class` are read.
      labels: int [N], class ids 0..C-1 of the training split, every class present.
      seed: of the run, not negative.

    Raises:
      ConfigError: the batch cannot be made from this split; names the key and the counts.
      DataError: a class without an image, or fewer than two classes.
    """
    return {"balanced": balanced, "shuffled": shuffled}[data.sampler](data, by_class(labels), seed)


def by_class(labels: np.ndarray) -> list[np.ndarray]:
    """Indices of each class's images: C arrays int64, for labels int [N] in 0..C-1.

    Raises:
      DataError: no image, a class without one, or fewer than two classes.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.size == 0 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"training labels are {labels.dtype} {list(labels.shape)}: integers [N] with N > 0 are needed"
        )
    if labels.min() < 0:
        raise DataError(f"training label {labels.min()}: class ids start at 0")
    counts = np.bincount(labels)
    if len(counts) < 2:
        raise DataError(f"the training split has one class, of {labels.size} images: at least two are needed")
    if counts.min() == 0:
        raise DataError(f"training class {counts.argmin()} of 0..{len(counts) - 1} has no image")
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])


class Cached:
    """A pure function that keeps its last results; worker processes receive it without them."""

    def __init__(self, function: Callable[..., np.ndarray], size: int) -> None:
        self.function, self.size, self.call = function, size, lru_cache(maxsize=size)(function)

    def __call__(self, *arguments: int) -> np.ndarray:
        return self.call(*arguments)

    def __reduce__(self) -> tuple[type["Cached"], tuple[Any, ...]]:
        return Cached, (self.function, self.size)


def dealer(seed: int, stream: int, sizes: list[int], hand: int) -> Callable[[int, int, int], np.ndarray]:
    """Deals hands from shuffled packs, one pack after the other: a card comes again only when all have come.

    A hand never holds a card twice unless the whole pack is smaller: where it begins in one pack and ends in the next,
    the next pack's first cards are chosen among those that the hand does not hold yet.

    Args:
      seed, stream: of the random numbers.
      sizes: cards in a pack of each kind.
      hand: cards dealt at once.

    Returns:
      (kind, position, count) -> int [count], successive cards of that kind's endless row of packs.
    """

    def shuffled_pack(kind: int, number: int) -> np.ndarray:
        order = np.random.default_rng((seed, stream, kind, number)).permutation(sizes[kind]).astype(np.int32)
        held = number * sizes[kind] % hand  # cards that the pack before gave to this pack's first hand
        if held == 0 or sizes[kind] < hand:
            return order
        free = ~np.isin(order, pack(kind, number - 1)[-held:])
        first = np.flatnonzero(free)[: hand - held]
        return np.concatenate([order[first], np.delete(order, first)])

    pack = Cached(shuffled_pack, hand + 4 * len(sizes))

    def cards(kind: int, position: int, count: int) -> np.ndarray:
        first, last = position // sizes[kind], (position + count - 1) // sizes[kind]
        cycle = hand // gcd(hand, sizes[kind])  # packs until a hand begins with a pack again
        for number in range(first - first % cycle, first):
            pack(kind, number)  # each depends on the one before: in this order none has to recurse deeply
        row = np.concatenate([pack(kind, number) for number in range(first, last + 1)])
        return row[position - first * sizes[kind] :][:count]

    return cards


def balanced(data: Data, members: list[np.ndarray], seed: int) -> Sampler:
    """P classes times K images: a class comes again when all have come, an image when its class is used up.

    At any step the numbers of times two classes have come differ by at most one, and so do those of two images of a
    class. An epoch has as many steps as the split has batches, and at least enough for all classes to come.
    """
    images, classes, total = data.images_per_class, len(members), sum(map(len, members))
    chosen = data.batch_size // images
    if chosen > classes:
        raise ConfigError(
            f"data.batch_size={data.batch_size}: with data.images_per_class={images} a batch needs {chosen} classes, "
            f"and the training split has {classes}"
        )
    deal_class = dealer(seed, CLASSES, [classes], chosen)
    deal_image = dealer(seed, IMAGES, [len(m) for m in members], images)

    def batch(step: int) -> np.ndarray:
        position = step * chosen
        drawn = deal_class(0, position, chosen).tolist()
        times = [(position + i) // classes for i in range(chosen)]  # that the class has come before
        return np.concatenate(
            [members[c][deal_image(c, t * images, images)] for c, t in zip(drawn, times, strict=True)]
        )

    return _regular(batch, max(total // data.batch_size, ceil(classes / chosen)))


def shuffled(data: Data, members: list[np.ndarray], seed: int) -> Sampler:
    """All images in random order, once an epoch; the rest that fills no batch is dropped."""
    total, size = sum(map(len, members)), data.batch_size
    if size > total:
        raise ConfigError(f"data.batch_size={size}: the training split has only {total} images")
    steps = total // size
    order = Cached(lambda epoch: np.random.default_rng((seed, EPOCHS, epoch, 0)).permutation(total), 4)

    def batch(step: int) -> np.ndarray:
        epoch, position = divmod(step, steps)
        return order(epoch)[position * size : (position + 1) * size]

    return _regular(batch, steps)


def _regular(batch: Callable[[int], np.ndarray], steps: int) -> Sampler:
    """A sampler whose epochs all have the same number of steps."""
    return Sampler(batch, start=lambda epoch: epoch * steps, epoch=lambda step: step // steps)
