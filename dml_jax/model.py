"""A trained model by itself: images in, embeddings out; needs the work directory of a run, not its data."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import jax
import numpy as np

from dml_jax.class_index import Image, Index
from dml_jax.data import decode, transforms
from dml_jax.errors import CheckpointError, DataError
from dml_jax.files import expand_path
from dml_jax.train import warm_start, workdir
from dml_jax.train.state import fingerprint


class Model:
    """The embedding a run has learnt.

    Args:
      directory: the run's work directory.
      checkpoint: "reported" (what `results.json` speaks of), "latest", "best" or a step.

    Attributes:
      config: of the run.
      step: of the checkpoint.

    Raises:
      CheckpointError: no run there, no such checkpoint, or a corrupt one.
    """

    def __init__(self, directory: str | Path, checkpoint: str = "reported"):
        directory = expand_path("directory", directory)
        self._directory = directory
        height, width = workdir.read_config(directory)["shape"]
        self._shape = (height, width)
        self.config, method, self._state = warm_start.load_trained(directory, checkpoint, _refuse)
        self.step = int(self._state.step)
        self._embed = jax.jit(method.embed)
        self._transform = transforms.evaluation(self.config.data)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all parameters and of what else the embedding rests on."""
        return fingerprint((self._state.params, self._state.model_state))

    @property
    def threshold(self) -> float:
        """The cosine at which "same class or not" erred equally often either way on the run's unseen classes.

        Raises:
          CheckpointError: `results.json` does not name it.
        """
        path = self._directory / "results.json"
        try:
            return float(json.loads(path.read_text(encoding="utf-8"))["equal_error_cosine"])
        except (OSError, ValueError, KeyError, TypeError):
            raise CheckpointError(f"{path}: names no equal_error_cosine; give a threshold yourself") from None

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
        """The index that `Index.save` wrote.

        Raises:
          DataError: no such file, or one of another model.
        """
        return Index.load(self, path)

    def read(self, path: str | Path) -> np.ndarray:
        """An image file the way the model sees it: uint8 [H, W, 3].

        Raises:
          DataError: it cannot be decoded, or its size does not fit a model that does not crop.
        """
        try:
            return self._prepared(decode.rgb(Path(path).read_bytes()), str(path))
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error
        except DataError as error:
            raise DataError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from error

    def _prepared(self, image: np.ndarray, name: str) -> np.ndarray:
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise DataError(f"{name}: is {image.dtype} {list(image.shape)}; uint8 [height, width, 3] is needed")
        ready = self._transform(image)
        if self.config.data.crop == "none" and ready.shape[:2] != self._shape:
            raise DataError(
                f"{name}: is {image.shape[1]}x{image.shape[0]} pixels; this model was trained on "
                f"{self._shape[1]}x{self._shape[0]} without cropping, so resize the image first"
            )
        return ready

    def embed(self, images: Sequence[Image]) -> np.ndarray:
        """Embeddings of images.

        Args:
          images: paths of image files, or arrays uint8 [H, W, 3].

        Returns:
          float32 [N, D], rows of unit length.

        Raises:
          DataError: an image cannot be used; names it.
        """
        if isinstance(images, str | Path):
            raise DataError(f"{images}: give a list of images")
        size = self.config.evaluation.batch_size
        parts = []
        for start in range(0, len(images), size):
            ready = [
                self._prepared(image, f"image {start + i}") if isinstance(image, np.ndarray) else self.read(image)
                for i, image in enumerate(images[start : start + size])
            ]
            batch = np.zeros((size, *ready[0].shape), np.uint8)
            batch[: len(ready)] = ready
            found = self._embed(self._state.params, self._state.model_state, batch)
            parts.append(np.asarray(found, np.float32)[: len(ready)])
        if not parts:
            raise DataError("no images were given")
        return np.concatenate(parts)


def _refuse(text: str) -> None:
    """A run falls back to an earlier checkpoint; here that would be another model than the one asked for."""
    reason = text.removesuffix("; falling back to the one before")
    raise CheckpointError(f"{reason}; an earlier one is loaded by --checkpoint=STEP")
