"""Reading images ahead: all cores read the next batches while the present one is computed."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from dml_jax.data.cores import READERS, usable_cores
from dml_jax.errors import DataError

# Images that a thread reads at a time: handing over one costs as much as decoding a small one.
CHUNK = 16
AHEAD = 2  # batches that are read while the network computes
R = TypeVar("R")
T = TypeVar("T")
Image = np.ndarray | DataError  # pixels, or why there are none


def stream(
    read: Callable[[Sequence[T]], list[Image]],
    start: Callable[[Sequence[np.ndarray], int], Any],
    groups: Iterable[Sequence[T]],
    blank: np.ndarray,
    size: int,
    local: Callable[[Sequence[T]], Sequence[T]] = lambda items: items,
    *,
    name: Callable[[T], str] = str,
    on_bad: Callable[[DataError], object] | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Iterator[np.ndarray]:
    """Embeds groups of images, reading ahead across groups; yields float32 [N, ...] for each.

    Args:
      read: reads several items, in several threads.
      start: (images read, number of items in the batch) -> starts to embed them; rows beyond that
        number are padding.
      blank: stands for an image that cannot be read; its row is NaN (with one process only).
      size: items per batch.
      local: the items of a batch that this process reads.
      on_bad: called with the error of such an image, which is raised otherwise.
      on_progress: called with the number of items done in the group.
    """
    threads = min(usable_cores(), READERS)
    pool = ThreadPoolExecutor(threads)

    def submit(items: Sequence[T]) -> list[Future[list[Image]]]:
        chunk = max(1, min(CHUNK, -(-len(items) // threads)))
        return [pool.submit(read, items[i : i + chunk]) for i in range(0, len(items), chunk)]

    def begin(parts: Sequence[Future[list[Image]]], count: int) -> tuple[Any, np.ndarray]:
        images = [image for part in parts for image in part.result()]
        bad = np.zeros(count, bool)  # images of other processes are good, or those processes fail
        for i, image in enumerate(images):
            if isinstance(image, DataError):
                if on_bad is None:
                    raise image
                on_bad(image)
                bad[i] = True
        pixels = [blank if isinstance(image, DataError) else image for image in images]
        return start(pixels, count), bad

    batches = (
        (group[first : first + size], first, len(group))
        for group in groups
        for first in range(0, len(group), size)
    )
    # Only names wait in memory: the items may be the contents of files.
    submitted = (
        ([name(item) for item in items], first, total, submit(local(items)))
        for items, first, total in batches
    )
    started = (
        (names, first, total, *begin(parts, len(names)))
        for names, first, total, parts in _ahead(submitted, AHEAD)
    )
    rows = np.empty(0, np.float32)
    try:
        # One batch is given to the device while it computes the previous one.
        for names, first, total, result, bad in _ahead(started, 1):
            batch = np.asarray(result, np.float32)[: len(names)]
            check_finite(batch[~bad], list(itertools.compress(names, ~bad)))
            if first == 0:
                rows = np.empty((total, *batch.shape[1:]), np.float32)
            end = first + len(batch)
            rows[first:end] = batch
            rows[first:end][bad] = np.nan
            on_progress(end)
            if end == total:
                yield rows
    finally:
        pool.shutdown(cancel_futures=True)


def check_finite(rows: np.ndarray, names: Sequence[str]) -> None:
    """Raises DataError with the first name if embeddings float32 [N, ...] are not finite."""
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=tuple(range(1, rows.ndim))))
    if len(bad):
        remedy = "use another checkpoint, or leave the image out"
        raise DataError(f"{names[bad[0]]}: the model's embedding is not finite; {remedy}")


def read_each(read: Callable[[T], np.ndarray], items: Sequence[T]) -> list[Image]:
    """The images of some items, or the reasons why they cannot be read."""
    images: list[Image] = []
    for item in items:
        try:
            images.append(read(item))
        except DataError as error:
            images.append(error)
    return images


def ordered_map(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Maps in threads; yields the results in order and computes only a few of them ahead."""
    threads = usable_cores()
    with ThreadPoolExecutor(threads) as pool:
        for result in _ahead((pool.submit(function, item) for item in items), 8 * threads):
            yield result.result()


def _ahead(items: Iterable[T], count: int) -> Iterator[T]:
    """The items, each yielded after the next `count` have been started."""
    waiting: deque[T] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > count:
            yield waiting.popleft()
    yield from waiting
