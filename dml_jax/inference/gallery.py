"""Images of classes, known by the content of their files, wherever these are."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image as pillow

from dml_jax.class_names import normalised
from dml_jax.data.files import File, Record
from dml_jax.data.read_ahead import ordered_map
from dml_jax.errors import DataError, printable, suggest
from dml_jax.evaluation.unit_rows import first_bad_row

if TYPE_CHECKING:
    from dml_jax.inference.embedding_model import EmbeddingModel

UNKNOWN = "unknown"  # an answer, so no name of a class

Image = str | Path | Record | bytes | pillow.Image | np.ndarray
Images = Sequence[Image] | np.ndarray  # an array [N, H, W, 3] is a batch of images
OnBad = Callable[[str], object] | None  # gets the reasons why images are left out


class Enrolled(NamedTuple):
    """An enrolled image."""

    name: str  # of its class
    file: str  # name of its file, or ""
    content: str  # SHA-256 of its file, or ""
    session: str  # see `data.sessions`; "" if unknown


class Added(NamedTuple):
    """What `Index.add` did with images."""

    enrolled: int  # new images
    classes: int  # of the new images
    known: int  # images whose content their class holds already
    moved: int  # known images whose file has another name now
    sessions: int  # known images whose session is another one now
    replaced: int  # earlier contents of files, which are forgotten


class Gallery:
    """Enrolled images and their embeddings by a model.

    Attributes:
      embeddings: float32 [N, D].
      images: N file names, "" for images that were not given by path.
      sessions: N names of sessions (see `data.sessions`), "" if unknown.
      classes: names, in the order in which they were added.
      labels: int64 [N], positions in `classes`.
    """

    def __init__(self, model: "EmbeddingModel"):
        if model.method_distance:
            raise DataError(
                "the model has another distance than the cosine (method.distance), by which "
                "enrolled images are compared; give a model without"
            )
        self.model = model
        self.hold([], np.zeros((0, 0), np.float32))

    def hold(self, items: Sequence[Enrolled], embeddings: np.ndarray) -> None:
        """Replaces the images and their embeddings, float32 [N, D]."""
        self.items, self.embeddings = [*items], embeddings
        self.images = [item.file for item in items]
        self.sessions = [item.session for item in items]
        self.classes = list(dict.fromkeys(item.name for item in items))
        number = {name: i for i, name in enumerate(self.classes)}
        self.labels = np.array([number[item.name] for item in items], np.int64)
        self.forget()

    def forget(self) -> None:
        """Drops what was computed from the images."""

    def add(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None = None,
        on_bad: OnBad = None,
        keep_sessions: bool = False,
    ) -> Added:
        """Enrolls images (as for `Model.embed`) of new or existing classes; none after an error.

        Images are known by the content of their files: those that their class holds are not
        embedded again, but get their present session and file name. If a file of the class has
        another content now, the earlier one is forgotten.

        Args:
          classes: images by class. Equal images of several classes are enrolled, see `shared`.
          sessions: of the images; by default, and where they are "", they are unknown.
          on_bad: gets the reasons why images are left out; without it, they are errors.
          keep_sessions: known images keep a session that they have.
        """
        place = {(item.name, item.content): i for i, item in enumerate(self.items) if item.content}
        count, known = 0, dict[int, Enrolled]()  # by position; files of equal content share one
        fresh = dict[tuple[str, str | int], tuple[Enrolled, Image]]()
        for n, (item, image) in enumerate(self._listed(classes, sessions)):
            i = place.get((item.name, item.content))
            if i is None:
                fresh[item.name, item.content or n] = item, image
            else:
                count += 1
                if i not in known or item.file == self.items[i].file:
                    known[i] = item
        new, rows = self._embedded(list(fresh.values()), on_bad)
        files = {(item.name, item.file) for item in (*known.values(), *new) if item.file}
        remaining = [
            i for i, old in enumerate(self.items) if i in known or (old.name, old.file) not in files
        ]
        updated, moved, changed = list[Enrolled](), 0, 0
        for old, now in ((self.items[i], known.get(i, self.items[i])) for i in remaining):
            sessions_of = (old.session, now.session)
            session = next(filter(None, sessions_of if keep_sessions else sessions_of[::-1]), "")
            updated.append(old._replace(file=now.file or old.file, session=session))
            moved += updated[-1].file != old.file
            changed += session != old.session
        forgotten = len(self.items) - len(remaining)
        held = self.embeddings[remaining] if remaining else rows[:0]  # an empty index has no width
        self.hold([*updated, *new], np.concatenate([held, rows]))
        classes_added = len({item.name for item in new})
        return Added(len(new), classes_added, count, moved, changed, forgotten)

    def shared(self) -> list[dict[str, str]]:
        """Images whose files several classes hold: the file name by class."""
        files = dict[str, dict[str, str]]()
        for item in self.items:
            if item.content:
                files.setdefault(item.content, {})[item.name] = item.file
        return [by_class for by_class in files.values() if len(by_class) > 1]

    def remove(self, name: str) -> int:
        """Removes a class with its images; returns their number."""
        self._check_enrolled(name)
        remaining = [i for i, item in enumerate(self.items) if item.name != name]
        forgotten = len(self.items) - len(remaining)
        self.hold([self.items[i] for i in remaining], self.embeddings[remaining])
        return forgotten

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

    def _call(self, old: str, new: str) -> None:
        items = [item._replace(name=new) if item.name == old else item for item in self.items]
        self.hold(items, self.embeddings)

    def _check_enrolled(self, name: str) -> None:
        if name not in self.classes:
            raise DataError(f"{name}: is not enrolled; {suggest(name, self.classes)}")

    def _listed(
        self,
        classes: Mapping[str, Sequence[Image]],
        sessions: Mapping[str, Sequence[str]] | None = None,
    ) -> list[tuple[Enrolled, Image]]:
        """Images of classes and what is known of them."""
        names, images, groups = list[str](), list[Image](), list[str]()
        for name, value in classes.items():
            of_class = self.model.listed(value, str(name))
            _check_name(name)
            of_sessions = sessions.get(name, ()) if sessions else [""] * len(of_class)
            if len(of_sessions) != len(of_class):
                problem = f"{len(of_sessions)}, but {len(of_class)} images; give one for each"
                raise DataError(f"sessions of {name}: {problem}")
            names += [name] * len(of_class)
            images += of_class
            groups += of_sessions
        columns = names, map(_file_name, images), ordered_map(_digest, images), groups
        items = (Enrolled(*each) for each in zip(*columns, strict=True))
        return list(zip(items, images, strict=True))

    def _embedded(
        self, listed: Sequence[tuple[Enrolled, Image]], on_bad: OnBad
    ) -> tuple[list[Enrolled], np.ndarray]:
        """The images that can be used, and their embeddings, float32 [N, D]."""
        usable, rows = self.embed([image for _, image in listed], on_bad)
        return [listed[i][0] for i in usable], rows

    def embed(self, images: Sequence[Image], on_bad: OnBad = None) -> tuple[list[int], np.ndarray]:
        """The positions of the images that can be used, and their embeddings, float32 [N, D].

        `on_bad` gets the reasons why images are left out; without it, they are errors.
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
            name = _file_name(images[usable[bad[0]]]) or f"image {usable[bad[0]]}"
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


def _check_name(name: str) -> None:
    if not isinstance(name, str) or normalised(name) != name or name in ("", UNKNOWN):
        raise DataError(
            f"{name!r}: cannot be a class name; give a text without surrounding spaces, in "
            f"Unicode's composed form (NFC), other than {UNKNOWN!r}"
        )


def _digest(image: Image) -> str:
    """The SHA-256 of the file of an image; "" if there is none, or it cannot be read, which
    embedding it will say."""
    if isinstance(image, str | Path):
        image = Record(str(image), File(Path(image).expanduser()).read, "")
    try:
        data = image.read() if isinstance(image, Record) else image
    except DataError:
        return ""
    return hashlib.sha256(data).hexdigest() if isinstance(data, bytes) else ""


def _file_name(image: Image) -> str:
    """The name of an enrolled image; "" unless it is a file or belongs to a prepared data set."""
    if isinstance(image, Record):
        return image.name
    return str(Path(image).expanduser().resolve()) if isinstance(image, str | Path) else ""
