"""An index of enrolled classes: a classifier of embeddings, fitted in seconds (see `open_set`).

An image gets the most probable class, or "unknown" where that is asked for. Other classes improve
the classifier and play the strangers: the unseen classes of the run or, after `Index.calibrate`,
those of its argument. Those that are enrolled, by their name or by an equal image, do not take
part. With fewer than `expectations.FEWEST` other classes, each enrolled class is left out in turn
and plays the stranger too.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dml_jax import seal, table
from dml_jax.errors import DataError, printable
from dml_jax.evaluation import expectations, open_set
from dml_jax.evaluation.expectations import Point
from dml_jax.evaluation.open_set import ANSWERS, Classifier, Measured, Photographs
from dml_jax.evaluation.unit_rows import first_bad_row
from dml_jax.inference.gallery import UNKNOWN, Enrolled, Gallery, Image, Images, OnBad

if TYPE_CHECKING:
    from dml_jax.inference.embedding_model import EmbeddingModel

ENROLL_AGAIN = "enroll again"
EMPTY = "the index is empty; add classes first"
KIND, CLASSIFIER = "index", "classifier.npz"
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


class Background(NamedTuple):
    """Which images play the strangers."""

    others: Photographs  # of other classes that are not enrolled
    overlap: list[str]  # other classes that are enrolled, by name or by an equal image
    playing: list[str]  # enrolled classes that play strangers in turn; none if there are others
    trained: bool  # whether the run was trained on some of these


class Index(Gallery):
    """Enrolled images and a classifier of their classes."""

    def __init__(self, model: "EmbeddingModel"):
        super().__init__(model)
        self._others: tuple[Photographs, list[str]] | None = None  # see `read_others`

    def forget(self) -> None:
        """Drops what was computed from the images."""
        for name in ("background", "fitted"):
            self.__dict__.pop(name, None)

    def calibrate(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None = None,
        on_bad: OnBad = None,
    ) -> None:
        """Takes images of other classes (arguments as for `add`) instead of the unseen classes of
        the run."""
        items, rows = self._embedded(self._listed(classes, sessions), on_bad)
        names, labels = np.unique([item.name for item in items], return_inverse=True)
        photographs = Photographs(rows, labels, np.array([i.session for i in items], np.str_))
        self._others = photographs.where(open_set.choose(photographs)), names.tolist()
        self.forget()

    def read_others(self) -> tuple[Photographs, list[str]]:
        """Images of other classes and the names of these, which may be enrolled by now; those of
        the run are read when they are needed."""
        if self._others is None:
            self._others = self.model.unseen()
        return self._others

    @cached_property
    def background(self) -> Background:
        """Which images play the strangers."""
        if not self.images:
            raise DataError(EMPTY)
        others, names = self.read_others()
        if names:
            self._comparable(others.rows)
        else:  # a model without other classes may not say how wide its rows are
            others = others._replace(rows=self.embeddings[:0])
        equal = set(others.labels[_among(others.rows, self.embeddings)].tolist())
        overlap = [
            label
            for label in np.unique(others.labels).tolist()
            if label in equal or names[label] in self.classes
        ]
        others = others.where(~np.isin(others.labels, overlap))
        count, playing, trained = len(np.unique(others.labels)), list[str](), set[str]()
        if count < expectations.FEWEST:
            trained = set(self.model.training_classes()) & set(self.classes)
            playing = [name for name in self.classes if name not in trained]
            if count + len(playing) < expectations.FEWEST:
                playing = self.classes
        used = bool(trained & set(playing))
        return Background(others, [names[label] for label in overlap], playing, used)

    @cached_property
    def fitted(self) -> tuple[Classifier, Measured]:
        """The classifier of the enrolled classes, then the others, and its measured answers."""
        others, _, playing, _ = self.background
        count = len(self.classes)
        numbers, position = np.unique(others.labels, return_inverse=True)
        every = Photographs(self.embeddings, self.labels, np.array(self.sessions, np.str_))
        if len(numbers):
            others = others._replace(labels=count + position)
            every = Photographs(*map(np.concatenate, zip(every, others, strict=True)))
        turns = [self.classes.index(name) for name in playing]
        strangers = np.array([*turns, *range(count, count + len(numbers))], np.int64)
        return open_set.fit(every.rows, every.labels), open_set.measure(every, count, strangers)

    def expect(self, *, reject: float | None = None, min_probability: float | None = None) -> Point:
        """What to expect of `classify` with these arguments."""
        choice = expectations.choice(reject, min_probability)
        return expectations.expected(self.fitted[1], choice)

    def measure(
        self, classes: Mapping[str, Sequence[Image]], on_bad: OnBad = None
    ) -> tuple[Measured, int]:
        """Answers to labelled images (as for `add`) of enrolled and of other classes, and the
        number of those that the index holds, which are left out."""
        items, rows = self._embedded(self._listed(classes), on_bad)
        held = _among(rows, self.embeddings)
        if self._others and len(self._others[0].rows):
            held |= _among(rows, self._others[0].rows)
        if held.all():
            raise DataError("the index holds all of these images; give photographs taken later")
        names = [items[i].name for i in np.flatnonzero(~held)]
        count, answers = len(self.classes), np.zeros(len(names), ANSWERS)
        number = {name: i for i, name in enumerate(dict.fromkeys([*self.classes, *names]))}
        labels = np.array([number[name] for name in names])
        for part, _, shares, of_part in self._judged(rows[~held]):
            own = np.take_along_axis(shares, np.minimum(labels[part], count - 1)[:, None], 1)
            of_part["label"], of_part["rank"] = labels[part], (shares > own).sum(axis=1)
            answers[part] = of_part
        enrolled = labels < count
        temperature = self.fitted[1].temperature
        return Measured(answers[enrolled], answers[~enrolled], temperature), int(held.sum())

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
        choice = expectations.choice(reject, min_probability)
        limit = expectations.limit(self.fitted[1], choice)  # refuses before images are embedded
        rows, result = self._queries(images), list[Answer]()
        for part, scores, shares, answers in self._judged(rows):
            accepted = choice.of(answers) >= limit
            order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
            cosines = rows[part] @ self.embeddings.T
            cosines[self.labels != answers["answer"][:, None]] = -np.inf
            nearest = cosines.argmax(axis=1).tolist()
            for i, labels in enumerate(order.tolist()):
                classes = [(self.classes[label], float(shares[i, label])) for label in labels]
                (best, probability), margin = classes[0], float(answers["margin"][i])
                name = best if accepted[i] else UNKNOWN
                result.append(Answer(name, probability, classes, margin, nearest[i]))
        return result

    def _judged(
        self, rows: np.ndarray
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]:
        """By blocks of rows: the scores and probabilities [B, C] of enrolled classes, and answers
        of `ANSWERS`."""
        (classifier, measured), count = self.fitted, len(self.classes)
        candidates = np.arange(len(classifier.weights)) < count
        step = max(1, BLOCK_ELEMENTS // max(len(candidates), len(self.items)))
        for start in range(0, len(rows), step):
            scores = classifier.scores(rows[start : start + step])
            shares = open_set.probabilities(scores, candidates, float(measured.temperature))
            answers = np.zeros(len(scores), ANSWERS)
            answers["answer"], answers["margin"] = open_set.margins(scores, candidates)
            answers["probability"] = shares.max(axis=1)
            yield slice(start, start + step), scores[:, :count], shares[:, :count], answers

    def _queries(self, images: Images) -> np.ndarray:
        """Embeddings float32 [N, D] of images, or an array of embeddings after checks."""
        if getattr(images, "ndim", 0) != 2:
            return self._comparable(self.model.embed(images))
        array = np.asarray(images)  # also of JAX
        if array.dtype.kind != "f" or not len(array):
            what = f"images: {array.dtype} {list(array.shape)}"
            raise DataError(f"{what}; give embeddings, floats [N, D], or a list of images")
        rows = self._comparable(array.astype(np.float32, copy=False))
        if bad := first_bad_row(rows):
            what = f"images: row {bad[0]} of {list(array.shape)} {bad[1]}"
            raise DataError(f"{what}; give finite rows of unit length")
        return rows

    def save(self, path: str | Path) -> None:
        """Writes a directory, completely or not at all: the table of the enrolled images, that of
        other classes if there are any, and the classifier, which is fitted if necessary."""
        entries = "enrolled", "others", CLASSIFIER
        path, identity = Path(path).expanduser(), self.model.identity
        with seal.write(path, KIND, identity=identity, entries=entries) as draft:
            columns: dict[str, Any] = {"sha256": [each.content for each in self.items]}
            columns |= {"session": self.sessions, "class_name": [each.name for each in self.items]}
            enrolled = self.embeddings, self.labels, self.images
            table.write(draft / "enrolled", *enrolled, metadata=columns)
            if self._others is not None and self._others[1]:
                (rows, labels, groups), names = self._others
                columns = {"class_name": [names[i] for i in labels], "session": groups.tolist()}
                table.write(draft / "others", rows, labels, [""] * len(rows), metadata=columns)
            if self.images:
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
        index, enrolled = cls(model), table.read(path / "enrolled", remedy=ENROLL_AGAIN)
        columns = (enrolled.metadata[key] for key in ("class_name", "sha256", "session"))
        names, digests, sessions = columns
        items = zip(names, enrolled.ids, digests, sessions, strict=True)
        index.hold([Enrolled(*each) for each in items], np.array(enrolled.embeddings))
        if (path / "others").exists():
            others = table.read(path / "others", remedy=ENROLL_AGAIN)
            classes, labels = np.unique(others.metadata["class_name"], return_inverse=True)
            groups = np.array(others.metadata["session"], np.str_)
            photographs = Photographs(np.array(others.embeddings), labels, groups)
            index._others = photographs, classes.tolist()
        if index.images:
            with np.load(path / CLASSIFIER) as arrays:
                parts = ([arrays[name] for name in kind._fields] for kind in (Classifier, Measured))
                index.fitted = Classifier(*next(parts)), Measured(*next(parts))
        return index


def _among(rows: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Whether each row is that of an image whose embedding is in `held`."""
    step = max(1, BLOCK_ELEMENTS // max(1, len(held)))
    blocks = (rows[start : start + step] for start in range(0, len(rows), step))
    equal = [(block @ held.T > SAME_IMAGE).any(axis=1) for block in blocks]
    return np.concatenate([np.zeros(0, np.bool_), *equal])
