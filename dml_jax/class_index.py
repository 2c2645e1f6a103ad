"""Classes enrolled by their images: an image is of the class of the nearest one, or unknown.

Nothing is trained. What is compared is the cosine to the nearest enrolled image, the quantity whose threshold
`results.json` names (`equal_error_cosine`).
"""

import zipfile
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
    """What an index needs of a model."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def threshold(self) -> float: ...

    def embed(self, images: Sequence[Image]) -> np.ndarray: ...


class Index:
    """Embeddings of enrolled images and their classes.

    Args:
      model: that embeds them, and what is classified.

    Attributes:
      classes: names, in the order they came.
      embeddings: float32 [N, D]; labels: int64 [N], places in `classes`; images: N names of files, "" for arrays.
    """

    def __init__(self, model: Embedder):
        self._model = model
        self.classes: list[str] = []
        self.embeddings = np.zeros((0, 0), np.float32)
        self.labels = np.zeros(0, np.int64)
        self.images: list[str] = []

    def add(self, classes: Mapping[str, Sequence[Image]]) -> None:
        """Enrolls images; those of a name that is known already join it. All or none.

        Args:
          classes: images of each class, as for `Model.embed`.

        Raises:
          DataError: no classes; a name that is empty or "unknown"; a class without images; an image that cannot be used
            or is enrolled already.
        """
        if not classes:
            raise DataError("no classes were given to enroll")
        taken = {image: self.classes[label] for image, label in zip(self.images, self.labels, strict=True) if image}
        files: list[Image] = []
        names: list[str] = []
        for name, images in classes.items():
            if not isinstance(name, str) or name.strip() != name or not name or name == UNKNOWN:
                raise DataError(f"{name!r}: cannot be the name of a class; give a word other than {UNKNOWN!r}")
            if isinstance(images, str | Path):
                raise DataError(f"{name}: {images} is one path; give a list of images")
            if len(images) == 0:
                raise DataError(f"{name}: has no image; give at least one, or leave the class out")
            for image in images:
                if (key := _name(image)) in taken:
                    raise DataError(f"{image}: is enrolled as {taken[key]} already; give each image once")
                if key:
                    taken[key] = name
            files += list(images)
            names += [name] * len(images)
        embeddings = self._model.embed(files)
        self.classes += [name for name in dict.fromkeys(names) if name not in self.classes]
        place = {name: i for i, name in enumerate(self.classes)}
        self.embeddings = np.concatenate([self.embeddings, embeddings]) if self.images else embeddings
        self.labels = np.concatenate([self.labels, np.array([place[name] for name in names], np.int64)])
        self.images += [_name(file) for file in files]

    def classify(self, images: Sequence[Image], *, threshold: float | None = None) -> tuple[list[str], np.ndarray]:
        """The class of each image.

        Args:
          images: as for `Model.embed`.
          threshold: cosine to the nearest enrolled image below which the answer is "unknown"; by default the
            `equal_error_cosine` of the run's `results.json`.

        Returns:
          Names, and the cosines float32 [N] to the nearest enrolled image.

        Raises:
          DataError: nothing is enrolled, a threshold outside of -1..1, or an image that cannot be used.
          CheckpointError: no threshold is given and the run names none.
        """
        names, cosines, _ = self.nearest(images, threshold=threshold)
        return names, cosines

    def nearest(
        self, images: Sequence[Image], *, threshold: float | None = None
    ) -> tuple[list[str], np.ndarray, np.ndarray]:
        """As `classify`, and the place int32 [N] of the nearest enrolled image in `images`."""
        if not self.images:
            raise DataError("nothing is enrolled; add classes first")
        least = self._model.threshold if threshold is None else threshold
        if not -1 <= least <= 1:
            raise DataError(f"threshold={least:g}: is a cosine; give a number in -1..1")
        distances, indices = neighbors.search(self._model.embed(images), self.embeddings, 1)
        cosines, places = (1 - distances[:, 0]).astype(np.float32), indices[:, 0]
        names = [
            self.classes[self.labels[place]] if cosine >= least else UNKNOWN
            for cosine, place in zip(cosines, places, strict=True)
        ]
        return names, cosines, places

    def save(self, path: str | Path) -> None:
        """Writes one `.npz` of plain arrays, whole or not at all.

        Raises:
          DataError: the name has another ending, or its directory is not there.
        """
        path = Path(path).expanduser()
        if path.suffix != ".npz":
            raise DataError(f"{path}: an index is a .npz file; give it that ending")
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
        """The index that `save` wrote.

        Raises:
          DataError: no such file, not an index, damaged, or made with another model.
        """
        path = Path(path).expanduser()
        if not path.is_file():
            raise DataError(f"{path}: there is no such file")
        try:
            with path.open("rb") as file:
                held = np.load(file, allow_pickle=False)
                embeddings, labels, classes, images, fingerprint = (held[name] for name in FIELDS)
        except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile):
            raise DataError(f"{path}: is not an index, or damaged; enroll again") from None
        if str(fingerprint) != model.fingerprint:
            raise DataError(f"{path}: was made with another model or checkpoint; use that one, or enroll again")
        if embeddings.ndim != 2 or not len(embeddings) == len(labels) == len(images):
            raise DataError(f"{path}: its arrays do not fit together; enroll again")
        index = cls(model)
        index.classes, index.images = classes.tolist(), images.tolist()
        index.embeddings, index.labels = embeddings, labels
        return index


def _name(image: Image) -> str:
    return "" if isinstance(image, np.ndarray) else str(Path(image).expanduser().resolve())
