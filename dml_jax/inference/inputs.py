"""Images to embed, in units of a few thousand files with one file of embeddings each."""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dml_jax.data.files import IMAGE_SUFFIXES, File, is_image, stamp, walk
from dml_jax.data.sources import packed_files, survey
from dml_jax.data.understand import shown
from dml_jax.errors import DataError, printable
from dml_jax.files import expand_path

ROWS = 2048  # images per unit, the most that a kill wastes


@dataclass
class Item:
    """An image: its name in the output, its file and, once it has been read, what identifies its
    content."""

    name: str
    path: Path
    stamp: str | None = None  # see `data.files.stamp`
    sha256: str | None = None  # hexadecimal, of the content

    def read(self) -> bytes:
        """The content; DataError as for `data.files.File`."""
        self.stamp = stamp(self.path)  # before reading: a later change is seen next time
        content = File(self.path).read()
        self.sha256 = hashlib.sha256(content).hexdigest()
        return content


class Unit(NamedTuple):
    """The images of one file of embeddings."""

    names: tuple[str, ...]  # as the user named the files
    root: str  # absolute directory of relative names: other machines may work in another one

    def items(self) -> list[Item]:
        """The images."""
        return [Item(name, Path(self.root, name)) for name in self.names]


def image_files(paths: Iterable[str], warn: Callable[[str], object]) -> list[str]:
    """Image files among `paths`, and those below directories among them; `warn` gets a line about
    each kind of file that is left out.

    Raises DataError if a path does not exist, or a directory has no image file.
    """
    files, doubts = list[str](), list[str]()
    for name in paths:
        path = expand_path("IMAGE", name)
        if path.is_dir():
            found = survey(walk(path))
            images = [str(file.path) for inner, file in found.files.items() if is_image(inner)]
            left_out = [f"{name}: {line}" for line in found.doubts()]
            if not images:
                suffixes = f"suffixes: {', '.join(IMAGE_SUFFIXES)}"
                reasons = packed_files(found.files) or [f"no image files ({suffixes})", *left_out]
                raise DataError(f"{name}: {'; '.join(reasons)}")
            files, doubts = files + images, doubts + left_out
        elif path.is_file():
            if reasons := packed_files([name]):
                raise DataError(reasons[0])
            files.append(str(path))
        else:
            raise DataError(f"{name}: there is no such file or directory")
    for line in shown(doubts):
        warn(printable(line))
    return files


def units(files: Sequence[str]) -> list[Unit]:
    """The units of image files."""
    root = os.getcwd()
    return [Unit(tuple(files[i : i + ROWS]), root) for i in range(0, len(files), ROWS)]


def digest(found: Sequence[Unit]) -> str:
    """SHA-256 of the names, sizes and times of the files of all units, to detect changed files."""
    sha256 = hashlib.sha256()
    for unit in found:
        sha256.update(b"unit\n")
        for item in unit.items():
            line = f"{item.name}\0{stamp(item.path)}\n"
            sha256.update(line.encode(errors="surrogateescape"))
    return sha256.hexdigest()
