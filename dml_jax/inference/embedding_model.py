"""The part of a model that needs no JAX: reading images, an index, and embeddings by any of the
runtimes."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image as pillow

from dml_jax import identity as identities
from dml_jax import seal
from dml_jax.backbones.weights import converted
from dml_jax.config.sections import Data
from dml_jax.data import decode, transforms
from dml_jax.data.arrays import Shape, is_image
from dml_jax.data.files import File, Record
from dml_jax.data.read_ahead import check_finite
from dml_jax.errors import ConfigError, DataError
from dml_jax.evaluation.unit_rows import first_bad_row
from dml_jax.files import expand_path, is_url, read_json
from dml_jax.identity import Versions
from dml_jax.inference.inputs import Item
from dml_jax.seal import Identity

if TYPE_CHECKING:
    from dml_jax.evaluation.open_set import Photographs
    from dml_jax.inference.enrolled import Image, Images
    from dml_jax.inference.index import Index


def locate(model: str | Path) -> Path:
    """The directory of a model, which is downloaded (`hf://user/name`) or converted (packaged
    weights) if necessary."""
    if not isinstance(model, str | PathLike):
        what = "the work directory of a run, hf://user/name, converted weights, or lite0"
        raise ConfigError(f"model={model!r}: give {what}")
    if str(model).startswith("hf://"):
        from dml_jax.export import hub  # imports JAX

        return hub.pull(str(model))
    if is_url(model):
        from dml_jax import buckets

        return buckets.read_copy("--model", str(model))
    if str(model) not in converted.PACKAGES:
        return expand_path("--model", model)

    def identify(directory: Path) -> Identity:
        from dml_jax.train import model as models  # imports JAX

        return models.identify(directory)

    return converted.converted(str(model), identify)


def is_run(directory: Path) -> bool:
    """Whether a model's directory holds a run rather than converted weights."""
    return not (directory / converted.METADATA).exists()


class EmbeddingModel(ABC):
    """A model that embeds images."""

    runtime: str  # the library that computes the embeddings: "jax" or "onnxruntime"
    lacks_graph = False  # whether onnxruntime would compute them if `graphs.make` made its graph
    directory: Path  # of the run or of the converted weights
    data: Data  # the transform of images
    shape: Shape  # (H, W) in pixels of the images that the network sees, see `data.arrays`
    step: int  # number of training steps; 0 for published weights
    method_distance: bool = False  # whether a distance of the method replaces the cosine
    finished: bool  # whether the run has finished
    identity: Identity  # of the embedding function; equal for all runtimes
    versions: Versions  # of an image, whose embeddings are averaged
    _unproved: Identity | None  # what a row of the probe is to be compared with

    @abstractmethod
    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Embeds images from `read` in one batch, uint8 [B, H, W, 3] -> float32 [B, D]."""

    @abstractmethod
    def _stream(self, read: Any, groups: Any, **options: Any) -> Iterator[np.ndarray]:
        """Embeds groups of images, see `read_ahead.stream`."""

    def _check_probe(self, embed: Callable[[np.ndarray], np.ndarray], remedy: str = "") -> None:
        """Once: raises CheckpointError if the row of the probe is not the one that is stored."""
        if (stored := self._unproved) is None:
            return
        identities.check_pixels(stored, self.data, self.shape, str(self.directory))
        row = embed(identities.probe(self.data, self.shape)[:1])[0]
        remedy = remedy or (seal.REMEDY if is_run(self.directory) else converted.REMEDY)
        identities.check_row(stored, row, str(self.directory), remedy)
        self._unproved = None

    def distance_of_probe(self) -> float:
        """The distance of the row of the probe from the one that the model's directory states;
        raises CheckpointError beyond rounding."""
        row = self.embed_pixels(identities.probe(self.data, self.shape)[:1])[0]
        identities.check_row(self.identity, row, str(self.directory), seal.REMEDY)
        return identities.distance(self.identity, row)

    def unseen(self) -> "Photographs":
        """Images of the unseen classes of the run, whose names are the labels, from its
        `embeddings/test` and `gallery`; none for published weights, data.split=all, flip or
        scales."""
        from dml_jax.evaluation import open_set  # imports SciPy

        directory = self.directory / "embeddings"
        none = open_set.Photographs(np.zeros((0, 0), np.float32), *np.zeros((2, 0), np.str_))
        if not is_run(self.directory) or self.versions != Versions():
            return none
        from dml_jax.export import embedding_files  # imports JAX
        from dml_jax.train.records import workdir

        if workdir.read_config(self.directory)["config"]["data"]["split"] == "all":
            return none
        searched = ("gallery",) if (directory / "gallery").exists() else ()
        splits = [
            embedding_files.of_run(self.directory, name, self.identity)
            for name in ("test", *searched)
        ]
        widths = {split.embeddings.shape[1] for split in splits}
        if len(widths) > 1 or any(split.labels is None for split in splits):
            raise DataError(
                f"{directory}: test and gallery are not of one run with labels; write them with "
                "--mode=export"
            )
        rows = np.concatenate([split.embeddings for split in splits])
        if bad := first_bad_row(rows):
            what = f"row {bad[0]} of {list(rows.shape)} {bad[1]}"
            raise DataError(f"{directory}: {what}, so it gives no threshold")
        labels = np.concatenate([split.labels for split in splits if split.labels is not None])
        columns = {
            name: [value for split in splits for value in split.metadata[name]]
            for name in ("session", "class_name")
            if all(name in split.metadata for split in splits)
        }
        sessions = np.array(columns.get("session", [""] * len(rows)), np.str_)
        names = np.array(columns.get("class_name", labels), np.str_)
        return open_set.choose(open_set.Photographs(rows, names, sessions))

    def training_classes(self) -> list[str]:
        """The names of the classes that the run was trained on."""
        if not is_run(self.directory):
            return []
        facts = read_json(self.directory / "config.json", dict[str, Any])
        return list(facts.get("class_names") or ())

    def enroll(self, classes: "Mapping[str, Sequence[Image]]") -> "Index":
        """An index of new classes, without training: `enroll({"wren": ["a.jpg", "b.jpg"],
        …}).classify(["x.jpg"])`."""
        from dml_jax.inference.index import Index

        index = Index(self)
        index.add(classes)
        return index

    def index(self, path: str | Path) -> "Index":
        """Reads an index written by `Index.save`."""
        from dml_jax.inference.index import Index

        return Index.load(self, path)

    def read(self, image: "Image | Item", name: str = "image") -> np.ndarray:
        """Reads an image (see `embed`) and transforms it as for evaluation: uint8 [H, W, 3].

        `name` stands for an image that is not a path in messages.
        """
        name = name_of(image, name)
        if not is_image(self.shape) and isinstance(image, np.ndarray):
            return transforms.fit_image(self.data, self.shape, image, name)
        try:
            match image:
                case Item() | Record():
                    return transforms.fit_file(self.data, self.shape, image.read())
                case np.ndarray():
                    pixels = np.repeat(image[:, :, None], 3, axis=2) if image.ndim == 2 else image
                case pillow.Image():
                    pixels = decode.from_pillow(image, upright=self.data.exif_rotation)
                case str() | Path() | bytes():
                    file = image if isinstance(image, bytes) else File(Path(image)).read()
                    return transforms.fit_file(self.data, self.shape, file)
                case _:
                    pixels = np.asarray(image)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.size == 0:
            kind = type(image).__name__ if pixels.dtype == object else pixels.dtype
            remedy = "must be a path, the content of a file, or uint8 [height, width(, 3)]"
            raise DataError(f"{name}: is {kind} {list(pixels.shape)}; {remedy}")
        return transforms.fit_image(self.data, self.shape, pixels, name)

    def listed(self, images: "Images", name: str = "images") -> "Sequence[Image]":
        """The images in their order; DataError, which calls them `name`, unless there are some."""
        single = isinstance(images, str | Path | bytes | pillow.Image | Mapping)
        one = is_image(self.shape) and isinstance(images, np.ndarray) and images.ndim in (2, 3)
        if single or one or not hasattr(images, "__getitem__") or len(images) == 0:
            raise DataError(f"{name}: give a list of one or more images")
        # In other containers, positions need not be the order, e.g. of a column of pandas.
        return images if isinstance(images, Sequence) else list(images)

    def embed(self, images: "Images") -> np.ndarray:
        """Embeds images: float32 [N, D], rows of unit length.

        Args:
          images: paths or contents of image files, Pillow images, or arrays uint8, [h, w, 3] (RGB)
            or [h, w] (grey), also mixed; for a model of other arrays, those arrays.

        Raises:
          DataError: an image cannot be used, or its embedding is not finite; the message names its
            path or position.
        """
        images = self.listed(images)
        if len(images) == 1:  # threads would take longer than a small network
            rows = self.embed_pixels(self.read(images[0], "image 0")[None])
            check_finite(rows, [name_of(images[0], "image 0")])
            return rows
        (rows,) = self._stream(
            lambda i: self.read(images[i], f"image {i}"),
            [range(len(images))],
            name=lambda i: name_of(images[i], f"image {i}"),
        )
        return rows

    def embed_each(
        self,
        groups: "Iterable[Sequence[Image | Item]]",
        on_bad: Callable[[DataError], object] | None = None,
        on_read: Callable[[float], object] = lambda seconds: None,
    ) -> Iterator[np.ndarray]:
        """Embeds groups of images, each float32 [N, D], reading ahead across groups; see
        `read_ahead.stream`.

        `on_read` is called, in several threads, with the seconds that reading and decoding an image
        took.
        """

        def read(image: Any) -> np.ndarray:
            began = time.perf_counter()
            try:
                return self.read(image)
            finally:
                on_read(time.perf_counter() - began)

        return self._stream(read, groups, name=name_of, on_bad=on_bad)


def name_of(image: "Image | Item", otherwise: str = "image") -> str:
    """What messages call an image: its name, or its path if it is one."""
    if isinstance(image, Item | Record):
        return image.name
    return str(image) if isinstance(image, str | Path) else otherwise
