"""An index of enrolled classes: a classifier of embeddings, fitted in seconds (see `open_set`).

An image gets the most probable class, or "unknown" where that is asked for. Other classes improve
the classifier and play the strangers: the unseen classes of the run or, after `Index.calibrate`,
those of its argument. Those that are enrolled, by their name or by an equal image, do not take
part. With fewer than `expectations.FEWEST` other classes, each enrolled class is left out in turn
and plays the stranger too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dml_jax import seal, table
from dml_jax.errors import DataError, printable, suggest
from dml_jax.evaluation import expectations, open_set
from dml_jax.evaluation.expectations import Expected
from dml_jax.evaluation.open_set import ANSWERS, Classifier, Measured, Photographs
from dml_jax.evaluation.unit_rows import first_bad_row
from dml_jax.inference import enrolled
from dml_jax.inference.enrolled import UNKNOWN, Enrolled, Image, Images, Items, OnBad

if TYPE_CHECKING:
    from dml_jax.inference.embedding_model import EmbeddingModel

EMPTY, ENROLL_AGAIN = "the index is empty; add classes first", "enroll again"
KIND, ENROLLED, OTHERS, CLASSIFIER = "index", "enrolled", "others", "classifier.npz"
SAME_IMAGE = 1 - 2e-6  # cosine of two embeddings of equal images, which differ by rounding
BLOCK_ELEMENTS = 1 << 20  # scores or cosines in memory at once


class Answer(NamedTuple):
    """The answer to an image."""

    name: str  # the most probable class, or "unknown"
    probability: float  # that the most probable class is right if the image's class is enrolled
    classes: list[tuple[str, float]]  # the most probable classes, with these probabilities
    margin: float  # log-odds of the most probable class against all others
    nearest: int  # position in `Index.images` of the nearest image of the most probable class

    def as_json(self) -> dict[str, Any]:
        """The answer as `enroll --classify` and `serve` print it."""
        return {
            "class": printable(self.name),  # JSON is UTF-8; names need not be
            "probability": self.probability,
            "classes": [{"class": printable(name), "probability": p} for name, p in self.classes],
            "margin": self.margin,
        }


class Index:
    """Enrolled images and a classifier of their classes.

    Attributes:
      items: the N images, by class and content.
      images: N file names, "" for images that were not given by path.
      classes: names, in the order of their first images.
      labels: int64 [N], positions in `classes`.
      others: photographs of other classes, whose names are their labels; some may be enrolled.
    """

    def __init__(
        self,
        model: "EmbeddingModel",
        items: Iterable[Enrolled] = (),
        others: Photographs | None = None,
    ):
        if model.method_distance:
            raise DataError(
                "the model has another distance than the cosine (method.distance), by which "
                "enrolled images are compared; give a model without"
            )
        self.model, self.others = model, model.unseen() if others is None else others
        self._hold(enrolled.by_content(items))

    def _hold(self, items: Items) -> None:
        """Takes the images, and drops what was computed from earlier ones."""
        self.items, self.images = items, [item.file for item in items.values()]
        self.classes = list(dict.fromkeys(name for name, _ in items))
        number = {name: i for i, name in enumerate(self.classes)}
        self.labels = np.array([number[name] for name, _ in items], np.int64)
        for name in ("photographs", "strangers", "playing", "fitted"):
            self.__dict__.pop(name, None)

    @cached_property
    def photographs(self) -> Photographs:
        """The embeddings of the images, and the names of their classes and sessions."""
        return enrolled.photographs(self.items)

    @property
    def embeddings(self) -> np.ndarray:
        """float32 [N, D]."""
        return self.photographs.rows

    @cached_property
    def strangers(self) -> Photographs:
        """The photographs of other classes that are not enrolled, by name or by an equal image."""
        equal = self.others.labels[_among(self.others.rows, self.embeddings)]
        return self.others.where(~np.isin(self.others.labels, [*self.classes, *equal.tolist()]))

    @cached_property
    def playing(self) -> list[str]:
        """Enrolled classes that play strangers in turn; none if there are enough others. Those that
        the run was trained on are among them only if there are too few without them."""
        missing = expectations.FEWEST - len(np.unique(self.strangers.labels))
        trained = self.model.training_classes() if missing > 0 else []
        playing = [name for name in self.classes if missing > 0 and name not in trained]
        return self.classes if len(playing) < missing else playing

    @cached_property
    def fitted(self) -> tuple[Classifier, Measured]:
        """The classifier of the enrolled classes, then the others, and its measured answers."""
        if not self.items:
            raise DataError(EMPTY)
        count, width = len(self.classes), self.embeddings.shape[1]
        others, position = np.unique(self.strangers.labels, return_inverse=True)
        rows = np.concatenate([self.embeddings, self.strangers.rows.reshape(-1, width)])
        labels = np.concatenate([self.labels, count + position])
        sessions = np.concatenate([self.photographs.sessions, self.strangers.sessions])
        turns = [self.classes.index(name) for name in self.playing]
        strangers = np.array([*turns, *range(count, count + len(others))], np.int64)
        measured = open_set.measure(Photographs(rows, labels, sessions), count, strangers)
        return open_set.fit(rows, labels), measured

    def add(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None = None,
        on_bad: OnBad = None,
    ) -> Counter[str]:
        """Enrolls images (as for `Model.embed`) of new or existing classes; none after an error.

        Images are known by the content of their files: those that are enrolled are not embedded
        again, but get their present session and file name. An image is forgotten if its file has
        another content or class now, or if it is gone and an equal file has another class.

        Args:
          classes: images by class. Equal files of several classes are enrolled, see `shared`.
          sessions: of the images; by default, and where they are "", they are unknown.
          on_bad: gets the reasons why images are left out; without it, they are errors.

        Returns:
          The numbers of images by what was done with them.
        """
        now = enrolled.read(self.model, classes, sessions, on_bad, self.items)
        items, done = enrolled.updated(self.items, now)
        self._hold(items)
        return done

    def calibrate(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None = None,
        on_bad: OnBad = None,
    ) -> None:
        """Takes images of other classes (arguments as for `add`) instead of the unseen classes of
        the run."""
        items = enrolled.read(self.model, classes, sessions, on_bad, {})
        self.others = open_set.choose(enrolled.photographs(items))
        self._hold(self.items)

    def shared(self) -> list[dict[str, str]]:
        """Images whose files several classes hold: the file name by class."""
        files = dict[str, dict[str, str]]()
        for item in self.items.values():
            if item.content:
                files.setdefault(item.content, {})[item.name] = item.file
        return [by_class for by_class in files.values() if len(by_class) > 1]

    def remove(self, name: str) -> int:
        """Removes a class with its images; returns their number."""
        self._check_enrolled(name)
        before = len(self.items)
        self._hold({key: item for key, item in self.items.items() if item.name != name})
        return before - len(self.items)

    def rename(self, old: str, new: str) -> None:
        """Gives a class another name; its images stay."""
        self._check_enrolled(old)
        if new in self.classes:
            raise DataError(f"{new!r} is already a class name; choose another or merge the classes")
        enrolled.check_name(new)
        self._change_class(old, new)

    def merge(self, name: str, into: str) -> None:
        """Gives the images of a class to another one; the class is gone."""
        self._check_enrolled(name)
        self._check_enrolled(into)
        if name == into:
            raise DataError(f"{name}: cannot be merged with itself; give another class")
        self._change_class(name, into)

    def _change_class(self, old: str, new: str) -> None:
        items = self.items.values()
        named = (item._replace(name=new) if item.name == old else item for item in items)
        self._hold(enrolled.by_content(named))

    def _check_enrolled(self, name: str) -> None:
        if name not in self.classes:
            raise DataError(f"{name}: is not enrolled; {suggest(name, self.classes)}")

    def expect(
        self, *, reject: float | None = None, min_probability: float | None = None
    ) -> Expected:
        """What to expect of `classify` with these arguments."""
        return expectations.expected(self.fitted[1], reject, min_probability)

    def measure(
        self, classes: Mapping[str, Sequence[Image]], on_bad: OnBad = None
    ) -> tuple[Measured, int]:
        """Answers to labelled images (as for `add`) of enrolled and of other classes, and the
        number of those that the index holds, which are left out."""
        asked = enrolled.photographs(enrolled.read(self.model, classes, None, on_bad, {}))
        held = _among(asked.rows, self.embeddings) | _among(asked.rows, self.strangers.rows)
        if held.all():
            raise DataError("the index holds all of these images; give photographs taken later")
        rows, names, _ = asked.where(~held)
        answers = np.zeros(len(names), ANSWERS)
        answers["label"] = np.unique(names, return_inverse=True)[1]
        for i, answer in enumerate(self.classify(rows)):
            best = [*dict(answer.classes), names[i]]
            answers[i]["margin"], answers[i]["probability"] = answer.margin, answer.probability
            answers[i]["rank"] = best.index(names[i])  # 3 if it is not among the first three
        known = np.isin(names, self.classes)
        temperature = self.fitted[1].temperature
        return Measured(answers[known], answers[~known], temperature), int(held.sum())

    def classify(
        self,
        images: Images,
        *,
        top: int = 3,
        reject: float | None = None,
        min_probability: float | None = None,
    ) -> list[Answer]:
        """Answers to images: the most probable classes and their probabilities.

        A probability holds for images of enrolled classes. It is calibrated on sessions that are
        left out. Without one of the limits, every image gets a name.

        Args:
          images: as for `Model.embed`, or their embeddings, an array [N, D] with rows of unit
            length.
          top: number of classes in an answer.
          reject: the share of the measured strangers, images of other classes, that gets a name;
            the others are "unknown".
          min_probability: images with a lower probability are "unknown".

        Raises:
          DataError: several limits are given, or one is impossible; an image cannot be used, or the
            rows of an array are not finite, of unit length and as wide as those of the index.
        """
        if top < 1:
            raise DataError(f"top={top}: must be 1 or more; e.g. 3")
        (classifier, measured), count = self.fitted, len(self.classes)
        # Refuses before images are embedded.
        field, limit = expectations.limit(measured, reject, min_probability)
        rows, result = self._queries(images), list[Answer]()
        candidates = np.arange(len(classifier.weights)) < count
        step = max(1, BLOCK_ELEMENTS // max(len(candidates), len(self.items)))
        for block in (rows[i : i + step] for i in range(0, len(rows), step)):
            scores = classifier.scores(block)
            shares = open_set.probabilities(scores, candidates, float(measured.temperature))
            best, margins = open_set.margins(scores, candidates)
            decisive = shares.max(axis=1).astype(np.float32) if field == "probability" else margins
            order = np.argsort(-scores[:, :count], axis=1, kind="stable")[:, :top]
            cosines = block @ self.embeddings.T
            cosines[self.labels != best[:, None]] = -np.inf
            nearest = cosines.argmax(axis=1)
            for i, labels in enumerate(order.tolist()):
                classes = [(self.classes[label], float(shares[i, label])) for label in labels]
                name, probability = classes[0]
                name = name if decisive[i] >= limit else UNKNOWN
                margin, position = float(margins[i]), int(nearest[i])
                result.append(Answer(name, probability, classes, margin, position))
        return result

    def _queries(self, images: Images) -> np.ndarray:
        """Embeddings float32 [N, D] of images, or an array of embeddings after checks."""
        if getattr(images, "ndim", 0) != 2:
            return self.model.embed(images)
        array = np.asarray(images)  # also of JAX
        what, width = f"images: {array.dtype} {list(array.shape)}", self.embeddings.shape[1]
        if array.dtype.kind != "f" or not len(array):
            raise DataError(f"{what}; give embeddings, floats [N, D], or a list of images")
        if array.shape[1] != width:
            raise DataError(f"{what}; give {width} columns, as the index has")
        rows = array.astype(np.float32, copy=False)
        if bad := first_bad_row(rows):
            raise DataError(f"{what}: row {bad[0]} {bad[1]}; give finite rows of unit length")
        return rows

    def save(self, path: str | Path) -> None:
        """Writes a directory, completely or not at all: the tables of the enrolled images and of
        other classes, and the classifier, which is fitted if necessary."""
        path, identity = Path(path).expanduser(), self.model.identity
        contents = {"sha256": [item.content for item in self.items.values()]}
        entries = ENROLLED, OTHERS, CLASSIFIER
        with seal.write(path, KIND, identity=identity, entries=entries) as draft:
            _write(draft / ENROLLED, self.photographs, self.images, contents)
            _write(draft / OTHERS, self.others, [""] * len(self.others.labels), {})
            if self.items:
                arrays = {name: a for part in self.fitted for name, a in part._asdict().items()}
                np.savez(draft / CLASSIFIER, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, model: "EmbeddingModel", path: str | Path) -> "Index":
        """Reads an index written by `save`; DataError if it is damaged or belongs to another
        model."""
        path = Path(path).expanduser()
        seal.read(path, KIND, remedy=ENROLL_AGAIN)
        remedy = f"give the model that it was created with, or {ENROLL_AGAIN}"
        seal.read(path, KIND, names=(), expect=model.identity, remedy=remedy)
        photographs, files, contents = _read(path / ENROLLED)
        rows, *columns = photographs
        names, sessions = (column.tolist() for column in columns)
        items = map(Enrolled, names, files, contents, sessions, rows)
        index = cls(model, items, _read(path / OTHERS)[0])
        index.photographs = photographs  # no copy of its rows
        if index.items:
            with np.load(path / CLASSIFIER) as arrays:
                parts = ([arrays[name] for name in kind._fields] for kind in (Classifier, Measured))
                index.fitted = Classifier(*next(parts)), Measured(*next(parts))
        return index


def _write(
    path: Path, photographs: Photographs, files: list[str], further: dict[str, list[str]]
) -> None:
    rows, labels, sessions = photographs
    columns = {"class_name": labels.tolist(), "session": sessions.tolist(), **further}
    table.write(path, rows, None, files, metadata=columns)


def _read(path: Path) -> tuple[Photographs, list[str], Sequence[str]]:
    held = table.read(path, remedy=ENROLL_AGAIN)
    labels, sessions = (np.array(held.metadata[key], np.str_) for key in ("class_name", "session"))
    photographs = Photographs(np.array(held.embeddings), labels, sessions)
    return photographs, held.ids, held.metadata.get("sha256", ())


def _among(rows: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Whether each row is that of an image whose embedding is in `held`."""
    result, step = np.zeros(len(rows), bool), max(1, BLOCK_ELEMENTS // max(1, len(held)))
    for start in range(0, len(rows) if len(held) else 0, step):
        block = slice(start, start + step)
        result[block] = (rows[block] @ held.T > SAME_IMAGE).any(axis=1)
    return result
