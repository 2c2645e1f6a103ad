"""A network applied to any number of images: few programs, all devices of this process, images read ahead by all cores.

The programs are for batches of 1, 2, 4, … images up to the full batch, each compiled when it is first needed; smaller
inputs are padded to the next of them. A row does not depend on the other images of its batch. Programs of different
batch sizes, and different numbers of devices, may round differently.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import jax
import numpy as np

from dml_jax.errors import DataError
from dml_jax.methods.contract import Embed, PyTree
from dml_jax.remote.ray_cluster import usable_cores
from dml_jax.train.distributed import mesh as meshes

CHUNK = 16  # images that a thread reads in one go, because handing over each costs as much as decoding a small one
AHEAD = 2  # batches that are read while the network computes
T = TypeVar("T")


class Network:
    """An embedding function, (params, model_state, images uint8 [B, H, W, 3]) -> [B, D], and its variables.

    `shape` is (H, W) of an image in pixels, `batch` the largest number of images at once.
    """

    def __init__(self, embed: Embed, params: PyTree, model_state: PyTree, shape: tuple[int, int], batch: int):
        self._embed = jax.jit(embed)
        self._mesh = meshes.make()
        self._everywhere = jax.device_put((params, model_state), meshes.replicated(self._mesh))
        self._on_first = jax.tree.map(lambda x: x.addressable_data(0), self._everywhere)
        self._shape = shape
        self._batch = -(-batch // self._mesh.size) * self._mesh.size

    def padded_size(self, count: int) -> int:
        """Number of rows of the program that embeds `count` images: a power of two, the full batch, or more."""
        size = min(1 << (count - 1).bit_length(), max(self._batch, count))
        devices = self._mesh.size
        return size if size < devices else -(-size // devices) * devices

    def embed(self, pixels: np.ndarray | Sequence[np.ndarray]) -> np.ndarray:
        """Embeds images, each uint8 [H, W, 3], in one batch: float32 [B, D]."""
        return np.asarray(self._start(pixels), np.float32)[: len(pixels)]

    def _start(self, pixels: np.ndarray | Sequence[np.ndarray]) -> jax.Array:
        """Starts to embed images; the rows of the result after the last image are padding."""
        batch = np.zeros((self.padded_size(len(pixels)), *self._shape, 3), np.uint8)
        for row, image in zip(batch, pixels, strict=False):
            row[:] = image
        if self._mesh.size == 1 or len(batch) < self._mesh.size:
            return self._embed(*self._on_first, batch)
        return self._embed(*self._everywhere, jax.device_put(batch, meshes.row_sharded(self._mesh)))

    def stream(
        self,
        read: Callable[[T], np.ndarray],
        groups: Iterable[Sequence[T]],
        on_bad: Callable[[DataError], object] | None = None,
        name: Callable[[T], str] = str,
    ) -> Iterator[np.ndarray]:
        """Embeds groups of images, reading ahead across their borders.

        Args:
          read: gives an image, uint8 [H, W, 3]; called by several threads.
          groups: what `read` takes, in groups that are not empty; each is divided into batches by itself.
          on_bad: called with the error of each image that cannot be read; its row is NaN.
          name: gives the name of an image for messages.

        Yields:
          For each group float32 [N, D].

        Raises:
          DataError: an image cannot be read, and there is no `on_bad`; or see `check_finite`.
        """
        cores = usable_cores()
        pool = ThreadPoolExecutor(cores)

        def submit(items: Sequence[T]) -> list[Future[list[np.ndarray | DataError]]]:
            chunk = min(CHUNK, -(-len(items) // cores))
            return [pool.submit(_read, read, items[i : i + chunk]) for i in range(0, len(items), chunk)]

        def start(parts: list[Future[list[np.ndarray | DataError]]]) -> tuple[jax.Array, np.ndarray]:
            found = [image for part in parts for image in part.result()]
            for error in found:
                if isinstance(error, DataError):
                    if on_bad is None:
                        raise error
                    on_bad(error)
            blank = np.zeros((*self._shape, 3), np.uint8)
            pixels = [blank if isinstance(image, DataError) else image for image in found]
            return self._start(pixels), np.array([isinstance(image, DataError) for image in found])

        try:
            batches = (
                (group[i : i + self._batch], i + self._batch >= len(group))
                for group in groups
                for i in range(0, len(group), self._batch)
            )
            being_read = _ahead(((items, submit(items), last) for items, last in batches), AHEAD)
            # One batch is given to the device while it computes the previous one.
            running = _ahead(((items, *start(parts), last) for items, parts, last in being_read), 1)
            rows = []
            for items, result, bad, last in running:
                rows.append(np.array(result, np.float32)[: len(items)])
                check_finite(rows[-1][~bad], [name(item) for item in itertools.compress(items, ~bad)])
                rows[-1][bad] = np.nan
                if last:
                    yield np.concatenate(rows)
                    rows = []
        finally:
            pool.shutdown(cancel_futures=True)


def check_finite(rows: np.ndarray, names: Sequence[str]) -> None:
    """Raises DataError, which names the first image, if embeddings float32 [N, D] hold NaN or infinity."""
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise DataError(
            f"{names[bad[0]]}: the model's embedding is not finite; use another checkpoint, or leave the image out"
        )


def _read(read: Callable[[T], np.ndarray], items: Sequence[T]) -> list[np.ndarray | DataError]:
    """The image of each item, or what is wrong with it."""
    found: list[np.ndarray | DataError] = []
    for item in items:
        try:
            found.append(read(item))
        except DataError as error:
            found.append(error)
    return found


def _ahead(items: Iterable[T], count: int) -> Iterator[T]:
    """The items, each after the next `count` have been taken from their source."""
    taken: deque[T] = deque()
    for item in items:
        taken.append(item)
        if len(taken) > count:
            yield taken.popleft()
    yield from taken
