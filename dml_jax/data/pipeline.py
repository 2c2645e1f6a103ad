"""From a split to batches on the host, read ahead by threads or worker processes (grain).

An element of the grain data set is a whole batch, made by a pure function of its step. So the batches are the same for
every number of threads, workers and hosts, and a run continues by starting at its step.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from dml_jax.config import Data
from dml_jax.data import transforms
from dml_jax.data.samplers import Sampler
from dml_jax.data.split import Split
from dml_jax.errors import DataError

T = TypeVar("T")


class Reader(Generic[T]):
    """An iterator over batches that are made ahead; close it, or use it in a `with` statement.

    Attributes:
      waited: seconds spent waiting for batches so far.
    """

    def __init__(self, make: Callable[[int], T], start: int, stop: int, data: Data) -> None:
        import grain  # takes seconds: not for those who only look at a split

        # grain's workers leave shared memory behind when they come to an end, so they are given none to come to.
        end = stop if data.workers == 0 else np.iinfo(np.int64).max
        batches = grain.MapDataset.range(start, end).map(_Until(stop, make))
        ahead = max(data.prefetch, data.threads)
        if data.workers == 0:
            options = grain.ReadOptions(num_threads=data.threads, prefetch_buffer_size=ahead)
            self._iterator = iter(batches.to_iter_dataset(options))
            self._taken: Callable[[Any], T] = lambda batch: batch
        else:
            _parse_flags()
            options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
            each = grain.MultiprocessingOptions(
                num_workers=data.workers, per_worker_buffer_size=max(1, ahead // data.workers)
            )
            dataset = batches.to_iter_dataset(options).mp_prefetch(each, worker_init_fn=_Worker(os.getpid()))
            self._iterator = iter(dataset)
            self._taken = _copied
        self._left = stop - start
        self.waited = 0.0

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._left == 0:
            self.close()
            raise StopIteration
        begun = time.perf_counter()
        batch = self._taken(next(self._iterator))
        self.waited += time.perf_counter() - begun
        self._left -= 1
        return batch

    def close(self) -> None:
        """Ends the threads or worker processes; may be called again."""
        self._iterator.close()

    def __enter__(self) -> "Reader[T]":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Until(Generic[T]):
    """`make` up to its end; nothing worth mentioning is made from there on."""

    def __init__(self, stop: int, make: Callable[[int], T]) -> None:
        self.stop, self.make = stop, make

    def __call__(self, number: int) -> T | int:
        return self.make(int(number)) if number < self.stop else 0


class _Worker:
    """What a worker process does first: leave signals to its parent, and end when that is gone."""

    def __init__(self, parent: int) -> None:
        self.parent = parent

    def __call__(self, index: int, count: int) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):  # a signal to the group is the parent's to handle
            signal.signal(number, signal.SIG_IGN)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while os.getppid() == self.parent:
            time.sleep(0.5)
        os._exit(1)


def _copied(batch: Any) -> Any:
    """Takes a batch out of the memory shared with a worker, which grain gives back once the arrays are gone."""
    return tuple(np.array(part) if isinstance(part, np.ndarray) else part for part in batch)


def _parse_flags() -> None:
    """grain reads absl flags before it starts workers; in notebooks and tests nobody has parsed them."""
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


def training(
    split: Split,
    sampler: Sampler,
    data: Data,
    *,
    seed: int,
    views: int = 1,
    start: int = 0,
    stop: int,
    host: int = 0,
    hosts: int = 1,
) -> Reader[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The batches of the steps `start` to `stop` - 1.

    What is random about an image comes from `default_rng((seed, step, slot, view))`, where slot is its place in the
    global batch.

    Args:
      views: how often each image is transformed anew.
      host, hosts: this process and how many there are; each gets its share of successive rows of the global batch.

    Returns:
      a reader of (images uint8 [views, B / hosts, H, W, 3], labels int32 [B / hosts], indices int32 [B / hosts]).

    Raises:
      DataError: from the reader, where an image cannot be read or images differ in size.
    """
    transform = transforms.training(data)
    share = data.batch_size // hosts
    labels = np.asarray(split.labels, np.int32)

    def make(step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        first = host * share
        indices = sampler.batch(step)[first : first + share]
        images = []
        for view in range(views):
            for slot, index in enumerate(indices.tolist(), start=first):
                rng = np.random.default_rng((seed, step, slot, view))
                images.append(transform(split.read(index, rng), rng))
        batch = _stack(images, [split.ids[i] for i in indices])
        return batch.reshape(views, share, *batch.shape[1:]), labels[indices], indices.astype(np.int32)

    return Reader(make, start, stop, data)


def testing(
    split: Split,
    data: Data,
    batch_size: int,
    *,
    host: int = 0,  # noqa: PT028 (this is no test)
    hosts: int = 1,  # noqa: PT028
) -> Reader[tuple[np.ndarray, int]]:
    """All images of a split in order.

    Args:
      batch_size: images in a global batch, a multiple of `hosts`.
      host, hosts: this process and how many there are; each gets its share of successive rows of the global batch.

    Returns:
      a reader of (images uint8 [batch_size / hosts, H, W, 3], count): the first `count` rows of the global batch are
      images, the rest is zero.
    """
    transform = transforms.testing(data)
    total, share = len(split.labels), batch_size // hosts

    def make(number: int) -> tuple[np.ndarray, int]:
        begin = number * batch_size
        mine = range(begin + host * share, min(begin + (host + 1) * share, total))
        # Where all rows of this host are behind the last image, one image is read for its shape.
        images = _stack(
            [transform(split.read(i, None)) for i in mine or [total - 1]], [split.ids[i] for i in mine or [total - 1]]
        )[: len(mine)]
        missing = share - len(images)
        padded = np.concatenate([images, np.zeros((missing, *images.shape[1:]), np.uint8)])
        return padded, min(batch_size, total - begin)

    return Reader(make, 0, -(-total // batch_size), data)


def _stack(images: list[np.ndarray], ids: list[Any]) -> np.ndarray:
    for i, image in enumerate(images):
        if image.shape != images[0].shape:
            raise DataError(
                f"{ids[i % len(ids)]} is {image.shape[1]}x{image.shape[0]} pixels, {ids[0]} {images[0].shape[1]}x"
                f"{images[0].shape[0]}: a batch needs one size; set data.crop"
            )
    return np.stack(images)
