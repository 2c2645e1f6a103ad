"""The `Sampler` type and the functions that construct samplers.

A sampler is a pure function of the seed and the step. It keeps no state between calls, so the batch
of a step depends neither on the number of threads nor on where a run was interrupted. It returns
the indices of the whole global batch, and each host takes its slice of it. A sampler is pickled as
the call that made it.
"""

from collections.abc import Callable
from functools import lru_cache, partial, wraps
from inspect import signature
from math import ceil, gcd
from operator import index
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dml_jax.config import Data
from dml_jax.errors import ConfigError, DataError
from dml_jax.numerics import as_labels

Make = TypeVar("Make", bound=Callable[..., "Sampler"])

# Random streams of the samplers; those of the images are (seed, step, slot, view).
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


class _Called(Sampler):
    """A sampler that is pickled as the call that returned it, since it has no other state."""

    call: Callable[[], Sampler]

    def __reduce__(self) -> Any:
        return self.call, ()


def _pickled_as_call(make: Make) -> Make:
    @wraps(make)
    def call(*arguments: Any, **keywords: Any) -> Sampler:
        sampler = _Called(*make(*arguments, **keywords))
        sampler.call = partial(call, *arguments, **keywords)
        return sampler

    return call  # type: ignore[return-value]


@_pickled_as_call
def from_batches(batch: Callable[[int], np.ndarray], steps: int) -> Sampler:
    """A sampler of independent batches, `batch`: step -> int [B]; an epoch has `steps` steps."""
    _check_steps(steps)
    return _from_zero(batch, lambda epoch: epoch * steps, lambda step: step // steps)


def _from_zero(*functions: Callable[[int], Any]) -> Sampler:
    """A sampler whose functions raise DataError for numbers that are not steps or epochs."""

    def checking(function: Callable[[int], Any]) -> Callable[[int], Any]:
        @wraps(function)
        def call(number: int) -> Any:
            try:
                at = index(number)
            except TypeError:
                at = -1
            if at < 0:
                rule = "steps and epochs are whole numbers from 0 on"
                raise DataError(f"sampler: {number!r} is no step or epoch; {rule}")
            return function(at)

        return call

    return Sampler(*map(checking, functions))


@_pickled_as_call
def from_epochs(order: Callable[[int], np.ndarray], batch_size: int, steps: int) -> Sampler:
    """A sampler that draws a whole epoch at a time; every epoch has `steps` steps.

    `order` maps an epoch to its concatenated batches, int [steps * batch_size].
    """
    _check_steps(steps)
    return from_varying_epochs(order, lambda epoch: steps, batch_size)


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ConfigError(f"steps={steps}: an epoch has at least one step")


@_pickled_as_call
def from_varying_epochs(
    order: Callable[[int], np.ndarray], length: Callable[[int], int], batch_size: int
) -> Sampler:
    """A sampler that draws a whole epoch at a time; epochs differ in length.

    `order` maps an epoch to its concatenated batches, `length` to its number of steps. The latter
    is called for every epoch of the run before the first step, so it must be fast.
    """
    orders, lengths = lru_cache(4)(order), lru_cache(2**16)(length)

    def locate(step: int) -> tuple[int, int]:
        """(epoch, position in the epoch) of a step."""
        epoch = 0
        while step >= (steps := lengths(epoch)):
            step, epoch = step - steps, epoch + 1
        return epoch, step

    def batch(step: int) -> np.ndarray:
        epoch, position = locate(step)
        return orders(epoch)[position * batch_size : (position + 1) * batch_size]

    return _from_zero(
        batch,
        lambda epoch: sum(lengths(e) for e in range(epoch)),
        lambda step: locate(step)[0],
    )


def checked(make: Make) -> Make:
    """Applies the rules of `Data` also to direct calls of a function that makes a sampler."""

    @wraps(make)
    def call(*arguments: Any, **keywords: Any) -> Sampler:
        given = signature(make).bind(*arguments, **keywords).arguments
        for arrays in ("labels", "relation"):
            given.pop(arrays, None)
        numbers: dict[str, Any] = {
            name: x.item() if isinstance(x, np.integer) else x for name, x in given.items()
        }
        seed = numbers.pop("seed", 0)
        Data(sampler=make.__name__, **numbers)
        if not isinstance(seed, int) or seed < 0:
            raise ConfigError(f"seed={seed!r}: must be a whole number from 0 on")
        return make(*arguments, **keywords)

    return _pickled_as_call(call)  # type: ignore[return-value]


def distinct_classes_per_batch(batch_size: int, images_per_class: int, available: int) -> int:
    """B / K, the number of distinct classes in a batch; ConfigError beyond the `available` ones."""
    classes = batch_size // images_per_class  # a whole number by the rules of `Data`
    if classes > available:
        needs = f"with data.images_per_class={images_per_class} a batch needs {classes} classes"
        most = f"use at most data.batch_size={images_per_class * available}"
        raise ConfigError(
            f"data.batch_size={batch_size}: {needs}, but the training split has {available}; {most}"
        )
    return classes


def indices_by_class(labels: np.ndarray) -> list[np.ndarray]:
    """Image indices by class: labels [N], integers or text -> C arrays int64, by label."""
    found = np.asarray(as_labels("labels", labels))
    if found.ndim != 1 or not found.size or found.dtype.kind not in "iuU":
        raise DataError(
            f"labels: hold {found.dtype} of shape {list(found.shape)}; give one class per image, "
            "an integer or text"
        )
    numbers, counts = np.unique(found, return_inverse=True, return_counts=True)[1:]
    if len(counts) < 2:
        what = f"the training split has one class of {found.size} images"
        raise DataError(f"{what}: at least two classes are needed")
    return np.split(np.argsort(numbers, kind="stable"), np.cumsum(counts)[:-1])


@checked
def balanced(labels: np.ndarray, batch_size: int, images_per_class: int, seed: int = 0) -> Sampler:
    """P classes times K images; the default of this library, not taken from a paper.

    A class is drawn again only after all other classes have been drawn, and an image only after all
    other images of its class. So at every step the number of draws differs by at most one between
    any two classes, and between any two images of a class.

    An epoch has N // B steps, or ceil(C / P) if that is more, so that it shows every class.
    """
    class_indices = indices_by_class(labels)
    images, classes, total = images_per_class, len(class_indices), len(labels)
    per_batch = distinct_classes_per_batch(batch_size, images_per_class, classes)
    draw_classes = successive_shuffles(seed, CLASSES, [classes], per_batch)
    draw_images = successive_shuffles(seed, IMAGES, list(map(len, class_indices)), images)

    def batch(step: int) -> np.ndarray:
        position = step * per_batch
        chosen = []
        for i, c in enumerate(draw_classes(0, position, per_batch).tolist()):
            earlier = (position + i) // classes  # number of earlier draws of the class
            chosen.append(class_indices[c][draw_images(c, earlier * images, images)])
        return np.concatenate(chosen)

    return from_batches(batch, max(total // batch_size, ceil(classes / per_batch)))


@checked
def related(
    labels: np.ndarray,
    batch_size: int,
    images_per_class: int,
    seed: int = 0,
    *,
    relation: np.ndarray,
) -> Sampler:
    """`balanced` classes, every second one replaced by a class related to the one before it.

    It is drawn in proportion to its weight in `relation` [C, C] (see `data.relations`), or at
    random if no other class is related to it, from the classes not in the batch yet. Labels are in
    0..C-1.
    """
    class_indices = indices_by_class(labels)
    classes = len(class_indices)
    if len(relation) != classes:
        problem = f"has shape {list(np.shape(relation))} for {classes} classes"
        raise DataError(f"relation: {problem}; give [{classes}, {classes}]")
    per_batch = distinct_classes_per_batch(batch_size, images_per_class, classes)
    weights = np.nan_to_num(np.asarray(relation, np.float64))
    draw_classes = successive_shuffles(seed, CLASSES, [classes], per_batch)

    def batch(step: int) -> np.ndarray:
        random = np.random.default_rng((seed, STEPS, step))
        chosen: list[int] = []
        for c in draw_classes(0, step * per_batch, per_batch).tolist():
            free = np.ones(classes)
            free[chosen] = 0
            if len(chosen) % 2:
                likely = free * weights[chosen[-1]]
                likely = likely if likely.any() else free
                chosen.append(int(random.choice(classes, p=likely / likely.sum())))
            else:
                chosen.append(c if free[c] else int(random.choice(np.flatnonzero(free))))
        images = (class_indices[c] for c in chosen)
        drawn = (random.choice(i, images_per_class, len(i) < images_per_class) for i in images)
        return np.concatenate(list(drawn))

    return from_batches(batch, max(len(labels) // batch_size, ceil(classes / per_batch)))


def successive_shuffles(
    seed: int, stream: int, sizes: list[int], group: int
) -> Callable[[int, int, int], np.ndarray]:
    """Samples without replacement from successive shuffles of each of several sets.

    The sequence of a set is one random permutation of it after another, drawn by `seed` and
    `stream`. It is consumed in groups of `group` elements, and a group contains no element twice
    unless it is larger than the set: where it spans two permutations, the second one begins with
    elements that the group does not contain yet.

    Returns:
      (set, position, count) -> int [count], `count` elements of the sequence of a set, from
      `position` on.
    """

    @lru_cache(group + 4 * len(sizes))
    def permutation(which: int, number: int) -> np.ndarray:
        rng = np.random.default_rng((seed, stream, which, number))
        order = rng.permutation(sizes[which]).astype(np.int32)
        # Elements that the first group takes from the previous permutation.
        carried = number * sizes[which] % group
        if carried == 0 or carried >= sizes[which]:
            return order
        unused = ~np.isin(order, permutation(which, number - 1)[-carried:])
        first = np.flatnonzero(unused)[: group - carried]
        return np.concatenate([order[first], np.delete(order, first)])

    def elements(which: int, position: int, count: int) -> np.ndarray:
        size = sizes[which]
        first, last = position // size, (position + count - 1) // size
        # Every `period` permutations, a group starts together with a permutation.
        period = group // gcd(group, size)
        for number in range(first - first % period, first):
            permutation(which, number)  # ascending, because each one recurs to the previous one
        sequence = np.concatenate([permutation(which, number) for number in range(first, last + 1)])
        return sequence[position - first * size :][:count]

    return elements
