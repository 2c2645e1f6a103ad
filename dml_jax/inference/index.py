"""An index of enrolled classes: a nearest-neighbour classifier with rejection, without training.

An image is assigned the class with the largest margin over all other classes (see `open_set`), or "unknown" if the
margin is below a threshold. By default this is the threshold that `FALSE_ACCEPT_RATE` of the images of other classes
are expected to pass, measured on the unseen classes of the run, or after `Index.calibrate` on other classes.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from PIL import Image as pillow

from dml_jax.errors import DataError, suggest
from dml_jax.evaluation import open_set
from dml_jax.evaluation.open_set import FALSE_ACCEPT_RATE, Background, Point, Scorer
from dml_jax.files import atomic_write, reading

UNKNOWN = "unknown"
EMPTY = "the index is empty; add classes first"
Image = str | Path | bytes | pillow.Image | np.ndarray
Images = Sequence[Image] | np.ndarray  # an array [N, H, W, 3] is a batch of images


class Embedder(Protocol):
    """The part of `Model` that an index uses."""

    @property
    def fingerprint(self) -> str: ...

    def unseen(self) -> Background: ...

    def embed(self, images: Images) -> np.ndarray: ...


class Enrolled(NamedTuple):
    """Embeddings float32 [N, D] of images, and their names."""

    embeddings: np.ndarray
    images: list[str]


class Index:
    """Embeddings of enrolled images and their classes.

    Attributes:
      classes: names, in the order in which they were added.
      embeddings: float32 [N, D].
      labels: int64 [N], positions in `classes`.
      images: N file names, "" for images that were not given by path.
      removed: classes that `restore` enrolls again, by name.
    """

    def __init__(self, model: Embedder):
        self._model = model
        self.classes: list[str] = []
        self.embeddings = np.zeros((0, 0), np.float32)
        self.labels = np.zeros(0, np.int64)
        self.images: list[str] = []
        self.removed: dict[str, Enrolled] = {}
        self._background: Background | None = None  # of the run, loaded when it is needed
        self._forget()

    def _forget(self) -> None:
        """Drops cached results that depend on the enrolled images."""
        self._scorer: Scorer | None = None
        self._measured: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None  # arguments of `open_set.point`

    def add(self, classes: Mapping[str, Sequence[Image]]) -> None:
        """Enrolls images (as for `Model.embed`) of new or existing classes. On an error, nothing is enrolled."""
        class_of = {image: self.classes[label] for image, label in zip(self.images, self.labels, strict=True) if image}
        files: list[Image] = []
        names: list[str] = []
        for name, images in classes.items():
            if name.strip() != name or name in ("", UNKNOWN):
                raise DataError(
                    f"{name!r}: cannot be a class name; give a name without surrounding spaces, other than {UNKNOWN!r}"
                )
            for image in images:
                if (key := _file_name(image)) in class_of:
                    raise DataError(f"{key}: is already enrolled as {class_of[key]}; give each image once")
                if key:
                    class_of[key] = name
            files += list(images)
            names += [name] * len(images)
        self._append(names, Enrolled(self._model.embed(files), [_file_name(file) for file in files]))

    def _append(self, names: Sequence[str], new: Enrolled) -> None:
        self.classes += [name for name in dict.fromkeys(names) if name not in self.classes]
        position = {name: i for i, name in enumerate(self.classes)}
        self.embeddings = np.concatenate([self.embeddings, new.embeddings]) if self.images else new.embeddings
        self.labels = np.concatenate([self.labels, np.array([position[name] for name in names], np.int64)])
        self.images += new.images
        self._forget()

    def remove(self, name: str) -> None:
        """Moves a class and its images to `removed`, replacing a class of that name there."""
        if name not in self.classes:
            raise DataError(f"{name}: is not enrolled; {suggest(name, self.classes)}")
        label = self.classes.index(name)
        keep = self.labels != label
        self.classes.remove(name)
        kept, self.removed[name] = self._rows_where(keep), self._rows_where(~keep)
        self.embeddings, self.images = kept
        self.labels = self.labels[keep] - (self.labels[keep] > label)
        self._forget()

    def _rows_where(self, chosen: np.ndarray) -> Enrolled:
        return Enrolled(self.embeddings[chosen], [self.images[i] for i in np.flatnonzero(chosen)])

    def restore(self, name: str) -> None:
        """Enrolls a removed class again, unless one of its images has been enrolled since."""
        if name not in self.removed:
            known = f"removed: {', '.join(self.removed)}" if self.removed else "there is none; enroll its images again"
            raise DataError(f"{name}: is not a removed class; {known}")
        if again := sorted(set(self.removed[name].images) & set(self.images) - {""}):
            raise DataError(f"{again[0]}: has been enrolled since {name} was removed; remove that first")
        restored = self.removed.pop(name)
        self._append([name] * len(restored.images), restored)

    def calibrate(self, classes: Mapping[str, Sequence[Image]]) -> None:
        """Measures thresholds on images (as for `add`) of classes that are not enrolled.

        Otherwise the unseen classes of the run are used.
        """
        files = [image for images in classes.values() for image in images]
        enrolled = set(self.classes) | set(self.images) - {""}
        if shared := [name for name in (*classes, *map(_file_name, files)) if name in enrolled]:
            raise DataError(f"{shared[0]}: is enrolled; a threshold must be measured on other classes")
        labels = np.repeat(np.arange(len(classes)), [len(images) for images in classes.values()])
        self._background = open_set.choose(self._model.embed(files), labels)
        self._forget()

    def _against(self) -> Background:
        """The images of other classes."""
        if not self.images:
            raise DataError(EMPTY)
        if self._background is None:
            self._background = self._model.unseen()
        return self._background

    def expect(self, false_accept_rate: float = FALSE_ACCEPT_RATE) -> Point:
        """The threshold for a false-accept rate, and the expected results of this index at it.

        `false_accept_rate` is the fraction of images of other classes that may be given the name of an enrolled class.
        """
        enrolled = self._against(), self.embeddings, self.labels
        if self._measured is None:
            self._measured = (open_set.of_strangers(*enrolled), *open_set.hold_out(*enrolled))
        return open_set.point(*self._measured, false_accept_rate)

    def classify(
        self, images: Images, *, threshold: float | None = None, false_accept_rate: float = FALSE_ACCEPT_RATE
    ) -> tuple[list[str], np.ndarray]:
        """Class names, and their margins float32 [N].

        Args:
          images: as for `Model.embed`, or their embeddings, an array [N, D] with rows of unit length.
          threshold: images with a lower margin are "unknown"; None for the threshold of `false_accept_rate`.
          false_accept_rate: see `expect`.
        """
        names, margins, _ = self.nearest(images, threshold=threshold, false_accept_rate=false_accept_rate)
        return names, margins

    def nearest(
        self, images: Images, *, threshold: float | None = None, false_accept_rate: float = FALSE_ACCEPT_RATE
    ) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Like `classify`; also returns the positions int [N] in `images` of the nearest image of the best class."""
        if threshold is None:
            threshold = self.expect(false_accept_rate).threshold
        if self._scorer is None:
            self._scorer = Scorer(self._against(), self.embeddings, self.labels)
        found = self._scorer.decide(self._rows(images))
        accepted = found.margins >= threshold
        names = [self.classes[i] if good else UNKNOWN for i, good in zip(found.labels, accepted, strict=True)]
        return names, found.margins, found.nearest

    def _rows(self, images: Images) -> np.ndarray:
        return images if isinstance(images, np.ndarray) and images.ndim == 2 else self._model.embed(images)

    def best(self, images: Images, count: int = 5) -> tuple[np.ndarray, np.ndarray]:
        """The nearest image of each of the `count` most similar classes, without a decision.

        Returns:
          Positions int64 [N, k] in `images` and cosines float32 [N, k], descending.
        """
        cosines = self._rows(images) @ self.embeddings.T
        order = np.argsort(self.labels, kind="stable")
        ends = np.cumsum(np.bincount(self.labels, minlength=len(self.classes)))[:-1]
        nearest = np.stack([part[cosines[:, part].argmax(axis=1)] for part in np.split(order, ends)], axis=1)
        values = np.take_along_axis(cosines, nearest, axis=1).clip(-1, 1)
        top = np.argsort(-values, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(nearest, top, axis=1), np.take_along_axis(values, top, axis=1)

    def save(self, path: str | Path) -> None:
        """Writes a `.npz` file, completely or not at all, with the images for measuring thresholds."""
        path = Path(path).expanduser()
        parts = [Enrolled(self.embeddings, self.images), *self.removed.values()]
        arrays = {
            "embeddings": np.concatenate([part.embeddings for part in parts if part.images] or [self.embeddings]),
            "labels": self.labels,
            "classes": np.array(self.classes, np.str_),
            "images": np.array([name for part in parts for name in part.images], np.str_),
            "removed_classes": np.array(list(self.removed), np.str_),
            "removed_counts": np.array([len(part.images) for part in self.removed.values()], np.int64),
            "fingerprint": np.array(self._model.fingerprint),
        }
        if self._background is not None:
            arrays |= {f"background_{name}": array for name, array in self._background._asdict().items()}
        arrays["sha256"] = np.array(_digest(arrays))
        with atomic_write(path) as draft, draft.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, model: Embedder, path: str | Path) -> "Index":
        """Reads an index written by `save`."""
        path = Path(path).expanduser()
        with reading(path, "enroll again"), path.open("rb") as file:
            arrays = dict(np.load(file, allow_pickle=False))
            if str(arrays.pop("sha256")) != _digest(arrays):
                raise DataError("is not an index, or is damaged; enroll again")
        if str(arrays["fingerprint"]) != model.fingerprint:
            raise DataError(
                f"{path}: was created with another model or checkpoint, or other --flip or --scales; give those, or "
                "enroll again"
            )
        index = cls(model)
        index.labels, index.classes = arrays["labels"], arrays["classes"].tolist()
        ends = np.cumsum([len(index.labels), *arrays["removed_counts"]])[:-1]
        rows, names = np.split(arrays["embeddings"], ends), np.split(arrays["images"], ends)
        parts = [Enrolled(part, images.tolist()) for part, images in zip(rows, names, strict=True)]
        index.embeddings, index.images = parts[0]
        index.removed = dict(zip(arrays["removed_classes"].tolist(), parts[1:], strict=True))
        if "background_rows" in arrays:
            index._background = Background(arrays["background_rows"], arrays["background_labels"])
        return index


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the names, types and contents of arrays."""
    sha256 = hashlib.sha256()
    for name, array in arrays.items():
        sha256.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        sha256.update(array.tobytes())
    return sha256.hexdigest()


def _file_name(image: Image) -> str:
    return str(Path(image).expanduser().resolve()) if isinstance(image, str | Path) else ""
