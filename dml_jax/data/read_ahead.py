"""Reading images ahead: all cores read the next batches while the present one is computed."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from dml_jax.data.pipeline import READERS, usable_cores
from dml_jax.errors import DataError

# Images that a thread reads in one go, because handing over each costs as much as decoding a small
# one.
CHUNK = 16
AHEAD = 2  # batches that are read while the network computes
R = TypeVar("R")
T = TypeVar("T")


def stream(
    read: Callable[[Sequence[T]], list[np.ndarray | DataError]],
    start: Callable[[Sequence[np.ndarray], int], Any],
    groups: Iterable[Sequence[T]],
    blank: np.ndarray,
    size: int,
    own: Callable[[Sequence[T]], Sequence[T]] = lambda items: items,
    *,
    name: Callable[[T], str] = str,
    on_bad: Callable[[DataError], object] | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Iterator[np.ndarray]:
    """Embeds groups of images, reading ahead across their borders; yields float32 [N, ...] for each
    group.

    `read` reads some items, in several threads; `start` starts to embed what was read of a batch of
    so many items, and what follows their rows is padding. `blank` stands for an image that cannot
    be read: `on_bad` is called with its error, and its row is NaN (with one process only).
    `on_progress` is called with the number done.
    """
    threads = min(usable_cores(), READERS)
    pool = ThreadPoolExecutor(threads)

    def submit(items: Sequence[T]) -> list[Future[list[np.ndarray | DataError]]]:
        chunk = max(1, min(CHUNK, -(-len(items) // threads)))
        return [pool.submit(read, items[i : i + chunk]) for i in range(0, len(items), chunk)]

    def begin(
        parts: Sequence[Future[list[np.ndarray | DataError]]], count: int
    ) -> tuple[Any, np.ndarray]:
        images = [image for part in parts for image in part.result()]
        bad = np.array([isinstance(image, DataError) for image in images], bool)
        for error in itertools.compress(images, bad):
            if on_bad is None:
                raise error  # type: ignore[misc]
            on_bad(error)  # type: ignore[arg-type]
        pixels = [blank if isinstance(image, DataError) else image for image in images]
        bad.resize(
            count, refcheck=False
        )  # other processes' images are good, or those processes fail
        return start(pixels, count), bad

    batches = (
        (group[first : first + size], first, len(group))
        for group in groups
        for first in range(0, len(group), size)
    )
    # Only the names are kept: the items may be the contents of files.
    submitted = (
        ([name(item) for item in items], first, total, submit(own(items)))
        for items, first, total in batches
    )
    ready = _ahead(submitted, AHEAD)
    started = (
        (names, first, total, *begin(parts, len(names))) for names, first, total, parts in ready
    )
    rows = np.empty(0, np.float32)
    try:
        # One batch is given to the device while it computes the previous one.
        for names, first, total, result, bad in _ahead(started, 1):
            found = np.asarray(result, np.float32)[: len(names)]
            check_finite(found[~bad], list(itertools.compress(names, ~bad)))
            if first == 0:
                rows = np.empty((total, *found.shape[1:]), np.float32)
            end = first + len(found)
            rows[first:end] = found
            rows[first:end][bad] = np.nan
            on_progress(end)
            if end == total:
                yield rows
    finally:
        pool.shutdown(cancel_futures=True)


def check_finite(rows: np.ndarray, names: Sequence[str]) -> None:
    """Raises DataError, which names the first image, if embeddings float32 [N, ...] hold NaN or
    infinity."""
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=tuple(range(1, rows.ndim))))
    if len(bad):
        raise DataError(
            f"{names[bad[0]]}: the model's embedding is not finite; use another checkpoint, or "
            "leave the image out"
        )


def read_each(read: Callable[[T], np.ndarray], items: Sequence[T]) -> list[np.ndarray | DataError]:
    """The images of some items, or the reasons why they cannot be read."""
    found: list[np.ndarray | DataError] = []
    for item in items:
        try:
            found.append(read(item))
        except DataError as error:
            found.append(error)
    return found


def ordered_map(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Maps in threads; yields the results in order and computes only a few of them ahead."""
    threads = usable_cores()
    with ThreadPoolExecutor(threads) as pool:
        for result in _ahead((pool.submit(function, item) for item in items), 8 * threads):
            yield result.result()


def _ahead(items: Iterable[T], count: int) -> Iterator[T]:
    """The items, each after the next `count` have been taken from their source."""
    taken: deque[T] = deque()
    for item in items:
        taken.append(item)
        if len(taken) > count:
            yield taken.popleft()
    yield from taken
