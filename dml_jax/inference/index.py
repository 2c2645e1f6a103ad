"""An index of enrolled classes: a classifier of embeddings, fitted in seconds (see `open_set`).

An image gets the most probable class, or "unknown" where that is asked for. Other classes improve
the classifier and play the strangers: the unseen classes of the run or, after `Index.calibrate`,
those given. Classes of these that are enrolled, by their name or by an equal image, do not take
part. Without `promises.FEWEST` other classes, each enrolled class is left out in turn and plays the
stranger too.
"""

import io
import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from PIL import Image as pillow

from dml_jax import identity as identities
from dml_jax import seal
from dml_jax.class_names import normalised
from dml_jax.data.files import Record
from dml_jax.errors import DataError, suggest
from dml_jax.evaluation import open_set, promises
from dml_jax.evaluation.open_set import KNOWN, STRANGER, Classifier, Measured, Photographs
from dml_jax.evaluation.promises import ALWAYS, Choice, Point
from dml_jax.evaluation.unit_rows import first_bad_row
from dml_jax.files import atomic_write, reading, reason
from dml_jax.inference.answers import Answer
from dml_jax.seal import Identity

if TYPE_CHECKING:
    from dml_jax.inference.embedding_model import EmbeddingModel

UNKNOWN = "unknown"
ENROLL_AGAIN = "enroll again"
EMPTY = "the index is empty; add classes first"
SAME_IMAGE = 1 - 2e-6  # cosine of two embeddings of equal images, which differ by rounding
BLOCK_ELEMENTS = 1 << 22  # cosines in memory at once
# The arrays of a file in groups, of which all but the first are optional. By name: the kind of
# numbers, and what the axes count.
FIELDS: tuple[dict[str, tuple[str | np.dtype[Any], tuple[str, ...]]], ...] = (
    {
        "embeddings": ("float32", ("enrolled images", "dimensions")),
        "labels": ("int64", ("enrolled images",)),
        "classes": ("str", ("classes",)),
        "images": ("str", ("enrolled images",)),
        "sessions": ("str", ("enrolled images",)),
        "identity": ("str", ()),
    },
    {
        "other_rows": ("float32", ("other images", "dimensions")),
        "other_labels": ("int64", ("other images",)),
        "other_sessions": ("str", ("other images",)),
        "other_classes": ("str", ("other classes",)),
    },
    {
        "mean": ("float32", ("dimensions",)),
        "projection": ("float32", ("dimensions", "discriminants")),
        "weights": ("float32", ("fitted classes", "discriminants")),
        "intercepts": ("float32", ("fitted classes",)),
        "known": (KNOWN, ("known images",)),
        "strangers": (STRANGER, ("strangers",)),
        "temperature": ("float64", ()),
    },
)
Image = str | Path | Record | bytes | pillow.Image | np.ndarray
Images = Sequence[Image] | np.ndarray  # an array [N, H, W, 3] is a batch of images


class Found(NamedTuple):
    """Shares of labelled images; NaN if there are none."""

    right: float
    right_at_3: float
    wrong: float
    unknown: float
    strangers: float  # images of classes that are not enrolled, which were accepted
    expected: float  # mean probability of the most probable class, of images of enrolled classes
    observed: float  # share of these images for which that class is right
    known_images: int
    other_images: int
    overlapping: int  # images that the index holds; not counted


class Index:
    """Embeddings of enrolled images and their classes.

    Attributes:
      model: makes the embeddings.
      classes: names, in the order they were added.
      embeddings: float32 [N, D].
      labels: int64 [N], positions in `classes`.
      images: N file names, "" for images that were not given by path.
      sessions: N names of sessions (see `data.sessions`), "" if unknown.
    """

    def __init__(self, model: "EmbeddingModel"):
        if model.method_distance:
            raise DataError(
                "the model has another distance than the cosine (method.distance), by which "
                "enrolled images are compared; give a model without"
            )
        self.model = model
        self.classes: list[str] = []
        self.embeddings = np.zeros((0, 0), np.float32)
        self.labels = np.zeros(0, np.int64)
        self.images: list[str] = []
        self.sessions: list[str] = []
        # Images for thresholds and the names of their classes, which may be enrolled; the unseen
        # classes of the run are read when they are needed.
        self._others: tuple[Photographs, list[str]] | None = None
        self._forget()

    def _forget(self) -> None:
        """Drops cached results that depend on the enrolled images."""
        self._fitted: tuple[Classifier, Measured] | None = None
        self._points = dict[Choice, Point]()

    def counts(self) -> dict[str, int]:
        """The number of enrolled images of each class."""
        return dict(zip(self.classes, np.bincount(self.labels).tolist(), strict=True))

    def add(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Enrolls images (as for `Model.embed`) of new or existing classes; none after an error.

        Args:
          classes: images by class. Equal images of several classes are enrolled, see `shared`.
          sessions: of the images; by default they are unknown.
        """
        classes = self._listed(classes)
        files = self.check_names(classes)
        rows, names, taken = self._embedded(classes, sessions)
        self.classes += [name for name in dict.fromkeys(names) if name not in self.classes]
        position = {name: i for i, name in enumerate(self.classes)}
        labels = np.array([position[name] for name in names], np.int64)
        self.labels = np.concatenate([self.labels, labels])
        self.embeddings = np.concatenate([self.embeddings, rows]) if self.images else rows
        self.images, self.sessions = [*self.images, *files], [*self.sessions, *taken]
        self._forget()

    def check_names(self, classes: Mapping[str, Sequence[Image]]) -> list[str]:
        """The file names of images to enroll; DataError for the name of a class that cannot be one
        and for a file that is enrolled."""
        labels = zip(self.images, self.labels, strict=True)
        class_of = {image: self.classes[label] for image, label in labels if image}
        files = []
        for name, images in classes.items():
            _check_name(name)
            for file in map(file_name, images):
                if file in class_of:
                    raise DataError(
                        f"{file}: is already enrolled as {class_of[file]}; give each image once, "
                        f"not as {name} too"
                    )
                if file:
                    class_of[file] = name
                files.append(file)
        return files

    def _listed(self, classes: Mapping[str, Sequence[Image]]) -> dict[str, Sequence[Image]]:
        return {name: self.model.listed(images, str(name)) for name, images in classes.items()}

    def _embedded(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None = None,
    ) -> tuple[np.ndarray, list[str], list[str]]:
        """Embeddings float32 [N, D], classes, and sessions of images."""
        for name, images in classes.items():
            count = len(sessions.get(name, ())) if sessions else len(images)
            if count != len(images):
                what = f"sessions of {name}: {count}"
                raise DataError(f"{what}, but {len(images)} images; give one for each")
        files = [image for images in classes.values() for image in images]
        names = [name for name, images in classes.items() for _ in images]
        taken = [s for name in classes for s in sessions[name]] if sessions else [""] * len(files)
        rows = self._comparable(self.model.embed(files))
        if bad := first_bad_row(rows):
            name = file_name(files[bad[0]]) or f"image {bad[0]}"
            raise DataError(f"{name}: its embedding {bad[1]}; leave it out")
        return rows, names, taken

    def _comparable(self, rows: np.ndarray) -> np.ndarray:
        """The rows; DataError unless they are as wide as those of the index."""
        width = self.embeddings.shape[1]
        if width and rows.shape[1] != width:
            raise DataError(
                f"embeddings of {rows.shape[1]} dimensions cannot be compared with those of the "
                f"index, which have {width}; give those of the model that it was created with, or "
                "enroll again"
            )
        return rows

    def shared(self, first: int = 0) -> list[dict[str, str]]:
        """Images that several classes hold, found by their embeddings.

        Returns:
          For each image from position `first` on that equals earlier images of other classes: its
          class and those of the earlier ones -> file name.
        """
        found = []
        step = max(1, BLOCK_ELEMENTS // max(1, len(self.images)))
        for start in range(first, len(self.images), step):
            same = self.embeddings[start : start + step] @ self.embeddings.T > SAME_IMAGE
            for i, row in enumerate(same, start):
                equal = np.flatnonzero(row[:i] & (self.labels[:i] != self.labels[i]))
                if len(equal):
                    _, firsts = np.unique(self.labels[equal], return_index=True)
                    images = (*equal[firsts].tolist(), i)
                    found.append({self.classes[self.labels[j]]: self.images[j] for j in images})
        return found

    def remove(self, name: str) -> int:
        """Removes a class with its images; returns their number."""
        label = self._position(name)
        rows = np.flatnonzero(self.labels != label)
        forgotten = len(self.labels) - len(rows)
        self.classes.remove(name)
        self.embeddings, labels = self.embeddings[rows], self.labels[rows]
        self.labels = labels - (labels > label)
        self.images, self.sessions = ([x[i] for i in rows] for x in (self.images, self.sessions))
        self._forget()
        return forgotten

    def _position(self, name: str) -> int:
        if name not in self.classes:
            raise DataError(f"{name}: is not enrolled; {suggest(name, self.classes)}")
        return self.classes.index(name)

    def rename(self, old: str, new: str) -> None:
        """Gives a class another name; its images stay."""
        label = self._position(old)
        if new in self.classes:
            raise DataError(f"{new!r} is already a class name; choose another or merge the classes")
        _check_name(new)
        self.classes[label] = new
        self._forget()

    def merge(self, name: str, into: str) -> None:
        """Gives the images of a class to another one; the class is gone."""
        label, other = self._position(name), self._position(into)
        if label == other:
            raise DataError(f"{name}: cannot be merged with itself; give another class")
        labels = np.where(self.labels == label, other, self.labels)
        self.labels = labels - (labels > label)
        self.classes.remove(name)
        self._forget()

    def calibrate(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Takes images (as for `add`) for those of other classes, instead of the unseen classes of
        the run."""
        rows, names, taken = self._embedded(self._listed(classes), sessions)
        known, labels = np.unique(names, return_inverse=True)
        photographs = Photographs(rows, labels, np.array(taken, np.str_))
        self._others = photographs.where(open_set.choose(photographs)), known.tolist()
        self._forget()

    def read_others(self) -> tuple[Photographs, list[str]]:
        """Images of other classes and the names of these, which may be enrolled by now."""
        if self._others is None:
            self._others = self.model.unseen()
        return self._others

    def overlap(self) -> list[str]:
        """The other classes that are enrolled, by name or by an equal image."""
        if not self.images:
            raise DataError(EMPTY)
        photographs, names = self.read_others()
        if not names:
            return []
        self._comparable(photographs.rows)
        same = _among(photographs.rows, self.embeddings)
        found = []
        for label, name in enumerate(names):
            of_class = photographs.labels == label
            if of_class.any() and (name in self.classes or same[of_class].any()):
                found.append(name)
        return found

    def background(self) -> Photographs:
        """The images of other classes that are not enrolled."""
        overlap, (photographs, names) = self.overlap(), self.read_others()
        enrolled = [label for label, name in enumerate(names) if name in overlap]
        if not names:  # a model without other classes may not say how wide its rows are
            return photographs._replace(rows=self.embeddings[:0])
        return photographs.where(~np.isin(photographs.labels, enrolled))

    @property
    def enrolled(self) -> Photographs:
        """The enrolled images."""
        return Photographs(self.embeddings, self.labels, np.array(self.sessions, np.str_))

    def playing(self) -> tuple[list[str], bool]:
        """The enrolled classes that play strangers in turn, and whether the run was trained on
        some; none if there are enough others."""
        others = len(np.unique(self.background().labels))
        if others >= promises.FEWEST:
            return [], False
        trained = set(self.model.training_classes()) & set(self.classes)
        unseen = [name for name in self.classes if name not in trained]
        if others + len(unseen) >= promises.FEWEST or not trained:
            return unseen, False
        return self.classes, True

    def fitted(self) -> tuple[Classifier, Measured]:
        """The classifier of the enrolled classes, then the others, and what was measured of it."""
        if self._fitted is None:
            enrolled, others = self.enrolled, self.background()
            count = len(self.classes)
            numbers, position = np.unique(others.labels, return_inverse=True)
            both = enrolled
            if len(numbers):
                others = others._replace(labels=count + position)
                both = Photographs(*map(np.concatenate, zip(enrolled, others, strict=True)))
            turns = [self.classes.index(name) for name in self.playing()[0]]
            playing = np.array([*turns, *range(count, count + len(numbers))], np.int64)
            measured = open_set.measure(both, count, playing)
            self._fitted = open_set.fit(both.rows, both.labels), measured
        return self._fitted

    def expect(
        self,
        *,
        reject: float | None = None,
        min_probability: float | None = None,
        threshold: float | None = None,
    ) -> Point:
        """What to expect of `classify` with these arguments."""
        return self.at(promises.choice(reject, min_probability, threshold))

    def at(self, choice: Choice) -> Point:
        """What to expect with a choice; DataError as for `promises.rejecting`."""
        if choice not in self._points:
            self._points[choice] = promises.expected(self.fitted()[1], choice)
        return self._points[choice]

    def measure(self, classes: Mapping[str, Sequence[Image]], choice: Choice = ALWAYS) -> Found:
        """Classifies labelled images (as for `add`) of enrolled and of other classes."""
        self.at(choice)  # refuses before images are embedded
        rows, names, _ = self._embedded(self._listed(classes))
        new = ~_among(rows, self.embeddings)
        if self._others and len(self._others[0].rows):
            new &= ~_among(rows, self._others[0].rows)
        if not new.any():
            raise DataError("the index holds all of these images; give photographs taken later")
        answers, truth = self._answer(rows[new], 3, choice), np.array(names)[new]
        named = [[name for name, _ in answer.classes] for answer in answers]
        known = np.isin(truth, self.classes)
        accepted = np.array([answer.name != UNKNOWN for answer in answers])
        first = np.array([each[0] for each in named]) == truth
        among = np.array([name in each for name, each in zip(truth, named, strict=True)])
        shares = np.array([answer.probability for answer in answers])

        def share(of: np.ndarray, chosen: np.ndarray) -> float:
            return float(of[chosen].mean()) if chosen.any() else float("nan")

        return Found(
            right=share(accepted & first, known),
            right_at_3=share(accepted & among, known),
            wrong=share(accepted & ~first, known),
            unknown=share(~accepted, known),
            strangers=share(accepted, ~known),
            expected=share(shares, known),
            observed=share(first, known),
            known_images=int(known.sum()),
            other_images=int((~known).sum()),
            overlapping=int((~new).sum()),
        )

    def classify(
        self,
        images: Images,
        *,
        top: int = 3,
        reject: float | None = None,
        min_probability: float | None = None,
        threshold: float | None = None,
    ) -> list[Answer]:
        """Answers to images: the most probable classes and their probabilities.

        A probability holds for images of enrolled classes. It is calibrated on sessions that are
        left out. Without one of the limits, every image gets a name.

        Args:
          images: as for `Model.embed`, or their embeddings, an array [N, D] with rows of unit
            length.
          top: number of classes in an answer.
          reject: the share of images of other classes that may get a name; the others are
            "unknown".
          min_probability: images with a lower probability are "unknown".
          threshold: images with a lower margin are "unknown".

        Raises:
          DataError: several limits are given, or one is impossible; an image cannot be used, or the
            rows of an array are not finite, of unit length and as wide as those of the index.
        """
        if top < 1:
            raise DataError(f"top={top}: must be 1 or more; e.g. 3")
        choice = promises.choice(reject, min_probability, threshold)
        self.at(choice)  # refuses before images are embedded
        return self._answer(self._rows(images), top, choice)

    def _answer(self, rows: np.ndarray, top: int, choice: Choice) -> list[Answer]:
        classifier, measured = self.fitted()
        limit, answers = self.at(choice).limit, list[Answer]()
        candidates = np.arange(len(classifier.weights)) < len(self.classes)
        step = max(1, BLOCK_ELEMENTS // len(self.embeddings))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            scores = classifier.scores(part)
            shares = open_set.probabilities(scores, candidates, float(measured.temperature))
            best, margins = open_set.margins(scores, candidates)
            told = {"margin": margins, "probability": shares.max(axis=1).astype(np.float32)}
            accepted = choice.of(told) >= limit
            cosines = np.where(self.labels == best[:, None], part @ self.embeddings.T, -np.inf)
            order = np.argsort(-scores[:, : len(self.classes)], axis=1, kind="stable")[:, :top]
            for i, nearest in enumerate(cosines.argmax(axis=1).tolist()):
                classes = [(self.classes[label], float(shares[i, label])) for label in order[i]]
                name = classes[0][0] if accepted[i] else UNKNOWN
                answers.append(Answer(name, classes[0][1], classes, float(margins[i]), nearest))
        return answers

    def _rows(self, images: Images) -> np.ndarray:
        """Embeddings float32 [N, D] of images, or an array of embeddings after checks."""
        if getattr(images, "ndim", 0) == 2:
            images = np.asarray(images)  # also of JAX
        if not (isinstance(images, np.ndarray) and images.ndim == 2):
            return self._comparable(self.model.embed(images))
        shape = list(images.shape)
        if images.dtype.kind != "f" or not len(images):
            what = f"images: {images.dtype} {shape}"
            raise DataError(f"{what}; give embeddings, floats [N, D], or a list of images")
        rows = self._comparable(images.astype(np.float32, copy=False))
        if bad := first_bad_row(rows):
            what = f"images: row {bad[0]} of {shape} {bad[1]}"
            raise DataError(f"{what}; give finite rows of unit length")
        return rows

    def save(self, path: str | Path) -> None:
        """Writes a `.npz` file, completely or not at all, with the images of other classes and the
        classifier, which is fitted if necessary."""
        path = Path(path).expanduser()
        arrays: dict[str, Any] = {
            "embeddings": self.embeddings,
            "labels": self.labels,
            "classes": np.array(self.classes, np.str_),
            "images": np.array(self.images, np.str_),
            "sessions": np.array(self.sessions, np.str_),
            "identity": np.array(json.dumps(asdict(self.model.identity))),
        }
        if self.images:
            for part in self.fitted():
                arrays |= part._asdict()
        if self._others is not None and self._others[1]:
            arrays |= {f"other_{name}": array for name, array in self._others[0]._asdict().items()}
            arrays["other_classes"] = np.array(self._others[1], np.str_)
        with atomic_write(path) as draft, draft.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, model: "EmbeddingModel", path: str | Path) -> "Index":
        """Reads an index written by `save`; DataError if it is damaged, has other arrays, or
        belongs to another model."""
        path = Path(path).expanduser()
        with reading(path, ENROLL_AGAIN), path.open("rb") as file:
            arrays = _arrays(file)  # each has a checksum
            if problem := next(_problems(arrays), ""):
                raise DataError(f"{problem}; {ENROLL_AGAIN}")
        remedy = f"give the model that it was created with, or {ENROLL_AGAIN}"
        seal.check_identity(
            _identity(arrays), model.identity, str(path), error=DataError, remedy=remedy
        )
        index = cls(model)
        index.labels, index.classes = arrays["labels"], arrays["classes"].tolist()
        index.embeddings = arrays["embeddings"]
        index.images, index.sessions = arrays["images"].tolist(), arrays["sessions"].tolist()
        if "other_rows" in arrays:
            others = Photographs(*(arrays[f"other_{name}"] for name in Photographs._fields))
            index._others = others, arrays["other_classes"].tolist()
        if "weights" in arrays:
            classifier = Classifier(*(arrays[name] for name in Classifier._fields))
            index._fitted = classifier, Measured(*(arrays[name] for name in Measured._fields))
        return index


def _among(rows: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Whether each row is that of an image whose embedding is held."""
    step = max(1, BLOCK_ELEMENTS // max(1, len(held)))
    found = np.zeros(len(rows), np.bool_)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        found[part] = (rows[part] @ held.T > SAME_IMAGE).any(axis=1)
    return found


def _arrays(file: IO[bytes]) -> dict[str, np.ndarray]:
    """The arrays of an uncompressed .npz file; DataError if it declares more than its size."""
    size, found = file.seek(0, os.SEEK_END), {}
    with zipfile.ZipFile(file) as archive:
        if sum(info.file_size for info in archive.infolist()) > size:
            raise DataError("declares arrays that are larger than the file")
        for info in archive.infolist():
            content = io.BytesIO(archive.read(info))
            old = npy.read_magic(content) == (1, 0)
            read_header = npy.read_array_header_1_0 if old else npy.read_array_header_2_0
            shape, _, dtype = read_header(content)
            # NumPy would allocate the whole array.
            if math.prod(shape) * dtype.itemsize > info.file_size - content.tell():
                raise DataError(f"{info.filename}: is shorter than its shape {list(shape)}")
            content.seek(0)
            found[info.filename.removesuffix(".npy")] = npy.read_array(content, allow_pickle=False)
    return found


def _check_name(name: str) -> None:
    if not isinstance(name, str) or normalised(name) != name or name in ("", UNKNOWN):
        raise DataError(
            f"{name!r}: cannot be a class name; give a text without surrounding spaces, in "
            f"Unicode's composed form (NFC), other than {UNKNOWN!r}"
        )


def _problems(arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    """What is wrong with the arrays of a file; later checks assume that earlier ones passed."""
    wanted = dict(FIELDS[0])
    for group in FIELDS[1:]:
        if group.keys() & arrays.keys():
            wanted |= group
    for name in sorted(wanted.keys() ^ arrays.keys()):
        yield f"has no {name}" if name in wanted else f"has {name}, which no index has"
    sizes: dict[str, int] = {}
    for name, (kind, axes) in wanted.items():
        array = arrays[name]
        right = array.dtype.kind == "U" if kind == "str" else array.dtype == kind
        fits = array.ndim == len(axes) and all(
            sizes.setdefault(axis, size) == size
            for axis, size in zip(axes, array.shape, strict=True)
        )
        if not right or not fits:
            shape = ", ".join(f"{axis} {sizes[axis]}" if axis in sizes else axis for axis in axes)
            yield f"{name}: is {array.dtype} {list(array.shape)}; must be {kind} [{shape}]"
    names = arrays["classes"].tolist()
    if len(set(names)) < len(names):
        yield "classes: a name is there twice"
    for each in names:
        try:
            _check_name(each)
        except DataError as problem:
            yield f"classes: {problem}"
    try:
        _identity(arrays)
    except ValueError as problem:
        yield f"identity: {reason(problem)}"
    labels, others = arrays["labels"], arrays.get("other_labels", np.zeros(0, np.int64))
    if sorted(set(labels.tolist())) != list(range(sizes["classes"])):
        yield f"labels: are not the numbers of the {sizes['classes']} classes, each at least once"
    if not all(0 <= label < sizes.get("other classes", 0) for label in set(others.tolist())):
        yield f"other_labels: are not numbers of the {sizes['other classes']} classes"
    both = zip(arrays["images"].tolist(), labels.tolist())  # noqa: B905
    named = {(image, label) for image, label in both if image}
    if len(dict(named)) < len(named):
        yield "images: the same file is in several classes"
    for name in wanted.keys() & {"embeddings", "other_rows"}:
        if bad := first_bad_row(arrays[name]):
            yield (
                f"{name}: row {bad[0]} of {list(arrays[name].shape)} {bad[1]}; rows must be finite "
                "and of unit length"
            )
    for name in FIELDS[2].keys() & arrays.keys():
        array = arrays[name]
        columns = [array[each] for each in array.dtype.names] if array.dtype.names else [array]
        if not all(np.isfinite(column).all() for column in columns):
            yield f"{name}: not all numbers are finite"
    if sizes.get("fitted classes", sizes["classes"]) < sizes["classes"]:
        yield f"weights: are those of fewer than {sizes['classes']} classes"
    if arrays.get("temperature", np.ones(1)) <= 0:
        yield "temperature: is not above 0"
    if "known" in arrays:
        found = np.concatenate([arrays["known"]["answer"], arrays["known"]["label"]])
        if found.size and not 0 <= found.min() <= found.max() < sizes["fitted classes"]:
            yield f"known: has other than numbers of the {sizes['fitted classes']} fitted classes"


def _identity(arrays: Mapping[str, np.ndarray]) -> Identity:
    """The identity of the embedding function; ValueError if it is damaged."""
    return identities.read_identity(json.loads(str(arrays["identity"])))


def file_name(image: Image) -> str:
    """The name of an enrolled image; "" unless it is a file or belongs to a prepared data set."""
    if isinstance(image, Record):
        return image.name
    return str(Path(image).expanduser().resolve()) if isinstance(image, str | Path) else ""
