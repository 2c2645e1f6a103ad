"""An index of enrolled classes: a nearest-neighbour classifier with rejection, without training.

An image is assigned the class of the nearest enrolled image, or "unknown" if their cosine is below a threshold, by
default the one in `results.json` (`equal_error_cosine`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import neighbors
from dml_jax.files import atomic_write

UNKNOWN = "unknown"
Image = str | Path | np.ndarray
FIELDS = ("embeddings", "labels", "classes", "images", "fingerprint")


class Embedder(Protocol):
    """The part of `Model` that an index uses."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def threshold(self) -> float: ...

    def embed(self, images: Sequence[Image]) -> np.ndarray: ...


class Index:
    """Embeddings of enrolled images and their classes.

    Args:
      model: embeds the enrolled and the classified images.

    Attributes:
      classes: names, in the order in which they were added.
      embeddings: float32 [N, D].
      labels: int64 [N], positions in `classes`.
      images: N file names, "" for arrays.
    """

    def __init__(self, model: Embedder):
        self._model = model
        self.classes: list[str] = []
        self.embeddings = np.zeros((0, 0), np.float32)
        self.labels = np.zeros(0, np.int64)
        self.images: list[str] = []

    def add(self, classes: Mapping[str, Sequence[Image]]) -> None:
        """Enrolls images of new or existing classes. On an error, nothing is enrolled.

        Args:
          classes: images of each class, as for `Model.embed`.

        Raises:
          DataError: no classes; a name that is empty or "unknown"; a class without images; an image that cannot be used
            or is already enrolled.
        """
        if not classes:
            raise DataError("classes: none were given; give at least one")
        class_of = {image: self.classes[label] for image, label in zip(self.images, self.labels, strict=True) if image}
        files: list[Image] = []
        names: list[str] = []
        for name, images in classes.items():
            if not isinstance(name, str) or name.strip() != name or not name or name == UNKNOWN:
                raise DataError(
                    f"{name!r}: cannot be a class name; give a name without surrounding spaces, other than {UNKNOWN!r}"
                )
            if isinstance(images, str | Path):
                raise DataError(f"{name}: {images} is a single path; give a list of images")
            if len(images) == 0:
                raise DataError(f"{name}: has no images; give at least one, or omit the class")
            for image in images:
                if (key := _file_name(image)) in class_of:
                    raise DataError(f"{image}: is already enrolled as {class_of[key]}; give each image once")
                if key:
                    class_of[key] = name
            files += list(images)
            names += [name] * len(images)
        embeddings = self._model.embed(files)
        self.classes += [name for name in dict.fromkeys(names) if name not in self.classes]
        position = {name: i for i, name in enumerate(self.classes)}
        self.embeddings = np.concatenate([self.embeddings, embeddings]) if self.images else embeddings
        self.labels = np.concatenate([self.labels, np.array([position[name] for name in names], np.int64)])
        self.images += [_file_name(file) for file in files]

    def classify(self, images: Sequence[Image], *, threshold: float | None = None) -> tuple[list[str], np.ndarray]:
        """Classifies images.

        Args:
          images: as for `Model.embed`.
          threshold: images whose cosine to the nearest enrolled image is below it are "unknown"; None for the
            `equal_error_cosine` in the run's `results.json`.

        Returns:
          Class names, and cosines float32 [N] to the nearest enrolled image.

        Raises:
          DataError: nothing is enrolled, the threshold is outside -1..1, or an image cannot be used.
          CheckpointError: no threshold is given and `results.json` has none.
        """
        names, cosines, _ = self.nearest(images, threshold=threshold)
        return names, cosines

    def nearest(
        self, images: Sequence[Image], *, threshold: float | None = None
    ) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Like `classify`; also returns the positions int32 [N] of the nearest enrolled images in `images`."""
        if not self.images:
            raise DataError("the index is empty; add classes first")
        minimum = self._model.threshold if threshold is None else threshold
        if not -1 <= minimum <= 1:
            raise DataError(f"threshold={minimum:g}: must be a cosine in -1..1")
        distances, indices = neighbors.search(self._model.embed(images), self.embeddings, 1)
        cosines, nearest = (1 - distances[:, 0]).astype(np.float32), indices[:, 0]
        names = [
            self.classes[label] if cosine >= minimum else UNKNOWN
            for cosine, label in zip(cosines, self.labels[nearest], strict=True)
        ]
        return names, cosines, nearest

    def save(self, path: str | Path) -> None:
        """Writes a `.npz` file, completely or not at all.

        Raises:
          DataError: the path does not end in `.npz`, or its directory does not exist.
        """
        path = Path(path).expanduser()
        if path.suffix != ".npz":
            raise DataError(f"{path}: must end in .npz")
        if not path.parent.is_dir():
            raise DataError(f"{path}: there is no directory {path.parent}")
        with atomic_write(path) as draft, draft.open("wb") as file:
            np.savez(
                file,
                embeddings=self.embeddings,
                labels=self.labels,
                classes=np.array(self.classes, np.str_),
                images=np.array(self.images, np.str_),
                fingerprint=np.array(self._model.fingerprint),
            )

    @classmethod
    def load(cls, model: Embedder, path: str | Path) -> "Index":
        """Reads an index written by `save`.

        Raises:
          DataError: no such file, not an index, damaged, or created with another model.
        """
        path = Path(path).expanduser()
        if not path.is_file():
            raise DataError(f"{path}: there is no such file")
        try:
            with path.open("rb") as file:
                arrays = np.load(file, allow_pickle=False)
                embeddings, labels, classes, images, fingerprint = (arrays[name] for name in FIELDS)
        except Exception:  # NumPy and zipfile raise many types of exceptions for damaged files
            raise DataError(f"{path}: is not an index, or is damaged; enroll again") from None
        if str(fingerprint) != model.fingerprint:
            raise DataError(f"{path}: was created with another model or checkpoint; use that one, or enroll again")
        types = [array.dtype.kind for array in (embeddings, labels, classes, images)] == ["f", "i", "U", "U"]
        shapes = embeddings.ndim == 2 and embeddings.shape[:1] == labels.shape == images.shape and classes.ndim == 1
        if not (types and shapes and np.isfinite(embeddings).all() and ((labels >= 0) & (labels < len(classes))).all()):
            raise DataError(f"{path}: has arrays of inconsistent types, sizes or values; enroll again")
        index = cls(model)
        index.classes, index.images = classes.tolist(), images.tolist()
        index.embeddings, index.labels = embeddings, labels
        return index


def _file_name(image: Image) -> str:
    return "" if isinstance(image, np.ndarray) else str(Path(image).expanduser().resolve())
