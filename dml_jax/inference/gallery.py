"""Images of classes, known by the content of their files, wherever these are."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image as pillow

from dml_jax.class_names import normalised
from dml_jax.data.files import File, Record
from dml_jax.errors import DataError, suggest

UNKNOWN = "unknown"  # an answer, so no name of a class
Image = str | Path | Record | bytes | pillow.Image | np.ndarray
Images = Sequence[Image] | np.ndarray  # an array [N, H, W, 3] is a batch of images


class Enrolled(NamedTuple):
    """An enrolled image."""

    name: str  # of its class
    file: str  # name of its file, or ""
    content: str  # SHA-256 of its file, or ""
    session: str


class Added(NamedTuple):
    """What `Gallery.take` did with images."""

    enrolled: int = 0
    classes: int = 0  # of the images that were enrolled
    known: int = 0  # whose class holds the content of their file already
    moved: int = 0  # known ones whose file had another name
    sessions: int = 0  # known ones whose session was another one
    replaced: int = 0  # earlier contents of files, which are forgotten


class Gallery:
    """Enrolled images and their embeddings."""

    def __init__(self) -> None:
        self.hold([], np.zeros((0, 0), np.float32))

    def hold(self, items: Sequence[Enrolled], rows: np.ndarray) -> None:
        """Sets the images and their rows float32 [N, D]."""
        self.items, self._rows = list[Enrolled](), np.empty((0, rows.shape[1]), np.float32)
        self._by_content, self._by_file = dict[tuple[str, str], int](), dict[tuple[str, str], int]()
        self._append(items, rows)

    def _append(self, items: Sequence[Enrolled], rows: np.ndarray) -> None:
        """Adds images; the array doubles when it is full."""
        first, count = len(self.items), len(self.items) + len(items)
        if count > len(self._rows):
            grown = np.empty((max(count, 2 * first), rows.shape[1]), np.float32)
            if first:  # otherwise, the width is unknown
                grown[:first] = self._rows[:first]
            self._rows = grown
        self._rows[first:count] = rows
        self.items += items
        for i, item in enumerate(items, first):
            self._find(i, item)
        self.forget()

    def _find(self, i: int, item: Enrolled) -> None:
        """Makes an image be found by its content and file."""
        if item.content:
            self._by_content[item.name, item.content] = i
        if item.file:
            self._by_file[item.name, item.file] = i

    def forget(self) -> None:
        """Drops what was computed of the images."""
        for name in ("classes", "labels", "images", "sessions"):
            self.__dict__.pop(name, None)

    @property
    def embeddings(self) -> np.ndarray:
        """float32 [N, D]."""
        return self._rows[: len(self.items)]

    @cached_property
    def classes(self) -> list[str]:
        """Names, in the order they were added."""
        return list(dict.fromkeys(item.name for item in self.items))

    @cached_property
    def labels(self) -> np.ndarray:
        """int64 [N], positions in `classes`."""
        number = {name: i for i, name in enumerate(self.classes)}
        return np.array([number[item.name] for item in self.items], np.int64)

    @cached_property
    def images(self) -> list[str]:
        """N file names, "" for images that were not given by path."""
        return [item.file for item in self.items]

    @cached_property
    def sessions(self) -> list[str]:
        """N names of sessions (see `data.sessions`), "" if unknown."""
        return [item.session for item in self.items]

    def compare(
        self, given: Sequence[tuple[Enrolled, Image]]
    ) -> tuple[list[tuple[int, Enrolled]], list[tuple[Enrolled, Image]]]:
        """Given images whose class holds their content, each with its position, and the others
        without repetitions."""
        known, fresh = list[tuple[int, Enrolled]](), {}
        for n, (item, image) in enumerate(given):
            i = self._by_content.get((item.name, item.content))
            if i is None:
                fresh[item.name, item.content or n] = item, image
            else:
                known.append((i, item))
        return known, list(fresh.values())

    def take(
        self,
        known: Sequence[tuple[int, Enrolled]],
        new: Sequence[Enrolled],
        rows: np.ndarray,
        keep_sessions: bool,
    ) -> Added:
        """Gives known images the file and session that they have now, and appends new ones, with
        rows float32 [M, D]. Where a file of a class has other content now, the earlier is
        forgotten."""
        now = dict[int, Enrolled]()
        for i, item in known:
            if i not in now or item.file == self.items[i].file:
                now[i] = item
        found = (self._by_file.get((item.name, item.file), -1) for item in (*new, *now.values()))
        stale = {i for i in found if i >= 0 and i not in now}
        moved = changed = 0
        for i, item in now.items():
            before = self.items[i]
            first, second = before.session, item.session
            session = (first or second) if keep_sessions else (second or first)
            self.items[i] = before._replace(file=item.file or before.file, session=session)
            moved += self.items[i].file != before.file
            changed += session != before.session
            if self.items[i].file != before.file:
                self._by_file.pop((before.name, before.file), None)
        for i in now:
            self._find(i, self.items[i])
        if stale:
            kept = [i for i in range(len(self.items)) if i not in stale]
            self.hold([self.items[i] for i in kept], self.embeddings[kept])
        self._append(new, rows)
        count = len({item.name for item in new})
        return Added(len(new), count, len(known), moved, changed, len(stale))

    def shared(self) -> list[dict[str, str]]:
        """Images whose files several classes hold: the file name by class."""
        found = dict[str, dict[str, str]]()
        for item in self.items:
            if item.content:
                found.setdefault(item.content, {})[item.name] = item.file
        return [files for files in found.values() if len(files) > 1]

    def remove(self, name: str) -> int:
        """Removes a class with its images; returns their number."""
        self._check_enrolled(name)
        kept = [i for i, item in enumerate(self.items) if item.name != name]
        forgotten = len(self.items) - len(kept)
        self.hold([self.items[i] for i in kept], self.embeddings[kept])
        return forgotten

    def rename(self, old: str, new: str) -> None:
        """Gives a class another name; its images stay."""
        self._check_enrolled(old)
        if new in self.classes:
            raise DataError(f"{new!r} is already a class name; choose another or merge the classes")
        check_name(new)
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


def check_name(name: str) -> None:
    """Raises DataError unless a text can be the name of a class."""
    if not isinstance(name, str) or normalised(name) != name or name in ("", UNKNOWN):
        raise DataError(
            f"{name!r}: cannot be a class name; give a text without surrounding spaces, in "
            f"Unicode's composed form (NFC), other than {UNKNOWN!r}"
        )


def content(image: Image) -> str:
    """The SHA-256 of the file of an image; "" if there is none, or it cannot be read, which
    embedding it will say."""
    if isinstance(image, str | Path):
        image = Record(str(image), File(Path(image).expanduser()).read, "")
    try:
        data = image.read() if isinstance(image, Record) else image
    except DataError:
        return ""
    return hashlib.sha256(data).hexdigest() if isinstance(data, bytes) else ""


def file_name(image: Image) -> str:
    """The name of an enrolled image; "" unless it is a file or belongs to a prepared data set."""
    if isinstance(image, Record):
        return image.name
    return str(Path(image).expanduser().resolve()) if isinstance(image, str | Path) else ""
