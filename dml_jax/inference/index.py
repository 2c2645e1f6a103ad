"""An index of enrolled classes: a classifier of embeddings, fitted in seconds (see `open_set`).

An image gets the most probable class, or "unknown" where that is asked for. Other classes improve
the classifier and play the strangers: the unseen classes of the run or, after `Index.calibrate`,
those given. Classes of these that are enrolled, by their name or by an equal image, do not take
part. Without `expectations.FEWEST` other classes, each enrolled class is left out in turn and plays
the stranger too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dml_jax import seal, table
from dml_jax.data.read_ahead import ordered_map
from dml_jax.errors import DataError, printable
from dml_jax.evaluation import expectations, open_set
from dml_jax.evaluation.expectations import ALWAYS, Choice, Point
from dml_jax.evaluation.open_set import ANSWERS, Classifier, Measured, Photographs
from dml_jax.evaluation.unit_rows import first_bad_row
from dml_jax.inference.answers import Answer
from dml_jax.inference.gallery import (
    UNKNOWN,
    Added,
    Enrolled,
    Gallery,
    Image,
    Images,
    check_name,
    content,
    file_name,
)

if TYPE_CHECKING:
    from dml_jax.inference.embedding_model import EmbeddingModel

ENROLL_AGAIN = "enroll again"
EMPTY = "the index is empty; add classes first"
KIND, CLASSIFIER = "index", "classifier.npz"
SAME_IMAGE = 1 - 2e-6  # cosine of two embeddings of equal images, which differ by rounding
BLOCK_ELEMENTS = 1 << 20  # scores or cosines in memory at once


class Background(NamedTuple):
    """Which images play the strangers."""

    others: Photographs  # of other classes that are not enrolled
    overlap: list[str]  # other classes that are enrolled, by name or by an equal image
    playing: list[str]  # enrolled classes that play strangers in turn; none if there are others
    trained: bool  # whether the run was trained on some of these


class Index(Gallery):
    """Embeddings of enrolled images and their classes; `model` makes the embeddings."""

    def __init__(self, model: "EmbeddingModel"):
        if model.method_distance:
            raise DataError(
                "the model has another distance than the cosine (method.distance), by which "
                "enrolled images are compared; give a model without"
            )
        self.model = model
        # Images of other classes and the names of these, which may be enrolled; the unseen classes
        # of the run are read when they are needed.
        self._others: tuple[Photographs, list[str]] | None = None
        super().__init__()

    def add(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None = None,
        on_bad: Callable[[str], object] | None = None,
        keep_sessions: bool = False,
    ) -> Added:
        """Enrolls images (as for `Model.embed`) of new or existing classes; none after an error.

        Images are known by the content of their files: those that their class holds are not
        embedded again, but get the session and file name that are given now. If a file of the class
        has another content now, the earlier one is forgotten.

        Args:
          classes: images by class. Equal images of several classes are enrolled, see `shared`.
          sessions: of the images; by default, and where they are "", they are unknown.
          on_bad: gets the reasons why images are left out; without it, they are errors.
          keep_sessions: known images keep a session that they have.
        """
        known, fresh = self.compare(self._given(classes, sessions))
        new, rows = self._embedded(fresh, on_bad)
        return self.take(known, new, rows, keep_sessions)

    def _given(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None,
    ) -> list[tuple[Enrolled, Image]]:
        """Images to enroll or to compare with enrolled ones."""
        listed = {name: self.model.listed(images, str(name)) for name, images in classes.items()}
        names, images, taken = list[str](), list[Image](), list[str]()
        for name, of_class in listed.items():
            check_name(name)
            of_sessions = sessions.get(name, ()) if sessions else [""] * len(of_class)
            if len(of_sessions) != len(of_class):
                what = f"sessions of {name}: {len(of_sessions)}"
                raise DataError(f"{what}, but {len(of_class)} images; give one for each")
            names += [name] * len(of_class)
            images += of_class
            taken += of_sessions
        columns = names, map(file_name, images), ordered_map(content, images), taken
        items = (Enrolled(*each) for each in zip(*columns, strict=True))
        return list(zip(items, images, strict=True))

    def _embedded(
        self, given: Sequence[tuple[Enrolled, Image]], on_bad: Callable[[str], object] | None
    ) -> tuple[list[Enrolled], np.ndarray]:
        """Images that can be used, and their embeddings float32 [N, D]."""
        usable, rows = self.embed([image for _, image in given], on_bad)
        return [given[i][0] for i in usable], rows

    def embed(
        self, images: Sequence[Image], on_bad: Callable[[str], object] | None = None
    ) -> tuple[list[int], np.ndarray]:
        """The positions of the images that can be used, and their embeddings float32 [N, D].

        `on_bad` gets the reasons against the others; without it, they are errors.
        """
        if not images:
            return [], self.embeddings[:0]
        if on_bad:
            say = on_bad
            failed = lambda error: say(f"left out: {printable(str(error))}")  # noqa: E731
            (rows,) = self.model.embed_each([images], failed)
        else:
            rows = self.model.embed(images)
        usable = np.flatnonzero(~np.isnan(rows[:, 0])).tolist()
        rows = self._comparable(rows[usable])
        if bad := first_bad_row(rows):
            name = file_name(images[usable[bad[0]]]) or f"image {usable[bad[0]]}"
            raise DataError(f"{name}: its embedding {bad[1]}; leave it out")
        return usable, rows

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

    def calibrate(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None = None,
        on_bad: Callable[[str], object] | None = None,
    ) -> None:
        """Takes images (as for `add`) for those of other classes, instead of the unseen classes of
        the run."""
        given = self._given(classes, sessions)
        items, rows = self._embedded(given, on_bad)
        known, labels = np.unique([item.name for item in items], return_inverse=True)
        taken = np.array([item.session for item in items], np.str_)
        photographs = Photographs(rows, labels, taken)
        self._others = photographs.where(open_set.choose(photographs)), known.tolist()
        self.forget()

    def forget(self) -> None:
        """Drops what was computed of the images."""
        super().forget()
        for name in ("background", "fitted"):
            self.__dict__.pop(name, None)
        self._points = dict[Choice, Point]()

    def read_others(self) -> tuple[Photographs, list[str]]:
        """Images of other classes and the names of these, which may be enrolled by now."""
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
        same = set(others.labels[_among(others.rows, self.embeddings)].tolist())
        present = set(others.labels.tolist())
        overlap = [
            label
            for label, name in enumerate(names)
            if label in present and (label in same or name in self.classes)
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
        """The classifier of the enrolled classes, then the others, and what was measured of it."""
        others, _, playing, _ = self.background
        count = len(self.classes)
        numbers, position = np.unique(others.labels, return_inverse=True)
        both = Photographs(self.embeddings, self.labels, np.array(self.sessions, np.str_))
        if len(numbers):
            others = others._replace(labels=count + position)
            both = Photographs(*map(np.concatenate, zip(both, others, strict=True)))
        turns = [self.classes.index(name) for name in playing]
        strangers = np.array([*turns, *range(count, count + len(numbers))], np.int64)
        return open_set.fit(both.rows, both.labels), open_set.measure(both, count, strangers)

    def expect(self, *, reject: float | None = None, min_probability: float | None = None) -> Point:
        """What to expect of `classify` with these arguments."""
        return self.at(expectations.choice(reject, min_probability))

    def at(self, choice: Choice) -> Point:
        """What to expect with a choice; DataError as for `expectations.limit`."""
        if choice not in self._points:
            self._points[choice] = expectations.expected(self.fitted[1], choice)
        return self._points[choice]

    def measure(
        self,
        classes: Mapping[str, Sequence[Image]],
        choice: Choice = ALWAYS,
        on_bad: Callable[[str], object] | None = None,
    ) -> tuple[Measured, int]:
        """Answers to labelled images (as for `add`) of enrolled and of other classes, and the
        number of those that the index holds, which are left out."""
        self.at(choice)  # refuses before images are embedded
        items, rows = self._embedded(self._given(classes, None), on_bad)
        names = [item.name for item in items]
        new = ~_among(rows, self.embeddings)
        if self._others and len(self._others[0].rows):
            new &= ~_among(rows, self._others[0].rows)
        if not new.any():
            raise DataError("the index holds all of these images; give photographs taken later")
        count, found = len(self.classes), np.zeros(int(new.sum()), ANSWERS)
        number = {name: i for i, name in enumerate(dict.fromkeys([*self.classes, *names]))}
        found["label"] = [number[name] for name, fits in zip(names, new, strict=True) if fits]
        for part, _, shares, answers in self._judged(rows[new]):
            answers["label"] = found["label"][part]
            own = np.take_along_axis(shares, np.minimum(answers["label"], count - 1)[:, None], 1)
            answers["rank"] = (shares > own).sum(axis=1)
            found[part] = answers
        known = found["label"] < count
        return Measured(found[known], found[~known], self.fitted[1].temperature), int(sum(~new))

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
        limit = self.at(choice).limit  # refuses before images are embedded
        rows, found = self._queries(images), list[Answer]()
        for part, scores, shares, answers in self._judged(rows):
            names = np.where(choice.of(answers) >= limit, answers["answer"], -1).tolist()
            order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
            nearest = self._nearest(rows[part], answers["answer"])
            for i, name in enumerate(names):
                classes = [(self.classes[label], float(shares[i, label])) for label in order[i]]
                called = self.classes[name] if name >= 0 else UNKNOWN
                margin = float(answers["margin"][i])
                found.append(Answer(called, classes[0][1], classes, margin, int(nearest[i])))
        return found

    def _judged(
        self, rows: np.ndarray
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray, np.ndarray]]:
        """By blocks of rows: the scores and probabilities [B, C] of enrolled classes, and answers
        of `ANSWERS`."""
        (classifier, measured), count = self.fitted, len(self.classes)
        candidates = np.arange(len(classifier.weights)) < count
        step = max(1, BLOCK_ELEMENTS // len(candidates))
        for start in range(0, len(rows), step):
            scores = classifier.scores(rows[start : start + step])
            shares = open_set.probabilities(scores, candidates, float(measured.temperature))
            answers = np.zeros(len(scores), ANSWERS)
            answers["answer"], answers["margin"] = open_set.margins(scores, candidates)
            answers["probability"] = shares.max(axis=1)
            yield slice(start, start + step), scores[:, :count], shares[:, :count], answers

    def _nearest(self, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The position of the nearest enrolled image of a class, for each row."""
        found = np.zeros(len(rows), np.int64)
        for label in np.unique(labels):
            asked, own = np.flatnonzero(labels == label), np.flatnonzero(self.labels == label)
            found[asked] = own[(rows[asked] @ self.embeddings[own].T).argmax(axis=1)]
        return found

    def _queries(self, images: Images) -> np.ndarray:
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
        """Writes a directory, completely or not at all: the table of the enrolled images, that of
        other classes if they were given, and the classifier, which is fitted if necessary."""
        entries = "enrolled", "others", CLASSIFIER
        path, identity = Path(path).expanduser(), self.model.identity
        with seal.write(path, KIND, identity=identity, entries=entries) as draft:
            columns: dict[str, Any] = {"sha256": [each.content for each in self.items]}
            columns |= {"session": self.sessions, "class_name": [each.name for each in self.items]}
            enrolled = self.embeddings, self.labels, self.images
            table.write(draft / "enrolled", *enrolled, metadata=columns)
            if self._others is not None and self._others[1]:
                (rows, labels, taken), names = self._others
                columns = {"class_name": [names[i] for i in labels], "session": taken.tolist()}
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
        index, found = cls(model), table.read(path / "enrolled", remedy=ENROLL_AGAIN)
        names, contents, taken = (found.metadata[k] for k in ("class_name", "sha256", "session"))
        columns = zip(names, found.ids, contents, taken, strict=True)
        index.hold([Enrolled(*each) for each in columns], found.embeddings)
        if (path / "others").exists():
            found = table.read(path / "others", remedy=ENROLL_AGAIN)
            known, labels = np.unique(found.metadata["class_name"], return_inverse=True)
            days = np.array(found.metadata["session"], np.str_)
            others = Photographs(np.array(found.embeddings), labels, days)
            index._others = others, known.tolist()
        if index.images:
            with np.load(path / CLASSIFIER) as arrays:
                parts = ([arrays[name] for name in kind._fields] for kind in (Classifier, Measured))
                index.fitted = Classifier(*next(parts)), Measured(*next(parts))
        return index


def _among(rows: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Whether each row is that of an image whose embedding is held."""
    step = max(1, BLOCK_ELEMENTS // max(1, len(held)))
    found = np.zeros(len(rows), np.bool_)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        found[part] = (rows[part] @ held.T > SAME_IMAGE).any(axis=1)
    return found
