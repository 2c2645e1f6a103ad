"""An index of enrolled classes: a classifier of embeddings, fitted in seconds (see `open_set`).

An image gets the most probable class, or "unknown" where that is asked for. Other classes improve
the classifier and play the strangers: the unseen classes of the run or, after `Index.calibrate`,
those given. Classes of these that are enrolled, by their name or by an equal image, do not take
part. Without `expectations.FEWEST` other classes, each enrolled class is left out in turn and plays
the stranger too.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image as pillow

from dml_jax import seal, table
from dml_jax.class_names import normalised
from dml_jax.data.files import File, Record
from dml_jax.data.read_ahead import ordered_map
from dml_jax.errors import DataError, printable, suggest
from dml_jax.evaluation import expectations, open_set
from dml_jax.evaluation.expectations import ALWAYS, Choice, Point
from dml_jax.evaluation.open_set import Classifier, Measured, Photographs
from dml_jax.evaluation.unit_rows import first_bad_row
from dml_jax.inference.answers import Answer
from dml_jax.table import Table

if TYPE_CHECKING:
    from dml_jax.inference.embedding_model import EmbeddingModel

UNKNOWN = "unknown"
ENROLL_AGAIN = "enroll again"
EMPTY = "the index is empty; add classes first"
KIND, CLASSIFIER = "index", "classifier.npz"
SAME_IMAGE = 1 - 2e-6  # cosine of two embeddings of equal images, which differ by rounding
BLOCK_ELEMENTS = 1 << 22  # cosines in memory at once
Image = str | Path | Record | bytes | pillow.Image | np.ndarray
Images = Sequence[Image] | np.ndarray  # an array [N, H, W, 3] is a batch of images


class Added(NamedTuple):
    """What `Index.add` did with images."""

    enrolled: int
    classes: int  # of the images that were enrolled
    known: int  # whose class holds the content of their file already
    moved: int  # known ones whose file had another name
    sessions: int  # known ones whose session was another one
    replaced: int  # enrolled ones whose file had another content, which is forgotten


class Given(NamedTuple):
    """An image that is or will be enrolled."""

    name: str  # of its class
    image: Image  # until it is embedded
    file: str  # name of its file, or ""
    content: str  # SHA-256 of its file, or ""
    session: str

    @property
    def key(self) -> tuple[str, str]:
        """By which it is recognised."""
        return self.name, self.content

    def again(self, other: "Given") -> "Given":
        """This enrolled image with the file and session that are given now, if they are."""
        return self._replace(file=other.file or self.file, session=other.session or self.session)


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
        # Images for thresholds and the names of their classes, which may be enrolled; the unseen
        # classes of the run are read when they are needed.
        self._others: tuple[Photographs, list[str]] | None = None
        self._hold([], np.zeros((0, 0), np.float32))

    def _hold(self, items: Sequence[Given], embeddings: np.ndarray) -> None:
        """Sets the enrolled images, and drops results that depend on them."""
        self._items, self.embeddings = items, embeddings
        self.classes = list(dict.fromkeys(each.name for each in items))
        number = {name: i for i, name in enumerate(self.classes)}
        self.labels = np.array([number[each.name] for each in items], np.int64)
        self.images = [each.file for each in items]
        self.sessions = [each.session for each in items]
        self._forget()

    def _forget(self) -> None:
        self._fitted: tuple[Classifier, Measured] | None = None
        self._points = dict[Choice, Point]()

    def counts(self) -> dict[str, int]:
        """The number of enrolled images of each class."""
        return dict(zip(self.classes, np.bincount(self.labels).tolist(), strict=True))

    def add(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None = None,
        on_bad: Callable[[str], object] | None = None,
    ) -> Added:
        """Enrolls images (as for `Model.embed`) of new or existing classes; none after an error.

        Images are known by the content of their files: those that their class holds are not
        embedded again, but get the session and file name that are given now. If a file of the class
        has another content now, the earlier one is forgotten.

        Args:
          classes: images by class. Equal images of several classes are enrolled, see `shared`.
          sessions: of the images; by default, and where they are "", they are unknown.
          on_bad: gets the reasons why images are left out; without it, they are errors.
        """
        given = self._given(self._listed(classes), sessions)
        held = {each.key: i for i, each in enumerate(self._items) if each.content}
        known = {held[each.key]: each for each in given if each.key in held}
        fresh = {
            (each.name, each.content or i): each
            for i, each in enumerate(given)
            if each.key not in held
        }
        new = list(fresh.values())
        try:
            rows = self._embedded(new)
        except DataError:  # all are read again, which is quick
            if not on_bad:
                raise
            new = [each for each in new if usable(self.model, [each.image], on_bad)]
            rows = self._embedded(new)
        places = {(each.name, each.file) for each in (*new, *known.values()) if each.file}
        kept = {
            i: item.again(known.get(i, item))
            for i, item in enumerate(self._items)
            if i in known or (item.name, item.file) not in places
        }
        pairs = [(item, self._items[i]) for i, item in kept.items()]
        moved = sum(item.file != before.file for item, before in pairs)
        changed = sum(item.session != before.session for item, before in pairs)
        replaced, skipped = len(self._items) - len(kept), len(given) - len(fresh)
        rows = np.concatenate([self.embeddings[[*kept]], rows]) if kept else rows
        self._hold([*kept.values(), *(each._replace(image="") for each in new)], rows)
        count = len({each.name for each in new})
        return Added(len(new), count, skipped, moved, changed, replaced)

    def _listed(self, classes: Mapping[str, Sequence[Image]]) -> dict[str, Sequence[Image]]:
        return {name: self.model.listed(images, str(name)) for name, images in classes.items()}

    def _given(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None,
    ) -> list[Given]:
        for name, images in classes.items():
            _check_name(name)
            count = len(sessions.get(name, ())) if sessions else len(images)
            if count != len(images):
                what = f"sessions of {name}: {count}"
                raise DataError(f"{what}, but {len(images)} images; give one for each")
        images = [image for each in classes.values() for image in each]
        names = [name for name, each in classes.items() for _ in each]
        taken = [s for name in classes for s in sessions[name]] if sessions else [""] * len(images)
        contents = ordered_map(_content, images)
        columns = names, images, map(file_name, images), contents, taken
        return [Given(*each) for each in zip(*columns, strict=True)]

    def _embedded(self, given: Sequence[Given]) -> np.ndarray:
        """Embeddings float32 [N, D] of images."""
        if not given:
            return self.embeddings[:0]
        rows = self._comparable(self.model.embed([each.image for each in given]))
        if bad := first_bad_row(rows):
            name = given[bad[0]].file or f"image {bad[0]}"
            raise DataError(f"{name}: its embedding {bad[1]}; leave it out")
        return rows

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
        self._check_enrolled(name)
        kept = [i for i, each in enumerate(self._items) if each.name != name]
        forgotten = len(self._items) - len(kept)
        self._hold([self._items[i] for i in kept], self.embeddings[kept])
        return forgotten

    def _check_enrolled(self, name: str) -> None:
        if name not in self.classes:
            raise DataError(f"{name}: is not enrolled; {suggest(name, self.classes)}")

    def _call(self, old: str, new: str) -> None:
        items = [each._replace(name=new) if each.name == old else each for each in self._items]
        self._hold(items, self.embeddings)

    def rename(self, old: str, new: str) -> None:
        """Gives a class another name; its images stay."""
        self._check_enrolled(old)
        if new in self.classes:
            raise DataError(f"{new!r} is already a class name; choose another or merge the classes")
        _check_name(new)
        self._call(old, new)

    def merge(self, name: str, into: str) -> None:
        """Gives the images of a class to another one; the class is gone."""
        self._check_enrolled(name)
        self._check_enrolled(into)
        if name == into:
            raise DataError(f"{name}: cannot be merged with itself; give another class")
        self._call(name, into)

    def calibrate(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Takes images (as for `add`) for those of other classes, instead of the unseen classes of
        the run."""
        given = self._given(self._listed(classes), sessions)
        known, labels = np.unique([each.name for each in given], return_inverse=True)
        taken = np.array([each.session for each in given], np.str_)
        photographs = Photographs(self._embedded(given), labels, taken)
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
        if others >= expectations.FEWEST:
            return [], False
        trained = set(self.model.training_classes()) & set(self.classes)
        unseen = [name for name in self.classes if name not in trained]
        if others + len(unseen) >= expectations.FEWEST or not trained:
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
        return self.at(expectations.choice(reject, min_probability, threshold))

    def at(self, choice: Choice) -> Point:
        """What to expect with a choice; DataError as for `expectations.rejecting`."""
        if choice not in self._points:
            self._points[choice] = expectations.expected(self.fitted()[1], choice)
        return self._points[choice]

    def measure(self, classes: Mapping[str, Sequence[Image]], choice: Choice = ALWAYS) -> Found:
        """Classifies labelled images (as for `add`) of enrolled and of other classes."""
        self.at(choice)  # refuses before images are embedded
        given = self._given(self._listed(classes), None)
        rows, names = self._embedded(given), [each.name for each in given]
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
        choice = expectations.choice(reject, min_probability, threshold)
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
        """Writes a directory, completely or not at all: the table of the enrolled images, that of
        other classes if they were given, and the classifier, which is fitted if necessary."""
        entries = "enrolled", "others", CLASSIFIER
        path, identity = Path(path).expanduser(), self.model.identity
        with seal.write(path, KIND, identity=identity, entries=entries) as draft:
            contents = [each.content for each in self._items]
            columns = self.images, self.enrolled, self.classes
            _write(draft / "enrolled", *columns, sha256=contents)
            if self._others is not None and self._others[1]:
                others, names = self._others
                _write(draft / "others", [""] * len(others.labels), others, names)
            if self.images:
                arrays: dict[str, Any] = {}
                for part in self.fitted():
                    arrays |= part._asdict()
                np.savez(draft / CLASSIFIER, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, model: "EmbeddingModel", path: str | Path) -> "Index":
        """Reads an index written by `save`; DataError if it is damaged or belongs to another
        model."""
        path = Path(path).expanduser()
        seal.read(path, KIND, remedy=ENROLL_AGAIN)
        remedy = f"give the model that it was created with, or {ENROLL_AGAIN}"
        seal.read(path, KIND, names=(), expect=model.identity, remedy=remedy)
        index, (found, rows, classes) = cls(model), _read(path / "enrolled")
        names = [classes[label] for label in rows.labels]
        columns = names, names, found.ids, found.metadata["sha256"], rows.sessions.tolist()
        index._hold([Given(*each) for each in zip(*columns, strict=True)], rows.rows)
        if (path / "others").exists():
            index._others = _read(path / "others")[1:]
        if index.images:
            with np.load(path / CLASSIFIER) as arrays:
                parts = ([arrays[name] for name in kind._fields] for kind in (Classifier, Measured))
                index._fitted = Classifier(*next(parts)), Measured(*next(parts))
        return index


def _write(
    directory: Path, ids: list[str], rows: Photographs, classes: list[str], **columns: list[str]
) -> None:
    columns["class_name"] = [classes[label] for label in rows.labels]
    columns["session"] = rows.sessions.tolist()
    table.write(directory, rows.rows, rows.labels, ids, metadata=columns)


def _read(directory: Path) -> tuple[Table, Photographs, list[str]]:
    found = table.read(directory, remedy=ENROLL_AGAIN)
    sessions = np.array(found.metadata["session"], np.str_)
    # A sample of other classes need not have all numbers.
    _, first, labels = np.unique(np.asarray(found.labels), return_index=True, return_inverse=True)
    names = [found.metadata["class_name"][i] for i in first]
    return found, Photographs(np.array(found.embeddings), labels, sessions), names


def _among(rows: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Whether each row is that of an image whose embedding is held."""
    step = max(1, BLOCK_ELEMENTS // max(1, len(held)))
    found = np.zeros(len(rows), np.bool_)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        found[part] = (rows[part] @ held.T > SAME_IMAGE).any(axis=1)
    return found


def _check_name(name: str) -> None:
    if not isinstance(name, str) or normalised(name) != name or name in ("", UNKNOWN):
        raise DataError(
            f"{name!r}: cannot be a class name; give a text without surrounding spaces, in "
            f"Unicode's composed form (NFC), other than {UNKNOWN!r}"
        )


def usable(
    model: "EmbeddingModel", images: Sequence[Any], say: Callable[[str], object]
) -> list[Any]:
    """The images that the model can embed; `say` gets the reasons against the others."""

    def problem(image: Any) -> str:
        try:
            model.read(image)
        except DataError as error:
            return str(error)
        return ""

    kept = []
    for image, reason in zip(images, ordered_map(problem, images), strict=True):
        if reason:
            say(f"left out: {printable(reason)}")
        else:
            kept.append(image)
    return kept


def _content(image: Image) -> str:
    """The SHA-256 of the file of an image; "" if there is none, or it cannot be read, which
    embedding it will say."""
    if isinstance(image, str | Path):
        image = Record(str(image), File(Path(image).expanduser()).read, "")
    try:
        content = image.read() if isinstance(image, Record) else image
    except DataError:
        return ""
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else ""


def file_name(image: Image) -> str:
    """The name of an enrolled image; "" unless it is a file or belongs to a prepared data set."""
    if isinstance(image, Record):
        return image.name
    return str(Path(image).expanduser().resolve()) if isinstance(image, str | Path) else ""
