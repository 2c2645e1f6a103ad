"""From images to embeddings: of training's evaluations, exports and analyses, and of `dml_jax.load(...).embed`.

All cores read images ahead while the devices compute. A row does not depend on the other images of its batch, but
programs for different batch sizes or numbers of devices may round differently.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, Protocol, SupportsInt, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dml_jax.config import Config, Data
from dml_jax.data import transforms
from dml_jax.data.pipeline import usable_cores
from dml_jax.data.split import Split
from dml_jax.errors import DataError
from dml_jax.methods.contract import Embed, PyTree
from dml_jax.numerics import unit
from dml_jax.train.distributed import mesh as meshes

CHUNK = 16  # images that a thread reads in one go, because handing over each costs as much as decoding a small one
AHEAD = 2  # batches that are read while the network computes
T = TypeVar("T")


class Variables(Protocol):
    """A train state or a trained model."""

    @property
    def params(self) -> PyTree: ...
    @property
    def model_state(self) -> PyTree: ...
    @property
    def step(self) -> SupportsInt: ...


class Embedder(NamedTuple):
    """A compiled function of images, and how images are read for it."""

    on_one_device: Any  # (params, model_state, images uint8 [B, H, W, 3]) -> [B, ...]
    on_all_devices: Any  # the same with images split over the devices, and the result on every device
    mesh: Mesh
    data: Data  # the transform of the images
    shape: tuple[int, int]  # (H, W) in pixels
    batch_size: int  # the most images at once, on all devices together
    few: bool  # whether 1, 2, 4, … images have programs of their own; otherwise every batch is padded to the full size

    def padded_size(self, count: int) -> int:
        """Number of rows of the program that embeds `count` images."""
        devices = self.mesh.size
        size = min(1 << (count - 1).bit_length(), self.batch_size) if self.few else self.batch_size
        size = max(size, count)
        return size if size < devices else -(-size // devices) * devices

    def start(self, model: Variables, pixels: Sequence[np.ndarray] | np.ndarray, count: int = 0) -> jax.Array:
        """Starts to embed images, each uint8 [H, W, 3]; the rows of the result after the last image are padding.

        With several processes, `pixels` are this process's share of `count` images.
        """
        size, devices = self.padded_size(count or len(pixels)), self.mesh.size
        batch = np.zeros((size // jax.process_count(), *self.shape, 3), np.uint8)
        for row, image in zip(batch, pixels, strict=False):
            row[:] = image
        variables = model.params, model.model_state
        result: jax.Array
        if devices == 1:
            result = self.on_one_device(*variables, batch)
        elif size < devices:
            result = self.on_one_device(*jax.tree.map(lambda x: x.addressable_data(0), variables), batch)
        else:
            rows = meshes.row_sharded(self.mesh)
            result = self.on_all_devices(*variables, jax.make_array_from_process_local_data(rows, batch))
        return result

    def embed(self, model: Variables, pixels: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Embeds images, each uint8 [H, W, 3], in one batch: float32 [B, ...]."""
        return np.asarray(self.start(model, pixels), np.float32)[: len(pixels)]

    def embed_split(
        self, model: Variables, split: Split, on_progress: Callable[[int], None] = lambda done: None
    ) -> np.ndarray:
        """Embeds the images of a split, float32 [N, ...]; each process reads its share of every batch."""

        def read(index: int) -> np.ndarray:
            return self.transformed(split.read(index, None), split.ids[index])

        groups = [range(len(split.labels))]
        (rows,) = self.stream(model, read, groups, name=lambda index: split.ids[index], on_progress=on_progress)
        return rows

    def transformed(self, image: np.ndarray, name: str) -> np.ndarray:
        """An image as the network sees it, uint8 [H, W, 3]; raises DataError with its name if it does not fit."""
        try:
            pixels = transforms.evaluation(self.data)(image)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
        if pixels.shape[:2] != self.shape:
            raise DataError(
                f"{name}: is {image.shape[1]}x{image.shape[0]} pixels, but the model takes images of "
                f"{self.shape[1]}x{self.shape[0]} without cropping; resize it, or train with data.crop"
            )
        return pixels

    def stream(
        self,
        model: Variables,
        read: Callable[[T], np.ndarray],
        groups: Iterable[Sequence[T]],
        *,
        name: Callable[[T], str] = str,
        on_bad: Callable[[DataError], object] | None = None,
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> Iterator[np.ndarray]:
        """Embeds groups of images, reading ahead across their borders; yields float32 [N, ...] for each group.

        `read` gives an image, uint8 [H, W, 3], of an item, in several threads. `on_bad` is called with the error of
        each image that cannot be read, whose row is NaN (with one process only); `on_progress` with the number done.
        """

        def begin(items: Sequence[T], found: list[np.ndarray | DataError]) -> tuple[jax.Array, np.ndarray]:
            bad = np.zeros(len(items), bool)
            for i, image in enumerate(found):
                if isinstance(image, DataError):
                    if on_bad is None:
                        raise image
                    on_bad(image)
                    bad[i] = True
            blank = np.zeros((*self.shape, 3), np.uint8)
            pixels = [blank if isinstance(image, DataError) else image for image in found]
            return self.start(model, pixels, len(items)), bad

        def own(items: Sequence[T]) -> Sequence[T]:
            share = self.padded_size(len(items)) // jax.process_count()
            return items[jax.process_index() * share :][:share]

        # One batch is given to the device while it computes the previous one.
        batches = read_ahead(read, groups, self.batch_size, own)
        running = _ahead(((batch, *begin(batch.items, batch.images)) for batch in batches), 1)
        rows = np.empty(0, np.float32)
        for batch, result, bad in running:
            found = np.asarray(result, np.float32)[: len(batch.items)]
            check_finite(found[~bad], [name(item) for item in itertools.compress(batch.items, ~bad)])
            if batch.start == 0:
                rows = np.empty((batch.total, *found.shape[1:]), np.float32)
            end = batch.start + len(found)
            rows[batch.start : end] = found
            rows[batch.start : end][bad] = np.nan
            on_progress(end)
            if end == batch.total:
                yield rows


def compiled(function: Embed, config: Config, mesh: Mesh, shape: tuple[int, int], *, few: bool = False) -> Embedder:
    """The embedder of a function such as `Method.embed`."""
    on_all = jax.jit(function, out_shardings=meshes.replicated(mesh))
    size = -(-config.evaluation.batch_size // mesh.size) * mesh.size
    return Embedder(jax.jit(function), on_all, mesh, config.data, shape, size, few)


def check_finite(rows: np.ndarray, names: Sequence[str]) -> None:
    """Raises a DataError that names the first image if embeddings float32 [N, ...] hold NaN or infinity."""
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=tuple(range(1, rows.ndim))))
    if len(bad):
        raise DataError(
            f"{names[bad[0]]}: the model's embedding is not finite; use another checkpoint, or leave the image out"
        )


class Read(NamedTuple, Generic[T]):
    """A batch of items, and their place in a group of `total`."""

    items: Sequence[T]
    images: list[np.ndarray | DataError]
    start: int
    total: int


def read_ahead(
    read: Callable[[T], np.ndarray],
    groups: Iterable[Sequence[T]],
    size: int,
    own: Callable[[Sequence[T]], Sequence[T]] = lambda items: items,
) -> Iterator[Read[T]]:
    """Divides groups into batches of at most `size` items; all cores read those that `own` selects."""
    cores = usable_cores()
    pool = ThreadPoolExecutor(cores)

    def submit(items: Sequence[T]) -> list[Future[list[np.ndarray | DataError]]]:
        chunk = max(1, min(CHUNK, -(-len(items) // cores)))
        return [pool.submit(_read, read, items[i : i + chunk]) for i in range(0, len(items), chunk)]

    cuts = (
        (group[start : start + size], start, len(group)) for group in groups for start in range(0, len(group), size)
    )
    submitted = ((items, start, total, submit(own(items))) for items, start, total in cuts)
    try:
        for items, start, total, parts in _ahead(submitted, AHEAD):
            yield Read(items, [image for part in parts for image in part.result()], start, total)
    finally:
        pool.shutdown(cancel_futures=True)


def _read(read: Callable[[T], np.ndarray], items: Sequence[T]) -> list[np.ndarray | DataError]:
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


def averaged(embed: Embed, *, flip: bool, scales: tuple[float, ...]) -> Embed:
    """The mean, of unit length, of the unit embeddings of each image at several scales, with `flip` also mirrored."""
    if not flip and scales == (1.0,):
        return embed

    def call(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        total = jnp.zeros(())
        for scale in scales:
            size = tuple(max(1, round(scale * side)) for side in images.shape[1:3])
            shape = (len(images), *size, 3)
            resized = images
            if size != images.shape[1:3]:
                smooth = jax.image.resize(images.astype(jnp.float32), shape, "linear")
                resized = jnp.clip(jnp.round(smooth), 0, 255).astype(jnp.uint8)
            for version in (resized, resized[:, :, ::-1]) if flip else (resized,):
                total += unit(embed(params, model_state, version))
        return unit(total)

    return call
