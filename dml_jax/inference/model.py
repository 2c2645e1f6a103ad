"""A trained model for inference; needs the work directory of a run but not its data set."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image as pillow

from dml_jax import buckets
from dml_jax.backbones.weights import packaged, store
from dml_jax.data import decode, transforms
from dml_jax.data.prepare.sources import File
from dml_jax.data.split import Split
from dml_jax.errors import CheckpointError, DataError
from dml_jax.evaluation import open_set
from dml_jax.evaluation.open_set import Calibration
from dml_jax.export import embedding_files, hub
from dml_jax.files import is_url, utf8_path
from dml_jax.inference.batches import Network, check_finite
from dml_jax.inference.index import Image, Images, Index
from dml_jax.inference.inputs import Item
from dml_jax.train import state
from dml_jax.train.start import warm_start

KINDS = "give a path, the contents of a file, a Pillow image or an array uint8 [height, width, 3]"


def locate(model: str | Path) -> Path:
    """The directory of a model, which is downloaded (`hf://user/name`) or converted (packaged weights) if necessary."""
    if str(model).startswith(hub.PREFIX):
        return hub.pull(str(model))
    if is_url(model):
        return buckets.read_copy("--model", str(model))
    return packaged.directory(utf8_path("--model", model))


def is_run(directory: Path) -> bool:
    """Whether the directory of a model is that of a run, and not one of converted weights."""
    return not (directory / store.METADATA).exists()


class Model:
    """The trained embedding of a run, or a published network as it is.

    Args:
      model: see `dml_jax.load`.
      checkpoint: "reported" (the one that `results.json` describes), "latest", "best" or a step.
      trust_code: see `dml_jax.load`.

    Attributes:
      directory: the work directory, or that of the weights.
      config: of the run.
      step: of the checkpoint.
      finished: whether the run has finished; its reported model is otherwise the newest or best so far, with a warning.
      shape: (H, W) in pixels of the images that the network sees.

    Raises:
      CheckpointError: no run there, no such checkpoint, or a corrupt one.
      WeightsError: damaged weights.
    """

    def __init__(self, model: str | Path, checkpoint: str = "reported", *, trust_code: bool = False):
        directory = self.directory = locate(model)
        self.shape = warm_start.image_shape(directory)
        # Falling back to an earlier checkpoint would silently give a different model from the requested one.
        self.config, method, found, unfinished = warm_start.load_trained(
            directory, checkpoint, warn=None, trust_code=trust_code
        )
        self.finished = not unfinished
        self.step = int(found.step)
        self._variables = (found.params, found.model_state)
        self._network = Network(method.embed, *self._variables, self.shape, self.config.evaluation.batch_size)
        self._transform = transforms.evaluation(self.config.data)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all parameters and of the model state."""
        return state.fingerprint(self._variables)

    def calibrate(self, sizes: np.ndarray) -> Calibration:
        """Imitates an index with the unseen classes of the run, from its `embeddings/test` and `embeddings/gallery`.

        Published weights have none; see `Index.calibrate`.

        Args:
          sizes: int [C], number of enrolled images of each class.

        Raises:
          DataError: the embeddings cannot be read, or are too few.
          CheckpointError: they are of another checkpoint.
        """
        if not is_run(self.directory):
            raise DataError(
                f"{self.directory}: published weights have no unseen classes to measure a threshold on; give "
                "--calibrate=DIRECTORY with class folders of other classes (in Python, Index.calibrate), or a threshold"
            )
        directory = self.directory / "embeddings"
        splits = []
        for path in (directory / "test", directory / "gallery"):
            if path.name == "gallery" and not path.exists():
                continue
            exported = embedding_files.read(path)
            if exported.labels is None or exported.manifest.get("checkpoint_step") != self.step:
                raise CheckpointError(
                    f"{path}: is of another checkpoint than step {self.step}, so it gives no threshold; write it with "
                    f"--mode=export --checkpoint={self.step}, or give a threshold"
                )
            splits.append((exported.embeddings, exported.labels))
        return open_set.calibrate(*splits[0], sizes, *splits[1:])

    def enroll(self, classes: Mapping[str, Sequence[Image]]) -> Index:
        """An index of new classes, without training: `enroll({"wren": ["a.jpg", "b.jpg"], …}).classify(["x.jpg"])`.

        Args:
          classes: images of each class, as for `embed`; `Index.add` adds more later.

        Raises:
          DataError: see `Index.add`.
        """
        index = Index(self)
        index.add(classes)
        return index

    def index(self, path: str | Path) -> Index:
        """Reads an index written by `Index.save`.

        Raises:
          DataError: no such file, or an index of another model.
        """
        return Index.load(self, path)

    def read(self, image: Image | Item, name: str = "image") -> np.ndarray:
        """Reads an image and transforms it as for evaluation: uint8 [H, W, 3].

        Args:
          image: path or contents of an image file, either with a name, a Pillow image, or an array uint8 [h, w, 3]
            (RGB).
          name: of an image that is not a path, for messages.

        Raises:
          DataError: it cannot be read, decoded or cropped, or its size does not fit a model that does not crop.
        """
        name = _name(image, name)
        if isinstance(image, Item):
            image = image.content
        data = self.config.data
        try:
            match image:
                case np.ndarray():
                    pixels = image
                case pillow.Image():
                    pixels = decode.from_pillow(image, upright=data.exif_rotation)
                case str() | Path():
                    pixels = decode.rgb(File(Path(image)).read(), data.decoded_side, upright=data.exif_rotation)
                case bytes():
                    pixels = decode.rgb(image, data.decoded_side, upright=data.exif_rotation)
                case _:
                    raise DataError(f"is of type {type(image).__name__}; {KINDS}")
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
        return self._preprocess(pixels, name)

    def _preprocess(self, image: np.ndarray, name: str) -> np.ndarray:
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
            raise DataError(f"{name}: is {image.dtype} {list(image.shape)}; must be uint8 [height, width, 3]")
        try:
            transformed = self._transform(image)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
        if self.config.data.crop == "none" and transformed.shape[:2] != self.shape:
            raise DataError(
                f"{name}: is {image.shape[1]}x{image.shape[0]} pixels; this model was trained on "
                f"{self.shape[1]}x{self.shape[0]} without cropping, so resize the image first"
            )
        return transformed

    def embed(self, images: Images) -> np.ndarray:
        """Embeds images.

        Args:
          images: paths or contents of image files, Pillow images, or arrays uint8 [h, w, 3] (RGB), also mixed.

        Returns:
          float32 [N, D], rows of unit length. A row does not depend on the other images, but the last bits may depend
          on their number, see `batches`.

        Raises:
          DataError: an image cannot be used, or its embedding is not finite; the message names its path or position.
        """
        if isinstance(images, str | Path):
            raise DataError(f"{images}: is a single path; give a list of images")
        if isinstance(images, bytes | pillow.Image):
            raise DataError("images: is a single image; give a list of images")
        if len(images) == 0:
            raise DataError("images: none were given; give at least one")
        if len(images) == 1:  # without threads, which would take longer than a small network
            rows = self.embed_pixels(self.read(images[0], "image 0")[None])
            check_finite(rows, [_name(images[0], "image 0")])
            return rows
        (rows,) = self._network.stream(
            lambda i: self.read(images[i], f"image {i}"),
            [range(len(images))],
            name=lambda i: _name(images[i], f"image {i}"),
        )
        return rows

    def embed_each(
        self, groups: Iterable[Sequence[Image | Item]], on_bad: Callable[[DataError], object] | None = None
    ) -> Iterator[np.ndarray]:
        """Embeds groups of images, each float32 [N, D]; images are read ahead across groups, see `Network.stream`."""
        return self._network.stream(self.read, groups, on_bad, _name)

    def embed_split(self, split: Split) -> np.ndarray:
        """Embeds the images of a split, float32 [N, D]."""
        (rows,) = self._network.stream(
            lambda i: self._preprocess(split.read(i, None), split.ids[i]),
            [range(len(split.labels))],
            name=lambda i: split.ids[i],
        )
        return rows

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Embeds images from `read` in one batch, uint8 [B, H, W, 3] -> float32 [B, D]."""
        return self._network.embed(pixels)


def _name(image: Image | Item, otherwise: str = "image") -> str:
    """What messages call an image: its name, or its path if it is one."""
    if isinstance(image, Item):
        return image.name
    return str(image) if isinstance(image, str | Path) else otherwise
