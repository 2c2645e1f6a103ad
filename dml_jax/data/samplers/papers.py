"""The samplers of the papers' codes, with their oddities; each epoch or step is drawn from its own random numbers."""

import numpy as np

from dml_jax.config import Data
from dml_jax.data.samplers.base import (
    EPOCHS,
    STEPS,
    Cached,
    Sampler,
    by_epoch,
    by_step,
    by_varying_epoch,
    distinct_classes,
)
from dml_jax.errors import ConfigError


def shuffled(data: Data, members: list[np.ndarray], seed: int) -> Sampler:
    """All images in random order, once an epoch; the rest that fills no batch is dropped (HIST)."""
    total = sum(map(len, members))
    steps = _whole_batches(data, total)

    def order(epoch: int) -> np.ndarray:
        return np.random.default_rng((seed, EPOCHS, epoch, 0)).permutation(total)

    return by_epoch(order, data.batch_size, steps)


def hist_balanced(data: Data, members: list[np.ndarray], seed: int) -> Sampler:
    """B/K distinct classes drawn uniformly, K images of each with replacement (HIST's option `IPC`)."""
    images, classes = data.images_per_class, distinct_classes(data, members)

    def batch(step: int) -> np.ndarray:
        rng = np.random.default_rng((seed, STEPS, step, 0))
        drawn = rng.choice(len(members), classes, replace=False)
        return np.concatenate([rng.choice(members[c], images) for c in drawn])

    return by_step(batch, _whole_batches(data, sum(map(len, members))))


def diva(data: Data, members: list[np.ndarray], seed: int) -> Sampler:
    """B/K classes drawn uniformly with replacement, K images of each with replacement (DiVA): repeats occur."""
    images, classes = data.images_per_class, data.batch_size // data.images_per_class

    def batch(step: int) -> np.ndarray:
        rng = np.random.default_rng((seed, STEPS, step, 0))
        drawn = rng.integers(len(members), size=classes)
        return np.concatenate([rng.choice(members[c], images) for c in drawn])

    return by_step(batch, _whole_batches(data, sum(map(len, members))))


def mpn(data: Data, members: list[np.ndarray], seed: int) -> Sampler:
    """The MPN authors' CombineSampler: each class in shuffled chunks of K images, B/K random chunks a batch.

    An epoch shows every image at least once. A class whose size is a multiple of K still gets one whole chunk more; a
    class may come twice in a batch.
    """
    sizes = np.array([len(m) for m in members])
    images, chunks = data.images_per_class, data.batch_size // data.images_per_class
    steps = _combined_steps(data, sizes, images, chunks)

    def order(epoch: int) -> np.ndarray:
        return _combined(members, images, chunks, np.random.default_rng((seed, EPOCHS, epoch, 0)))

    return by_epoch(order, data.batch_size, steps)


def mpn_redraw(data: Data, members: list[np.ndarray], seed: int) -> Sampler:
    """`mpn` with the number of chunks in a batch drawn anew each epoch from the divisors of B in 2..B/2 (CUB)."""
    sizes = np.array([len(m) for m in members])
    divisors = [c for c in range(2, data.batch_size // 2 + 1) if data.batch_size % c == 0]
    if not divisors:
        raise ConfigError(f"data.batch_size={data.batch_size}: a prime cannot be redrawn as classes times images")
    steps = {c: _combined_steps(data, sizes, data.batch_size // c, c) for c in divisors}

    def draw(epoch: int) -> tuple[int, np.random.Generator]:
        rng = np.random.default_rng((seed, EPOCHS, epoch, 0))
        return int(rng.choice(divisors)), rng

    def order(epoch: int) -> np.ndarray:
        chunks, rng = draw(epoch)
        return _combined(members, data.batch_size // chunks, chunks, rng)

    return by_varying_epoch(order, lambda epoch: steps[draw(epoch)[0]], data.batch_size)


def ms(data: Data, members: list[np.ndarray], seed: int) -> Sampler:
    """RandomIdentitySampler of the multi-similarity loss's code: chunks of K images, distinct classes in a batch.

    An epoch ends when fewer than B/K classes have a chunk left. What fills no chunk of a class is left out of the
    epoch; classes smaller than K are filled up with repeated images.
    """
    images, classes = data.images_per_class, distinct_classes(data, members)
    sizes = np.array([len(m) for m in members])

    def draw(epoch: int) -> np.ndarray:
        """Classes of each batch: int [steps, classes]."""
        rng = np.random.default_rng((seed, EPOCHS, epoch, 0))
        left, available = np.maximum(sizes, images) // images, np.arange(len(sizes))
        batches = []
        while len(available) >= classes:
            places = rng.choice(len(available), classes, replace=False)
            batches.append(available[places])
            left[batches[-1]] -= 1
            available = np.delete(available, places[left[batches[-1]] == 0])
        return np.stack(batches)

    drawn = Cached(draw, 4)

    def order(epoch: int) -> np.ndarray:
        rng = np.random.default_rng((seed, EPOCHS, epoch, 1))
        shuffled = _shuffled(members, rng)
        chosen = drawn(epoch).reshape(-1)
        by_class = np.argsort(chosen, kind="stable")
        times = np.empty_like(chosen)  # that the class has come before in this epoch
        times[by_class] = np.arange(len(chosen)) - np.searchsorted(chosen[by_class], chosen[by_class])
        places = times[:, None] * images + np.arange(images)
        places = _filled(places, sizes[chosen][:, None], rng)
        return shuffled[(np.cumsum(sizes) - sizes)[chosen][:, None] + places].reshape(-1)

    return by_varying_epoch(order, lambda epoch: len(drawn(epoch)), data.batch_size)


def _ragged(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The row and the place in it of each element of rows of some sizes, one row after the other."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    return owners, np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _shuffled(members: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """All images class by class, those of each class in random order: int [N]."""
    owners, _ = _ragged(np.array([len(m) for m in members]))
    return np.concatenate(members)[np.lexsort((rng.random(len(owners)), owners))]


def _filled(places: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Places in rows of some sizes, random ones instead of those behind a row's end."""
    return np.where(places < sizes, places, rng.integers(sizes, size=places.shape))


def _combined(members: list[np.ndarray], images: int, chunks: int, rng: np.random.Generator) -> np.ndarray:
    """One epoch of `mpn`, `chunks` chunks of `images` images a batch: int [steps * images * chunks]."""
    sizes = np.array([len(m) for m in members])
    rows = np.maximum(sizes, images)  # images of a class, repeated where they fill no chunk
    owners, places = _ragged(rows)
    row = _shuffled(members, rng)[(np.cumsum(sizes) - sizes)[owners] + _filled(places, sizes[owners], rng)]
    lots = np.lexsort((rng.random(len(row)), owners))  # which of them come again in the chunk on top
    again = lots[places < (images - rows % images)[owners]]
    together = np.argsort(np.concatenate([owners, owners[again]]), kind="stable")
    parts = rng.permutation(np.concatenate([row, row[again]])[together].reshape(-1, images))
    more = rng.choice(len(parts), -len(parts) % chunks, replace=False)
    return np.concatenate([parts, parts[more]]).reshape(-1)


def _combined_steps(data: Data, sizes: np.ndarray, images: int, chunks: int) -> int:
    """Steps in an epoch of `_combined`."""
    total = int(np.sum(np.maximum(sizes, images) // images + 1))
    if -total % chunks > total:
        raise ConfigError(
            f"data.batch_size={data.batch_size}: a batch needs {chunks} chunks of {images} images, and the "
            f"{len(sizes)} training classes give {total}"
        )
    return -(-total // chunks)


def _whole_batches(data: Data, total: int) -> int:
    if data.batch_size > total:
        raise ConfigError(f"data.batch_size={data.batch_size}: the training split has only {total} images")
    return total // data.batch_size
