"""The samplers of the papers' published code, including their peculiarities.

N is the number of training images, C of classes, B the batch size and K the images per class. Each
epoch (or step) has its own random generator, with the distribution of the original code.
"""

from functools import lru_cache

import numpy as np

from dml_jax.data.samplers.base import (
    EPOCHS,
    STEPS,
    Sampler,
    checked,
    distinct_classes_per_batch,
    from_batches,
    from_epochs,
    from_varying_epochs,
    indices_by_class,
)
from dml_jax.errors import ConfigError


@checked
def shuffled(labels: np.ndarray, batch_size: int, seed: int = 0) -> Sampler:
    """All images in random order whatever their class: the default of HIST (Lim et al., CVPR 2022).

    An epoch has N // B steps, which show each image at most once; the incomplete batch is dropped.
    """
    total = sum(map(len, indices_by_class(labels)))
    steps = _full_batches(batch_size, total)

    def order(epoch: int) -> np.ndarray:
        return np.random.default_rng((seed, EPOCHS, epoch, 0)).permutation(total)

    return from_epochs(order, batch_size, steps)


@checked
def distinct_classes(
    labels: np.ndarray, batch_size: int, images_per_class: int, seed: int = 0
) -> Sampler:
    """B / K classes, K images of each with replacement: HIST (Lim et al., CVPR 2022), option `IPC`.

    An epoch has N // B steps, drawn independently.
    """
    class_indices = indices_by_class(labels)
    images = images_per_class
    classes = distinct_classes_per_batch(batch_size, images, len(class_indices))

    def batch(step: int) -> np.ndarray:
        rng = np.random.default_rng((seed, STEPS, step, 0))
        drawn = rng.choice(len(class_indices), classes, replace=False)
        return np.concatenate([rng.choice(class_indices[c], images) for c in drawn])

    return from_batches(batch, _full_batches(batch_size, len(labels)))


@checked
def with_replacement(
    labels: np.ndarray, batch_size: int, images_per_class: int, seed: int = 0
) -> Sampler:
    """B / K classes and K images, both with replacement: DiVA (Milbich, Roth et al., ECCV 2020).

    Classes are drawn uniformly, whatever their size, and classes and images may occur more than
    once in a batch. An epoch has N // B steps, drawn independently.
    """
    class_indices = indices_by_class(labels)
    images, classes = images_per_class, batch_size // images_per_class

    def batch(step: int) -> np.ndarray:
        rng = np.random.default_rng((seed, STEPS, step, 0))
        drawn = rng.integers(len(class_indices), size=classes)
        return np.concatenate([rng.choice(class_indices[c], images) for c in drawn])

    return from_batches(batch, _full_batches(batch_size, len(labels)))


@checked
def chunks(labels: np.ndarray, batch_size: int, images_per_class: int, seed: int = 0) -> Sampler:
    """Chunks of K images of a class, B / K per batch: MPN (Seidenschwarz et al., ICML 2021).

    The CombineSampler of the authors' code. A class may occur in a batch more than once. A class of
    n >= K images yields n // K + 1 chunks, the last one filled up with repeated images (also where
    K divides n); a smaller class yields two.

    An epoch shows every image: all these chunks, and repeated ones that complete the last batch.
    """
    class_indices = indices_by_class(labels)
    sizes = np.array([len(indices) for indices in class_indices])
    images, per_batch = images_per_class, batch_size // images_per_class
    steps = _chunked_steps(batch_size, sizes, images, per_batch)

    def order(epoch: int) -> np.ndarray:
        rng = np.random.default_rng((seed, EPOCHS, epoch, 0))
        return _chunked_epoch(class_indices, images, per_batch, rng)

    return from_epochs(order, batch_size, steps)


@checked
def redrawn_chunks(labels: np.ndarray, batch_size: int, seed: int = 0) -> Sampler:
    """`chunks` with new numbers in every epoch: MPN (Seidenschwarz et al., ICML 2021) on CUB.

    The number is drawn uniformly from the divisors of B in 2..B/2, and a chunk has B divided by it
    images. Epochs are counted as in `chunks` and differ in length.
    """
    class_indices = indices_by_class(labels)
    sizes = np.array([len(indices) for indices in class_indices])
    divisors = [c for c in range(2, batch_size // 2 + 1) if batch_size % c == 0]
    if not divisors:
        raise ConfigError(
            f"data.batch_size={batch_size}: the sampler 'redrawn_chunks' divides a batch into "
            "classes times images, which a prime number does not allow"
        )
    steps = {c: _chunked_steps(batch_size, sizes, batch_size // c, c) for c in divisors}

    def draw(epoch: int) -> tuple[int, np.random.Generator]:
        rng = np.random.default_rng((seed, EPOCHS, epoch, 0))
        return int(rng.choice(divisors)), rng

    def order(epoch: int) -> np.ndarray:
        per_batch, rng = draw(epoch)
        return _chunked_epoch(class_indices, batch_size // per_batch, per_batch, rng)

    return from_varying_epochs(order, lambda epoch: steps[draw(epoch)[0]], batch_size)


@checked
def distinct_chunks(
    labels: np.ndarray, batch_size: int, images_per_class: int, seed: int = 0
) -> Sampler:
    """Chunks of K images of B / K distinct classes: MS loss (Wang et al., CVPR 2019).

    The RandomIdentitySampler of the code of the multi-similarity loss. Images that do not fill a
    chunk are left out of the epoch; classes smaller than K are filled up with repeated images.

    An epoch ends when fewer than B / K classes have a chunk left, so epochs differ in length.
    """
    class_indices = indices_by_class(labels)
    images = images_per_class
    classes = distinct_classes_per_batch(batch_size, images, len(class_indices))
    sizes = np.array([len(indices) for indices in class_indices])

    @lru_cache(4)
    def drawn(epoch: int) -> np.ndarray:
        """Classes of each batch: int [steps, classes]."""
        rng = np.random.default_rng((seed, EPOCHS, epoch, 0))
        left, available = np.maximum(sizes, images) // images, np.arange(len(sizes))
        batches = []
        while len(available) >= classes:
            positions = rng.choice(len(available), classes, replace=False)
            batches.append(available[positions])
            left[batches[-1]] -= 1
            available = np.delete(available, positions[left[batches[-1]] == 0])
        return np.stack(batches)

    def order(epoch: int) -> np.ndarray:
        rng = np.random.default_rng((seed, EPOCHS, epoch, 1))
        images_by_class = _shuffle_within_classes(class_indices, rng)
        chosen = drawn(epoch).reshape(-1)
        by_class = np.argsort(chosen, kind="stable")
        earlier = np.empty_like(chosen)  # number of earlier chunks of the same class in this epoch
        ordered = chosen[by_class]
        earlier[by_class] = np.arange(len(chosen)) - np.searchsorted(ordered, ordered)
        positions = earlier[:, None] * images + np.arange(images)
        positions = _redraw_overflow(positions, sizes[chosen][:, None], rng)
        return images_by_class[(np.cumsum(sizes) - sizes)[chosen][:, None] + positions].reshape(-1)

    return from_varying_epochs(order, lambda epoch: len(drawn(epoch)), batch_size)


def _ragged(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(row, position in it) of each element of concatenated rows, both int [sum(lengths)]."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _shuffle_within_classes(
    class_indices: list[np.ndarray], rng: np.random.Generator
) -> np.ndarray:
    """Images grouped by class, in random order within each class: int [N]."""
    classes, _ = _ragged(np.array([len(indices) for indices in class_indices]))
    return np.concatenate(class_indices)[np.lexsort((rng.random(len(classes)), classes))]


def _redraw_overflow(
    positions: np.ndarray, sizes: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Replaces positions beyond the size of their class by random ones within it."""
    return np.where(positions < sizes, positions, rng.integers(sizes, size=positions.shape))


def _chunked_epoch(
    class_indices: list[np.ndarray], images: int, per_batch: int, rng: np.random.Generator
) -> np.ndarray:
    """The batches of one epoch of `chunks`: int [steps * per_batch * images]."""
    sizes = np.array([len(indices) for indices in class_indices])
    padded = np.maximum(sizes, images)  # smaller classes are filled up with repeated images
    classes, positions = _ragged(padded)
    offsets = (np.cumsum(sizes) - sizes)[classes]
    shuffled_images = _shuffle_within_classes(class_indices, rng)
    row = shuffled_images[offsets + _redraw_overflow(positions, sizes[classes], rng)]
    # The first images of a random order within each class fill up its last chunk.
    lots = np.lexsort((rng.random(len(row)), classes))
    repeated = lots[positions < (images - padded % images)[classes]]
    by_class = np.argsort(np.concatenate([classes, classes[repeated]]), kind="stable")
    all_chunks = rng.permutation(np.concatenate([row, row[repeated]])[by_class].reshape(-1, images))
    extra = rng.choice(len(all_chunks), -len(all_chunks) % per_batch, replace=False)
    return np.concatenate([all_chunks, all_chunks[extra]]).reshape(-1)


def _chunked_steps(batch_size: int, sizes: np.ndarray, images: int, per_batch: int) -> int:
    """Number of steps in `_chunked_epoch`."""
    total = int(np.sum(np.maximum(sizes, images) // images + 1))
    if -total % per_batch > total:
        needed = f"a batch needs {per_batch} chunks of {images} images"
        found = f"but the {len(sizes)} training classes yield only {total}"
        raise ConfigError(f"data.batch_size={batch_size}: {needed}, {found}; use a smaller one")
    return -(-total // per_batch)


def _full_batches(batch_size: int, total: int) -> int:
    if batch_size > total:
        problem = f"the training split has only {total} images"
        raise ConfigError(f"data.batch_size={batch_size}: {problem}; use a smaller data.batch_size")
    return total // batch_size
