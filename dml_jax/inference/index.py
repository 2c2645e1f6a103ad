"""An index of enrolled classes: a nearest-neighbour classifier with rejection, without training.

An image is assigned the class with the largest margin over all other classes (see `open_set`), or
"unknown" if the margin is below a threshold. By default this is the threshold that
`FALSE_ACCEPT_RATE` of the images of other classes are expected to pass, measured on the unseen
classes of the run, or after `Index.calibrate` on other classes. Classes of these that are enrolled,
by their name or by an equal image, do not take part.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from PIL import Image as pillow

from dml_jax import identity as identities
from dml_jax.class_names import normalised
from dml_jax.data.prepare import archives
from dml_jax.errors import DataError, suggest
from dml_jax.evaluation import open_set
from dml_jax.evaluation.open_set import FALSE_ACCEPT_RATE, Measured, Photographs, Point, Scorer
from dml_jax.files import atomic_write, reading, reason
from dml_jax.identity import Identity

UNKNOWN = "unknown"
ENROLL_AGAIN = "enroll again"
EMPTY = "the index is empty; add classes first"
SAME_IMAGE = 1 - 2e-6  # cosine of two embeddings of equal images, which differ by rounding
BLOCK_ELEMENTS = 1 << 22  # cosines in memory at once
# The arrays of a file in groups, of which all but the first are optional. By name: the kind of
# numbers, and what the axes count.
FIELDS: tuple[dict[str, tuple[str, tuple[str, ...]]], ...] = (
    {
        "embeddings": ("float32", ("enrolled and removed images", "dimensions")),
        "labels": ("int64", ("enrolled images",)),
        "classes": ("str", ("classes",)),
        "images": ("str", ("enrolled and removed images",)),
        "sessions": ("str", ("enrolled and removed images",)),
        "removed_classes": ("str", ("removed classes",)),
        "removed_counts": ("int64", ("removed classes",)),
        "identity": ("str", ()),
    },
    {
        "other_rows": ("float32", ("other images", "dimensions")),
        "other_labels": ("int64", ("other images",)),
        "other_sessions": ("str", ("other images",)),
        "other_classes": ("str", ("other classes",)),
    },
    {
        "stranger_margins": ("float32", ("strangers",)),
        "stranger_classes": ("int64", ("strangers",)),
    },
)
Image = str | Path | bytes | pillow.Image | np.ndarray
Images = Sequence[Image] | np.ndarray  # an array [N, H, W, 3] is a batch of images


class ImageEmbedder(Protocol):
    """What an index needs from a model, see `embedding_model.EmbeddingModel`."""

    @property
    def method_distance(self) -> bool:
        """Whether a method's distance replaces the cosine."""

    @property
    def identity(self) -> Identity:
        """The identity of the function from images to embeddings."""

    def embed(self, images: Images, /) -> np.ndarray:
        """Embeddings float32 [N, D] of images, rows of unit length."""

    def unseen(self) -> tuple[Photographs, list[str]]:
        """Images of classes that were not used for training, and the names of these classes."""


class Enrolled(NamedTuple):
    """Embeddings float32 [N, D] of images, their names, and their sessions, "" if unknown."""

    embeddings: np.ndarray
    images: list[str]
    sessions: list[str]


class Found(NamedTuple):
    """Shares of labelled images at a threshold; NaN if there are none."""

    right: float
    wrong: float
    unknown: float
    strangers: float  # images of classes that are not enrolled, which were accepted
    known_images: int
    other_images: int
    overlapping: int  # images that the index holds; not counted


class Index:
    """Embeddings of enrolled images and their classes.

    Attributes:
      classes: names, in the order they were added.
      embeddings: float32 [N, D].
      labels: int64 [N], positions in `classes`.
      images: N file names, "" for images that were not given by path.
      sessions: N names of sessions (see `data.sessions`), "" if unknown.
      removed: classes that `restore` enrolls again, by name.
    """

    def __init__(self, model: ImageEmbedder):
        if model.method_distance:
            raise DataError(
                "the model has another distance than the cosine (method.distance), by which "
                "enrolled images are compared; give a model without"
            )
        self._model = model
        self.classes: list[str] = []
        self.embeddings = np.zeros((0, 0), np.float32)
        self.labels = np.zeros(0, np.int64)
        self.images: list[str] = []
        self.sessions: list[str] = []
        self.removed: dict[str, Enrolled] = {}
        # Images for thresholds and the names of their classes, which may be enrolled; the unseen
        # classes of the run are read when they are needed.
        self._others: tuple[Photographs, list[str]] | None = None
        self._forget()

    def _forget(self) -> None:
        """Drops cached results that depend on the enrolled images."""
        self._scorer: Scorer | None = None
        self._measured: Measured | None = None
        # Margins and classes of strangers, by which thresholds are set.
        self._strangers: tuple[np.ndarray, np.ndarray] | None = None

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
        labels = zip(self.images, self.labels, strict=True)
        class_of = {image: self.classes[label] for image, label in labels if image}
        files = []
        for name, images in classes.items():
            _check_name(name)
            for file in map(_file_name, images):
                if file in class_of:
                    raise DataError(
                        f"{file}: is already enrolled as {class_of[file]}; give each image once"
                    )
                if file:
                    class_of[file] = name
                files.append(file)
        rows, names, taken = self._embedded(classes, sessions)
        self._append(names, Enrolled(rows, files, taken))

    def _embedded(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None = None,
    ) -> tuple[np.ndarray, list[str], list[str]]:
        """Embeddings float32 [N, D], classes, and sessions of images."""
        files = [image for images in classes.values() for image in images]
        names = [name for name, images in classes.items() for _ in images]
        taken = [s for name in classes for s in sessions[name]] if sessions else [""] * len(files)
        rows = self._comparable(self._model.embed(files))
        if bad := open_set.first_bad_row(rows):
            name = _file_name(files[bad[0]]) or f"image {bad[0]}"
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

    def _append(self, names: Sequence[str], new: Enrolled) -> None:
        self.classes += [name for name in dict.fromkeys(names) if name not in self.classes]
        position = {name: i for i, name in enumerate(self.classes)}
        labels = np.array([position[name] for name in names], np.int64)
        self.labels = np.concatenate([self.labels, labels])
        rows = [self.embeddings, new.embeddings] if self.images else [new.embeddings]
        self.embeddings = np.concatenate(rows)
        self.images, self.sessions = [*self.images, *new.images], [*self.sessions, *new.sessions]
        self._forget()

    def remove(self, name: str) -> None:
        """Moves a class and its images to `removed`, where they join those of an earlier class of
        that name."""
        label = self._position(name)
        keep = self.labels != label
        self.classes.remove(name)
        removed, earlier = self._rows_where(~keep), self.removed.get(name)
        self.removed[name] = _joined(earlier, removed) if earlier else removed
        self.embeddings, self.images, self.sessions = self._rows_where(keep)
        self.labels = self.labels[keep] - (self.labels[keep] > label)
        self._forget()

    def _position(self, name: str) -> int:
        if name not in self.classes:
            raise DataError(f"{name}: is not enrolled; {suggest(name, self.classes)}")
        return self.classes.index(name)

    def _rows_where(self, chosen: np.ndarray) -> Enrolled:
        rows = np.flatnonzero(chosen)
        return Enrolled(
            self.embeddings[rows], [self.images[i] for i in rows], [self.sessions[i] for i in rows]
        )

    def rename(self, old: str, new: str) -> None:
        """Gives a class another name; its images stay."""
        label = self._position(old)
        if new in self.classes or new in self.removed:
            raise DataError(
                f"{new}: is the name of another class, enrolled or removed; give another name"
            )
        _check_name(new)
        self.classes[label] = new
        self._forget()

    def restore(self, name: str) -> None:
        """Enrolls a removed class again, unless one of its images has been enrolled since."""
        if name not in self.removed:
            known = ", ".join(self.removed)
            remedy = f"removed: {known}" if known else "there is none; enroll its images again"
            raise DataError(f"{name}: is not a removed class; {remedy}")
        if again := sorted(set(self.removed[name].images) & set(self.images) - {""}):
            raise DataError(
                f"{again[0]}: has been enrolled since {name} was removed; remove that first"
            )
        restored = self.removed.pop(name)
        self._append([name] * len(restored.images), restored)

    def calibrate(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Measures thresholds on images (as for `add`) of other classes, instead of the unseen
        classes of the run."""
        rows, names, taken = self._embedded(classes, sessions)
        known, labels = np.unique(names, return_inverse=True)
        photographs = Photographs(rows, labels, np.array(taken, np.str_))
        self._others = photographs.where(open_set.choose(photographs)), known.tolist()
        self._forget()

    def overlap(self) -> list[str]:
        """The classes for measuring thresholds that are enrolled, by name or by an equal image."""
        if not self.images:
            raise DataError(EMPTY)
        if self._others is None:
            self._others = self._model.unseen()
        photographs, names = self._others
        self._comparable(photographs.rows)
        same = (photographs.rows @ self.embeddings.T).max(axis=1) > SAME_IMAGE
        found = []
        for label, name in enumerate(names):
            of_class = photographs.labels == label
            if of_class.any() and (name in self.classes or same[of_class].any()):
                found.append(name)
        return found

    def background(self) -> Photographs:
        """The images of classes that are not enrolled; DataError if there are none."""
        overlap = self.overlap()
        assert self._others is not None
        photographs, names = self._others
        enrolled = [label for label, name in enumerate(names) if name in overlap]
        found = photographs.where(~np.isin(photographs.labels, enrolled))
        if not len(found.labels):
            raise DataError(
                "all classes to measure a threshold on are enrolled; give --calibrate=DIRECTORY "
                "with class folders of other classes"
            )
        return found

    @property
    def enrolled(self) -> Photographs:
        """The enrolled images."""
        return Photographs(self.embeddings, self.labels, np.array(self.sessions, np.str_))

    @property
    def measured(self) -> Measured:
        """Margins of images that the index does not hold."""
        if self._measured is None:
            self._measured = open_set.measure(self.background(), self.enrolled)
            self._strangers = self._measured.strangers, self._measured.stranger_groups[:, 0]
        return self._measured

    def expect(self, false_accept_rate: float = FALSE_ACCEPT_RATE) -> Point:
        """The threshold for a false-accept rate, and the shares to expect; see `open_set.promise`.

        `false_accept_rate` is the fraction of images of other classes that may be given the name of
        an enrolled class.
        """
        self._check_enough(false_accept_rate)
        return open_set.promise(self.measured, false_accept_rate)

    def threshold(self, false_accept_rate: float = FALSE_ACCEPT_RATE) -> float:
        """The threshold of `expect`, without what to expect at it."""
        self._check_enough(false_accept_rate)
        if self._strangers is None:
            self._strangers = self.measured.strangers, self.measured.stranger_groups[:, 0]
        return open_set.threshold_for(*self._strangers, false_accept_rate)[0]

    def _check_enough(self, false_accept_rate: float) -> None:
        """Raises DataError if there are too few strangers, before their margins are measured."""
        classes = self._strangers[1] if self._strangers else self.background().labels
        open_set.check_enough(len(classes), len(np.unique(classes)), false_accept_rate)

    def measure(self, classes: Mapping[str, Sequence[Image]], threshold: float) -> Found:
        """Classifies labelled images (as for `add`) of enrolled and of other classes."""
        rows, names, _ = self._embedded(classes)
        held = [self.embeddings, self._others[0].rows] if self._others else [self.embeddings]
        new = (rows @ np.concatenate(held).T).max(axis=1) <= SAME_IMAGE
        if not new.any():
            raise DataError("the index holds all of these images; give photographs taken later")
        answers = np.array(self.classify(rows[new], threshold=threshold)[0])
        truth = np.array(names)[new]
        known, accepted, right = np.isin(truth, self.classes), answers != UNKNOWN, answers == truth

        def share(of: np.ndarray, among: np.ndarray) -> float:
            return float(of[among].mean()) if among.any() else float("nan")

        return Found(
            right=share(right, known),
            wrong=share(accepted & ~right, known),
            unknown=share(~accepted, known),
            strangers=share(accepted, ~known),
            known_images=int(known.sum()),
            other_images=int((~known).sum()),
            overlapping=int((~new).sum()),
        )

    def classify(
        self,
        images: Images,
        *,
        threshold: float | None = None,
        false_accept_rate: float = FALSE_ACCEPT_RATE,
    ) -> tuple[list[str], np.ndarray]:
        """Class names, and their margins float32 [N].

        Args:
          images: as for `Model.embed`, or their embeddings, an array [N, D] with rows of unit
            length.
          threshold: images with a lower margin are "unknown"; None for the threshold of
            `false_accept_rate`.
          false_accept_rate: see `expect`.

        Raises:
          DataError: an image cannot be used, or the rows of an array are not finite, of unit length
            and as wide as those of the index.
        """
        return self.nearest(images, threshold=threshold, false_accept_rate=false_accept_rate)[:2]

    def nearest(
        self,
        images: Images,
        *,
        threshold: float | None = None,
        false_accept_rate: float = FALSE_ACCEPT_RATE,
    ) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Like `classify`; also returns the positions int [N] in `images` of the nearest image of
        the best class."""
        if threshold is None:
            threshold = self.threshold(false_accept_rate)
        open_set.check_threshold(threshold)
        if self._scorer is None:
            self._scorer = Scorer(self.background(), self.enrolled)
        found = self._scorer.decide(self._rows(images))
        names = [
            self.classes[label] if margin >= threshold else UNKNOWN
            for label, margin in zip(found.labels, found.margins, strict=True)
        ]
        return names, found.margins, found.nearest

    def _rows(self, images: Images) -> np.ndarray:
        """Embeddings float32 [N, D] of images, or an array of embeddings after checks."""
        if not (isinstance(images, np.ndarray) and images.ndim == 2):
            return self._comparable(self._model.embed(images))
        shape = list(images.shape)
        if images.dtype.kind != "f" or not len(images):
            what = f"images: {images.dtype} {shape}"
            raise DataError(f"{what}; give embeddings, floats [N, D], or a list of images")
        rows = self._comparable(images.astype(np.float32, copy=False))
        if bad := open_set.first_bad_row(rows):
            what = f"images: row {bad[0]} of {shape} {bad[1]}"
            raise DataError(f"{what}; give finite rows of unit length")
        return rows

    def best(self, images: Images, count: int = 5) -> tuple[np.ndarray, np.ndarray]:
        """The nearest image of each of the `count` most similar classes, without a decision.

        Returns:
          Positions int64 [N, k] in `images` and cosines float32 [N, k], descending.
        """
        cosines = self._rows(images) @ self.embeddings.T
        order = np.argsort(self.labels, kind="stable")
        ends = np.cumsum(np.bincount(self.labels, minlength=len(self.classes)))[:-1]
        of_classes = np.split(order, ends)
        nearest = np.stack([part[cosines[:, part].argmax(axis=1)] for part in of_classes], axis=1)
        values = np.take_along_axis(cosines, nearest, axis=1).clip(-1, 1)
        top = np.argsort(-values, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(nearest, top, axis=1), np.take_along_axis(values, top, axis=1)

    def save(self, path: str | Path) -> None:
        """Writes a `.npz` file, completely or not at all, with the images for measuring
        thresholds."""
        path = Path(path).expanduser()
        parts = [Enrolled(self.embeddings, self.images, self.sessions), *self.removed.values()]
        rows, counts = [self.embeddings], [len(part.images) for part in self.removed.values()]
        arrays = {
            "embeddings": np.concatenate(
                [part.embeddings for part in parts if part.images] or rows
            ),
            "labels": self.labels,
            "classes": np.array(self.classes, np.str_),
            "images": np.array([name for part in parts for name in part.images], np.str_),
            "sessions": np.array([name for part in parts for name in part.sessions], np.str_),
            "removed_classes": np.array(list(self.removed), np.str_),
            "removed_counts": np.array(counts, np.int64),
            "identity": np.array(json.dumps(self._model.identity.as_json())),
        }
        if self._others is not None:
            arrays |= {f"other_{name}": array for name, array in self._others[0]._asdict().items()}
            arrays["other_classes"] = np.array(self._others[1], np.str_)
        if self._strangers is not None:  # measuring them takes longer than an answer may
            arrays["stranger_margins"], arrays["stranger_classes"] = self._strangers
        arrays["sha256"] = np.array(_digest(arrays))
        with atomic_write(path) as draft, draft.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, model: ImageEmbedder, path: str | Path) -> "Index":
        """Reads an index written by `save`; DataError if it is damaged, has other arrays, or
        belongs to another model."""
        path = Path(path).expanduser()
        with reading(path, ENROLL_AGAIN), path.open("rb") as file:
            arrays = archives.arrays(file)
            if str(arrays.pop("sha256")) != _digest(arrays):
                raise DataError(f"is not an index, or is damaged; {ENROLL_AGAIN}")
            if problem := next(_problems(arrays), ""):
                raise DataError(f"{problem}; {ENROLL_AGAIN}")
        remedy = f"give the model that it was created with, or {ENROLL_AGAIN}"
        _identity(arrays).check(model.identity, str(path), remedy, DataError)
        index = cls(model)
        index.labels, index.classes = arrays["labels"], arrays["classes"].tolist()
        ends = np.cumsum([len(index.labels), *arrays["removed_counts"]])[:-1]
        columns = [np.split(arrays[name], ends) for name in ("embeddings", "images", "sessions")]
        parts = [Enrolled(r, i.tolist(), s.tolist()) for r, i, s in zip(*columns, strict=True)]
        index.embeddings, index.images, index.sessions = parts[0]
        index.removed = dict(zip(arrays["removed_classes"].tolist(), parts[1:], strict=True))
        if "other_rows" in arrays:
            others = Photographs(*(arrays[f"other_{name}"] for name in Photographs._fields))
            index._others = others, arrays["other_classes"].tolist()
        if "stranger_margins" in arrays:
            index._strangers = arrays["stranger_margins"], arrays["stranger_classes"]
        return index


def _check_name(name: str) -> None:
    if normalised(name) != name or name in ("", UNKNOWN):
        raise DataError(
            f"{name!r}: cannot be a class name; give a name without surrounding spaces, in "
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
    counts = arrays["removed_counts"].tolist()
    removed = sizes["enrolled and removed images"] - sizes["enrolled images"]
    if min(counts, default=1) < 1 or sum(counts) != removed:
        yield f"removed_counts: {counts} do not add up"
    for name in ("classes", "removed_classes"):
        names = arrays[name].tolist()
        if len(set(names)) < len(names):
            yield f"{name}: a name is there twice"
        for each in names:
            try:
                _check_name(each)
            except DataError as problem:
                yield f"{name}: {problem}"
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
        if bad := open_set.first_bad_row(arrays[name]):
            yield (
                f"{name}: row {bad[0]} of {list(arrays[name].shape)} {bad[1]}; rows must be finite "
                "and of unit length"
            )
    if not np.isfinite(arrays.get("stranger_margins", 0)).all():
        yield "stranger_margins: are not finite"


def _identity(arrays: Mapping[str, np.ndarray]) -> Identity:
    """The identity of the embedding function; ValueError if it is damaged."""
    return identities.of_json(json.loads(str(arrays["identity"])))


def _joined(before: Enrolled, new: Enrolled) -> Enrolled:
    """The images of both; if two are equal and have the same name, only the new one."""
    same_name = np.array(before.images)[:, None] == np.array(new.images)
    twice = (before.embeddings @ new.embeddings.T > SAME_IMAGE) & same_name
    kept = np.flatnonzero(~twice.any(axis=1)).tolist()
    return Enrolled(
        np.concatenate([before.embeddings[kept], new.embeddings]),
        [before.images[i] for i in kept] + new.images,
        [before.sessions[i] for i in kept] + new.sessions,
    )


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the names, types and contents of arrays."""
    sha256 = hashlib.sha256()
    for name, array in arrays.items():
        sha256.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        sha256.update(array.tobytes())
    return sha256.hexdigest()


def _file_name(image: Image) -> str:
    return str(Path(image).expanduser().resolve()) if isinstance(image, str | Path) else ""
