"""The input pipeline: host batches of a split, prefetched by threads or processes (grain).

An element of the grain data set is a whole batch, a pure function of the step. So the batches do
not depend on the number of threads, processes and hosts, and a resumed run simply starts at its
step.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dml_jax.config import Data
from dml_jax.data import arrays, transforms
from dml_jax.data.cores import READERS, usable_cores
from dml_jax.data.samplers import Sampler
from dml_jax.data.split import Split
from dml_jax.data.worker_processes import WorkerReader
from dml_jax.errors import DataError

T = TypeVar("T", bound=tuple[object, ...])  # a batch
PREFETCHED = 4  # batches read ahead
# Cores per accelerator from which processes read by default, and processes per accelerator at most.
ENOUGH_CORES, WORKERS = 4, 16
SHARED_MEMORY, SHARED_BYTES = Path("/dev/shm"), 2**30  # a container may have only 64 MiB


def worker_processes(data: Data, accelerators: int) -> int:
    """Number of processes that read: `data.workers`, or what suits the GPUs or TPU cores of this
    process."""
    if data.workers >= 0:
        return data.workers
    cores = usable_cores()
    room = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY)[2] >= SHARED_BYTES
    if not accelerators or cores < ENOUGH_CORES * accelerators or not room:
        return 0
    return min(cores - 1, WORKERS * accelerators)


class BatchReader(AbstractContextManager[Any], Iterator[T]):
    """An iterator over prefetched batches, whose threads and processes run until the end of its
    `with` statement.

    The processes take seconds to start; meanwhile, threads read the first batches.
    """

    def __init__(
        self, make: Callable[[int], T], start: int, stop: int, data: Data, workers: int = 0
    ) -> None:
        import grain  # takes seconds, which commands without batches should not spend

        threads = data.threads or min(usable_cores(), READERS)
        first = min(stop, start + PREFETCHED) if workers else stop
        self._running, self.waited = ExitStack(), 0.0  # seconds spent waiting for batches so far
        options = grain.ReadOptions(
            num_threads=threads, prefetch_buffer_size=max(PREFETCHED, threads)
        )
        batches = grain.MapDataset.range(start, first).map(lambda step: make(int(step)))
        by_threads = iter(batches.to_iter_dataset(options))
        self._running.callback(by_threads.close)
        parts: list[Iterator[T]] = [by_threads]
        if first < stop:
            reader = WorkerReader(make, first, stop, workers, data.threads or 1)
            parts.append(self._running.enter_context(reader))
        self._iterator = chain.from_iterable(parts)

    def __next__(self) -> T:
        began = time.perf_counter()
        batch: T = next(self._iterator)
        self.waited += time.perf_counter() - began
        return batch

    def __exit__(self, *exception: object) -> None:
        self._running.close()


def training(
    split: Split,
    sampler: Sampler,
    data: Data,
    *,
    seed: int,
    features: np.ndarray | None = None,
    views: int = 1,
    start: int = 0,
    stop: int,
    host: int = 0,
    hosts: int = 1,
    accelerators: int = 0,
) -> BatchReader[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The training batches of the steps `start` to `stop` - 1.

    `default_rng((seed, step, slot, view))` draws the random numbers of an image, where slot is its
    row in the global batch. With features, `default_rng((seed, step))` draws the views.

    Args:
      features: [N, views, ...] in the order of the split, read instead of the images.
      views: number of random crops of each image.
      host, hosts: index of this process and number of processes; each gets consecutive rows of the
        global batch.
      accelerators: number of GPUs or TPU cores of this process, from which data.workers=-1 chooses.

    Returns:
      a reader of (images uint8 [views, B / hosts, H, W, 3], or other arrays or features
      [views, B / hosts, ...], labels int32 [B / hosts], index int32 [B / hosts]).

    Raises:
      DataError: while reading, if an image cannot be decoded or cropped, or images differ in size.
      PeerError: while reading, if a process of `data.workers` was killed.
    """
    transform = transforms.training(data)
    share = data.batch_size // hosts
    labels = np.asarray(split.labels, np.int32)

    def make(step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        first = host * share  # row of this host's first image in the global batch
        indices = sampler.batch(step)[first : first + share]
        images = []
        for view in range(views):
            for slot, index in enumerate(indices.tolist(), start=first):
                rng = np.random.default_rng((seed, step, slot, view))
                image = split.read(index, rng)
                try:
                    images.append(transform(image, rng))
                except DataError as error:
                    raise DataError(f"{split.ids[index]}: {error}") from error
        batch = _stack(images, [split.ids[i] for i in indices])
        batch = batch.reshape(views, share, *batch.shape[1:])
        return batch, labels[indices], indices.astype(np.int32)

    def draw(step: int, features: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        indices, rows = sampler.batch(step), slice(host * share, (host + 1) * share)
        rng = np.random.default_rng((seed, step))
        crops = rng.integers(features.shape[1], size=(views, len(indices)))[:, rows]
        indices = indices[rows]
        return features[indices[None], crops], labels[indices], indices.astype(np.int32)

    if features is not None:  # processes would copy their memory
        return BatchReader(partial(draw, features=features), start, stop, data)
    # Other data sets may be quick to generate, or cannot be sent to processes.
    workers = worker_processes(data, accelerators if split.content else 0)
    return BatchReader(make, start, stop, data, workers)


def _stack(images: list[np.ndarray], ids: list[str]) -> np.ndarray:
    """Stacks images, one view after the other, so that image i has the name ids[i % len(ids)]."""
    first = arrays.shape_of(images[0])
    for i, image in enumerate(images):
        if (shape := arrays.shape_of(image)) != first:
            sizes = [arrays.describe(s) for s in (shape, first)]
            why = "the images of a batch must have one size; set data.crop"
            if not (arrays.is_image(first) and arrays.is_image(shape)):
                why = "the arrays of a data set must have one shape and type"
            name = ids[i % len(ids)]
            raise DataError(f"{name} has {sizes[0]}, but {ids[0]} has {sizes[1]}: {why}")
    return np.stack(images)
