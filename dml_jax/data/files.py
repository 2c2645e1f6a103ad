"""The files of a data set, and the images among them, before any image is opened."""

import os
import posixpath
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dml_jax.errors import DataError
from dml_jax.files import reading, reason

# If there is a gallery, the test images are the queries.
SPLITS = ("train", "validation", "test", "gallery")
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pnm", ".avif", ".heic", ".heif"),
)
# Created by file managers, network drives and file systems, and by Excel for an open table.
IGNORED_NAMES = (
    *("thumbs.db", "desktop.ini", "__macosx", "@eadir", "lost+found"),
    *("#recycle", "@recycle", "$recycle.bin", "system volume information"),
)
MAX_BYTES = 2**28  # size limit of a single file
MISSING = "missing"  # the reason that `File.read` gives

Scalar = str | int | float | bool | None  # a value of metadata


class File(NamedTuple):
    """The file at `path`, or `size` bytes of it starting at `offset`."""

    path: Path
    offset: int = 0
    size: int = -1

    def read(self) -> bytes:
        """The content; DataError unless it is a regular file of at most `MAX_BYTES`."""
        try:
            if self.size >= 0:
                with self.path.open("rb") as file:
                    file.seek(self.offset)
                    return file.read(self.size)
            status = self.path.stat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                raise DataError(f"not a regular file of at most {MAX_BYTES // 2**20} MiB")
            return self.path.read_bytes()
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            raise DataError(MISSING if missing else f"cannot be read: {reason(error)}") from error


Files = Mapping[str, File]  # path relative to the source, with slashes -> file


class Record(NamedTuple):
    """An image of a prepared data set."""

    name: str  # path of the directory and the name in the data set
    read: Callable[[], bytes]  # the content of its file
    session: str  # see `data.sessions`, "" if unknown


class Entry(NamedTuple):
    """An image of a data set."""

    id: str  # its name in the data set
    file: File
    class_name: str
    split: str
    metadata: Mapping[str, Scalar] = {}


def walk(root: Path) -> Iterator[tuple[str, File]]:
    """All files below a folder that are not ignored, by name; follows links to folders once.

    Includes hidden files, see `is_hidden`.
    """

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename}: {error.strerror}") from error

    visited = set()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=fail):
        real = os.path.realpath(folder)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not is_ignored(name))
        base = Path(folder).relative_to(root).as_posix()
        for name in sorted(names):
            if not is_ignored(name):
                yield (name if base == "." else f"{base}/{name}"), File(Path(folder, name))


def is_image(path: str) -> bool:
    """Whether a name has the suffix of an image."""
    return path.lower().endswith(IMAGE_SUFFIXES)


def is_ignored(name: str) -> bool:
    """Whether a file or folder is one of `IGNORED_NAMES`."""
    return name.lower() in IGNORED_NAMES or name.startswith("~$")


def is_hidden(path: str, *, files: bool = True) -> bool:
    """Whether a folder in a path is hidden or, with `files`, the file itself; names that begin with
    a dot and a digit, such as ".22 LR", are not."""
    names = path.split("/") if files else path.split("/")[:-1]
    return any(re.match(r"\.(?!\d|\.?$)", name) for name in names)


def stamp(path: str | Path) -> str:
    """Size, modification and change time of a file; "0" if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return "0"
    return str((status.st_size, status.st_mtime_ns, status.st_ctime_ns))


def file_at(files: Files, path: str) -> File:
    """The file at a path; if it is missing, a `File` that raises DataError when read."""
    return files.get(path, File(Path(f"{os.devnull}/{path}")))  # also if the path is absolute


def is_missing(file: File) -> bool:
    """Whether `file_at` did not find it, or it is a broken link."""
    absent = str(file.path).startswith(f"{os.devnull}/")
    return absent or (file.path.is_symlink() and not os.path.exists(file.path))


def read_rows(files: Files, path: str) -> list[list[str]]:
    """The words of each non-empty line of a text file."""
    with reading(path):
        text = file_at(files, path).read().decode("utf-8-sig")
    return [line.split() for line in text.splitlines() if line.strip()]


def resolve_paths(files: Files, base: str, paths: Sequence[str]) -> list[str]:
    """Resolves the paths in a table to names in `files`; unknown paths are returned unchanged.

    Paths are relative to the folder `base`, or else to the source, with slashes or backslashes, and
    may contain "." and ".." and be in another Unicode form. Absolute paths may come from another
    machine: the start that most of them share is removed if the rest is a file of the source.
    """
    composed = {unicodedata.normalize("NFC", name): name for name in files}
    composed |= {name: name for name in files}

    def find(path: str) -> str:
        plain = posixpath.normpath(path) if "\0" not in path else path
        return composed.get(plain) or composed.get(unicodedata.normalize("NFC", plain), "")

    def tails(path: str) -> Iterator[tuple[str, str]]:
        parts = posixpath.normpath(path).split("/")
        for i in range(1, len(parts)):
            if name := find("/".join(parts[i:])):
                yield "/".join(parts[:i]), name

    names, absolute = list(paths), dict[int, dict[str, str]]()
    for i, path in enumerate(paths):
        slashed = path if find(posixpath.join(base, path)) else path.replace("\\", "/")
        if re.match("/|[A-Za-z]:/", slashed):
            absolute[i] = dict(tails(slashed))
        else:
            names[i] = find(posixpath.join(base, slashed)) or find(slashed) or path
    if starts := Counter(start for by_start in absolute.values() for start in by_start):
        start = max(starts, key=lambda name: (starts[name], -len(name)))
        for i, by_start in absolute.items():
            names[i] = by_start.get(start, names[i])
    return names
