"""Turns images into embeddings, for evaluation, export, analyses and `dml_jax.load(...).embed`.

All cores read images ahead while the devices compute. An embedding does not depend on the other
images in its batch, but programs for other batch sizes or numbers of devices may round differently.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, SupportsInt, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dml_jax.config import Config, Data
from dml_jax.data import arrays, transforms
from dml_jax.data.arrays import Shape
from dml_jax.data.read_ahead import read_each, stream
from dml_jax.data.split import Split
from dml_jax.errors import DataError
from dml_jax.methods.contract import Embed, PyTree
from dml_jax.numerics import unit
from dml_jax.train.distributed import device_mesh

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
    """A compiled function of images, and how to read images for it."""

    on_one_device: Any  # (params, model_state, images uint8 [B, H, W, 3]) -> [B, ...]
    on_all_devices: (
        Any  # the same, with images split over the devices and the result on every device
    )
    mesh: Mesh
    data: Data  # the transform of the images
    shape: Shape  # (H, W) in pixels, see `data.arrays`
    batch_size: int  # maximum over all devices
    few: bool  # whether there are programs for 1, 2, 4, … images; otherwise batches are padded

    def padded_size(self, count: int) -> int:
        """Number of rows of the program that embeds `count` images."""
        devices = self.mesh.size
        size = min(1 << (count - 1).bit_length(), self.batch_size) if self.few else self.batch_size
        size = max(size, count)
        return size if size < devices else -(-size // devices) * devices

    def start(
        self, model: Variables, pixels: Sequence[np.ndarray] | np.ndarray, count: int = 0
    ) -> jax.Array:
        """Starts to embed images, each uint8 [H, W, 3]; rows after the last image are padding.

        With several processes, `pixels` are this process's share of `count` images.
        """
        size, devices = self.padded_size(count or len(pixels)), self.mesh.size
        batch = arrays.blank(self.shape, size // jax.process_count())
        for row, image in zip(batch, pixels, strict=False):
            row[:] = image
        variables = model.params, model.model_state
        if devices == 1:
            return self.on_one_device(*variables, batch)
        if size < devices:
            local = jax.tree.map(lambda x: x.addressable_data(0), variables)
            return self.on_one_device(*local, batch)
        rows = device_mesh.row_sharded(self.mesh)
        return self.on_all_devices(*variables, jax.make_array_from_process_local_data(rows, batch))

    def embed(self, model: Variables, pixels: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Embeds images, each uint8 [H, W, 3], in one batch: float32 [B, ...]."""
        return np.asarray(self.start(model, pixels), np.float32)[: len(pixels)]

    def embed_split(
        self, model: Variables, split: Split, on_progress: Callable[[int], None] = lambda done: None
    ) -> np.ndarray:
        """Embeds the images of a split: float32 [N, ...]."""

        def read(index: int) -> np.ndarray:
            return self.transformed(split.read(index, None), split.ids[index])

        groups, name = [range(len(split.labels))], split.ids.__getitem__
        (rows,) = self.stream(model, read, groups, name=name, on_progress=on_progress)
        return rows

    def transformed(self, image: np.ndarray, name: str) -> np.ndarray:
        """An image transformed for the network, uint8 [H, W, 3]; DataError if it does not fit."""
        return transforms.fit_image(self.data, self.shape, image, name)

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
        """Embeds groups of images, see `read_ahead.stream`.

        Each process reads its share of every batch.
        """

        def local(items: Sequence[T]) -> Sequence[T]:
            share = self.padded_size(len(items)) // jax.process_count()
            return items[jax.process_index() * share :][:share]

        blank = arrays.blank(self.shape)
        return stream(
            partial(read_each, read),
            partial(self.start, model),
            groups,
            blank,
            self.batch_size,
            local,
            name=name,
            on_bad=on_bad,
            on_progress=on_progress,
        )


def compiled(
    function: Embed, config: Config, mesh: Mesh, shape: Shape, *, few: bool = False
) -> Embedder:
    """Compiles a function such as `Method.embed` into an embedder."""
    jit = partial(jax.jit, compiler_options=device_mesh.compiler_options(mesh))
    size = -(-config.evaluation.batch_size // mesh.size) * mesh.size
    on_all = jit(function, out_shardings=device_mesh.replicated(mesh))
    return Embedder(jit(function), on_all, mesh, config.data, shape, size, few)


def averaged(embed: Embed, flip: bool, scales: tuple[float, ...]) -> Embed:
    """The normalised mean of unit embeddings of an image at several scales and, with `flip`,
    mirrored."""
    if not flip and scales == (1.0,):
        return embed

    def embed_versions(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
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

    return embed_versions
