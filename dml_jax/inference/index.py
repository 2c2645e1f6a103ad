"""An index of enrolled classes: a nearest-neighbour classifier with rejection, without training.

An image is assigned the class of the nearest enrolled image (or by another rule, see `open_set.decide`), or "unknown"
if its similarity to that class is below a threshold. By default this is the threshold that `FALSE_ACCEPT_RATE` of the
images of other classes are expected to reach, measured for an index of this size with the test split of the run, or
with `Index.calibrate` on other classes.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image as pillow

from dml_jax.errors import DataError
from dml_jax.evaluation import open_set
from dml_jax.evaluation.open_set import FALSE_ACCEPT_RATE, RULES, Calibration, Expected, Rule
from dml_jax.files import atomic_write

UNKNOWN = "unknown"
EMPTY = "the index is empty; add classes first"
Image = str | Path | bytes | pillow.Image | np.ndarray
Images = Sequence[Image] | np.ndarray  # an array [N, H, W, 3] is a batch of images
FIELDS = ("embeddings", "labels", "classes", "images", "fingerprint")
CALIBRATION = tuple(f"calibration_{name}" for name in Calibration._fields)


class Embedder(Protocol):
    """The part of `Model` that an index uses."""

    @property
    def fingerprint(self) -> str: ...

    def calibrate(self, sizes: np.ndarray) -> Calibration: ...

    def embed(self, images: Images) -> np.ndarray: ...


class Index:
    """Embeddings of enrolled images and their classes.

    Args:
      model: embeds the enrolled and the classified images.

    Attributes:
      classes: names, in the order in which they were added.
      embeddings: float32 [N, D].
      labels: int64 [N], positions in `classes`.
      images: N file names, "" for images that were not given by path.
    """

    def __init__(self, model: Embedder):
        self._model = model
        self.classes: list[str] = []
        self.embeddings = np.zeros((0, 0), np.float32)
        self.labels = np.zeros(0, np.int64)
        self.images: list[str] = []
        self._calibration: Calibration | None = None  # of the present size, once it is needed

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
                    raise DataError(f"{key}: is already enrolled as {class_of[key]}; give each image once")
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
        self._calibration = None

    def remove(self, name: str) -> None:
        """Removes a class and its images.

        Raises:
          DataError: it is not enrolled.
        """
        if name not in self.classes:
            similar = get_close_matches(name, self.classes, 1)
            raise DataError(f"{name}: is not enrolled" + (f"; did you mean {similar[0]}?" if similar else ""))
        label = self.classes.index(name)
        keep = self.labels != label
        self.classes.remove(name)
        self.embeddings, self.labels = self.embeddings[keep], self.labels[keep]
        self.labels = self.labels - (self.labels > label)
        self.images = [image for image, kept in zip(self.images, keep, strict=True) if kept]
        self._calibration = None

    def calibrate(self, classes: Mapping[str, Sequence[Image]]) -> None:
        """Measures thresholds for the present index on images of classes that are not enrolled.

        Otherwise the unseen classes of the run are used. `add` and `remove` forget it.

        Args:
          classes: images of each class, as for `Model.embed`.

        Raises:
          DataError: nothing is enrolled; a class or an image is enrolled; an image cannot be used; too few images.
        """
        if not self.images:
            raise DataError(EMPTY)
        files = [image for images in classes.values() for image in images]
        enrolled = set(self.classes) | set(self.images) - {""}
        if shared := [name for name in (*classes, *map(_file_name, files)) if name in enrolled]:
            raise DataError(f"{shared[0]}: is enrolled; a threshold must be measured on other classes")
        labels = np.repeat(np.arange(len(classes)), [len(images) for images in classes.values()])
        self._calibration = open_set.calibrate(self._model.embed(files), labels, np.bincount(self.labels))

    def expect(self, false_accept_rate: float = FALSE_ACCEPT_RATE, decide: Rule = "nearest") -> Expected:
        """The threshold for a false-accept rate, and what is to be expected of it; see `open_set.calibrate`.

        Args:
          false_accept_rate: fraction of images of other classes that may be given the name of an enrolled class.
          decide: the rule, as for `classify`.

        Raises:
          DataError: nothing is enrolled, no such rule or rate, or the run's embeddings cannot be read.
          CheckpointError: the run's embeddings are of another checkpoint.
        """
        if not self.images:
            raise DataError(EMPTY)
        if self._calibration is None:
            self._calibration = self._model.calibrate(np.bincount(self.labels))
        return open_set.expect(self._calibration, decide, false_accept_rate)

    def classify(
        self,
        images: Images,
        *,
        threshold: float | None = None,
        false_accept_rate: float = FALSE_ACCEPT_RATE,
        decide: Rule = "nearest",
    ) -> tuple[list[str], np.ndarray]:
        """Classifies images.

        Args:
          images: as for `Model.embed`, or their embeddings, an array [N, D] with rows of unit length.
          threshold: images whose similarity is below it are "unknown"; None for that of `false_accept_rate`.
          false_accept_rate: see `expect`.
          decide: "nearest" (class of the nearest image), "vote" (of the 5 nearest) or "mean" (nearest class mean).

        Returns:
          Class names, and similarities float32 [N]: cosines to the nearest image of the class or to its mean.

        Raises:
          DataError: nothing is enrolled, an invalid option, an image cannot be used; without a threshold, see `expect`.
          CheckpointError: see `expect`.
        """
        names, similarities, _ = self.nearest(
            images, threshold=threshold, false_accept_rate=false_accept_rate, decide=decide
        )
        return names, similarities

    def nearest(
        self,
        images: Images,
        *,
        threshold: float | None = None,
        false_accept_rate: float = FALSE_ACCEPT_RATE,
        decide: Rule = "nearest",
    ) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Like `classify`; also returns the positions int [N] in `images` of the nearest image of the best class."""
        if not self.images:
            raise DataError(EMPTY)
        open_set.check(decide, false_accept_rate, threshold)
        if threshold is None:
            threshold = self.expect(false_accept_rate, decide).threshold
        rows = images if isinstance(images, np.ndarray) and images.ndim == 2 else self._model.embed(images)
        found = open_set.decide(rows, self.embeddings, self.labels, decide)
        names = [
            self.classes[label] if similarity >= threshold else UNKNOWN
            for similarity, label in zip(found.similarities, found.labels, strict=True)
        ]
        return names, found.similarities, found.nearest

    def save(self, path: str | Path) -> None:
        """Writes a `.npz` file, completely or not at all; after `expect`, with what it needs.

        Raises:
          DataError: the path does not end in `.npz`, or its directory does not exist.
        """
        path = Path(path).expanduser()
        if path.suffix != ".npz":
            raise DataError(f"{path}: must end in .npz")
        if not path.parent.is_dir():
            raise DataError(f"{path}: there is no directory {path.parent}")
        arrays: dict[str, np.ndarray] = {
            "embeddings": self.embeddings,
            "labels": self.labels,
            "classes": np.array(self.classes, np.str_),
            "images": np.array(self.images, np.str_),
            "fingerprint": np.array(self._model.fingerprint),
        }
        if self._calibration is not None:
            arrays |= {name: np.asarray(part) for name, part in zip(CALIBRATION, self._calibration, strict=True)}
        with atomic_write(path) as draft, draft.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

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
                calibration = [arrays[name] for name in CALIBRATION if name in arrays.files]
        except Exception:  # NumPy and zipfile raise many types of exceptions for damaged files
            raise DataError(f"{path}: is not an index, or is damaged; enroll again") from None
        if str(fingerprint) != model.fingerprint:
            raise DataError(f"{path}: was created with another model or checkpoint; use that one, or enroll again")
        kinds = [array.dtype.kind for array in (embeddings, labels, classes, images)]
        shapes = embeddings.ndim == 2 and embeddings.shape[:1] == labels.shape == images.shape and classes.ndim == 1
        rules = (len(RULES),)
        measured = [("f", 2, rules), ("f", 2, rules), ("f", 1, rules), ("i", 0, ()), ("i", 0, ())]
        consistent = (
            kinds == ["f", "i", "U", "U"]
            and shapes
            and [(array.dtype.kind, array.ndim, array.shape[:1]) for array in calibration] in ([], measured)
            and all(array.size for array in calibration)
            and np.isfinite(embeddings).all()
            and ((labels >= 0) & (labels < len(classes))).all()
        )
        if not consistent:
            raise DataError(f"{path}: has arrays of inconsistent types, sizes or values; enroll again")
        index = cls(model)
        index.classes, index.images = classes.tolist(), images.tolist()
        index.embeddings, index.labels = embeddings, labels
        if calibration:
            strangers, known, growth, number, of_classes = calibration
            index._calibration = Calibration(strangers, known, growth, int(number), int(of_classes))
        return index


def _file_name(image: Image) -> str:
    return str(Path(image).expanduser().resolve()) if isinstance(image, str | Path) else ""
