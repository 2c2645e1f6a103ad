"""An index of enrolled classes: a nearest-neighbour classifier with rejection, without training.

An image is assigned the most similar class (by one of the rules of `open_set.decide`), or "unknown" if its score is
below a threshold. By default this is the threshold that `FALSE_ACCEPT_RATE` of the images of other classes are expected
to reach, measured with the test split of the run, or with `Index.calibrate` on other classes.
"""

import hashlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from PIL import Image as pillow

from dml_jax.errors import DataError
from dml_jax.evaluation import background_margin, open_set
from dml_jax.evaluation.background_margin import Background, Scorer
from dml_jax.evaluation.open_set import FALSE_ACCEPT_RATE, Calibration, Expected, HeldOut, Point, Rule
from dml_jax.files import atomic_write, reading

UNKNOWN = "unknown"
EMPTY = "the index is empty; add classes first"
Image = str | Path | bytes | pillow.Image | np.ndarray
Images = Sequence[Image] | np.ndarray  # an array [N, H, W, 3] is a batch of images


class Embedder(Protocol):
    """The part of `Model` that an index uses."""

    @property
    def fingerprint(self) -> str: ...

    def calibrate(self, sizes: np.ndarray) -> Calibration: ...

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
        self._forget()

    def _forget(self) -> None:
        """Forgets what depends on the enrolled images."""
        self._calibration: Calibration | None = None  # of the present size, once it is needed
        self._scorer: Scorer | None = None
        self._strangers: np.ndarray | None = None  # margins of the background
        self._held: dict[Rule, HeldOut] = {}

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
            if isinstance(images, str | Path) or len(images) == 0:
                raise DataError(f"{name}: give a list of one image or more")
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
        """Removes a class and its images, which are kept in `removed` (instead of any removed before by that name)."""
        if name not in self.classes:
            similar = get_close_matches(name, self.classes, 1)
            raise DataError(f"{name}: is not enrolled" + (f"; did you mean {similar[0]}?" if similar else ""))
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
        """Measures thresholds for the present index on images (as for `add`) of classes that are not enrolled.

        Otherwise the unseen classes of the run are used. `add` and `remove` forget it.
        """
        self._check_not_empty()
        files = [image for images in classes.values() for image in images]
        enrolled = set(self.classes) | set(self.images) - {""}
        if shared := [name for name in (*classes, *map(_file_name, files)) if name in enrolled]:
            raise DataError(f"{shared[0]}: is enrolled; a threshold must be measured on other classes")
        labels = np.repeat(np.arange(len(classes)), [len(images) for images in classes.values()])
        self._forget()
        self._calibration = open_set.calibrate(self._model.embed(files), labels, np.bincount(self.labels))

    def _check_not_empty(self) -> None:
        if not self.images:
            raise DataError(EMPTY)

    def _calibrated(self) -> Calibration:
        self._check_not_empty()
        if self._calibration is None:
            self._calibration = self._model.calibrate(np.bincount(self.labels))
        return self._calibration

    def rule(self, decide: Rule | None = None, threshold: float | None = None) -> Rule:
        """The rule of `classify` if `decide` is None: "background", but "nearest" with a threshold, which is a cosine.

        Also "nearest" for embeddings of more dimensions than "background" can use.
        """
        if decide is not None:
            return decide
        return "background" if threshold is None and self._calibrated().background else "nearest"

    def _background(self) -> Background:
        background = self._calibrated().background
        if background is None:
            raise DataError(open_set.NO_BACKGROUND)
        return background

    def expect(self, false_accept_rate: float = FALSE_ACCEPT_RATE, decide: Rule | None = None) -> Expected:
        """The threshold for a false-accept rate, and its expected error rates; see `open_set.calibrate`.

        `false_accept_rate` is the fraction of images of other classes that may be given the name of an enrolled class.
        """
        calibration, rule = self._calibrated(), self.rule(decide)
        open_set.check(rule, false_accept_rate)
        if rule != "background":
            return open_set.expect(calibration, false_accept_rate)
        background = self._background()
        if self._strangers is None:
            self._strangers = background_margin.of_strangers(background, self.embeddings, self.labels)
        return open_set.expect_margin(background, self._strangers, self._held_out(rule).known, false_accept_rate)

    def _held_out(self, rule: Rule) -> HeldOut:
        if rule not in self._held:
            background = self._background() if rule == "background" else None
            self._held[rule] = open_set.hold_out(self.embeddings, self.labels, background)
        return self._held[rule]

    def report(self, rates: Sequence[float] = open_set.RATES, decide: Rule | None = None) -> list[Point]:
        """Error rates to expect of this index at several false-accept rates, from its own images."""
        rule = self.rule(decide)
        return [open_set.point(self._held_out(rule), rate, self.expect(rate, rule)) for rate in rates]

    def classify(
        self,
        images: Images,
        *,
        threshold: float | None = None,
        false_accept_rate: float = FALSE_ACCEPT_RATE,
        decide: Rule | None = None,
    ) -> tuple[list[str], np.ndarray]:
        """Class names, and scores float32 [N]: margins by the rule "background", otherwise cosines.

        Args:
          images: as for `Model.embed`, or their embeddings, an array [N, D] with rows of unit length.
          threshold: images with a lower cosine are "unknown"; None for the threshold of `false_accept_rate`.
          false_accept_rate: see `expect`.
          decide: "nearest" (class of the nearest image) or "background" (margin over all other classes, also some that
            are not enrolled); None for that of `rule`.
        """
        names, scores, _ = self.nearest(images, threshold=threshold, false_accept_rate=false_accept_rate, decide=decide)
        return names, scores

    def nearest(
        self,
        images: Images,
        *,
        threshold: float | None = None,
        false_accept_rate: float = FALSE_ACCEPT_RATE,
        decide: Rule | None = None,
    ) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Like `classify`; also returns the positions int [N] in `images` of the nearest image of the best class."""
        self._check_not_empty()
        open_set.check(decide or "nearest", false_accept_rate, threshold)
        rule = self.rule(decide, threshold)
        if threshold is None:
            threshold = self.expect(false_accept_rate, rule).threshold
        if rule == "background" and self._scorer is None:
            self._scorer = Scorer(self._background(), self.embeddings, self.labels)
        scorer = self._scorer if rule == "background" else None
        found = open_set.decide(self._rows(images), self.embeddings, self.labels, scorer)
        accepted = found.similarities >= threshold
        names = [self.classes[i] if good else UNKNOWN for i, good in zip(found.labels, accepted, strict=True)]
        return names, found.similarities, found.nearest

    def _rows(self, images: Images) -> np.ndarray:
        return images if isinstance(images, np.ndarray) and images.ndim == 2 else self._model.embed(images)

    def best(self, images: Images, count: int = 5) -> tuple[np.ndarray, np.ndarray]:
        """The nearest image of each of the `count` most similar classes, without a decision.

        Returns:
          Positions int64 [N, k] in `images` and cosines float32 [N, k], descending.
        """
        self._check_not_empty()
        cosines = self._rows(images) @ self.embeddings.T
        order = np.argsort(self.labels, kind="stable")
        ends = np.cumsum(np.bincount(self.labels, minlength=len(self.classes)))[:-1]
        nearest = np.stack([part[cosines[:, part].argmax(axis=1)] for part in np.split(order, ends)], axis=1)
        values = np.take_along_axis(cosines, nearest, axis=1).clip(-1, 1)
        top = np.argsort(-values, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(nearest, top, axis=1), np.take_along_axis(values, top, axis=1)

    def save(self, path: str | Path) -> None:
        """Writes a `.npz` file, completely or not at all, with the calibration if `expect` has measured it."""
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
        if self._calibration is not None:
            *measured, background = self._calibration
            parts_of_it = (*measured, *(background or ()))
            arrays |= {f"calibration_{i}": np.asarray(part) for i, part in enumerate(parts_of_it)}
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
        measured = [arrays[name] for name in arrays if name.startswith("calibration_")]
        if measured:
            strangers, known, growth, images, classes, *background = measured
            others = Background(*background) if background else None
            index._calibration = Calibration(strangers, known, float(growth), int(images), int(classes), others)
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
