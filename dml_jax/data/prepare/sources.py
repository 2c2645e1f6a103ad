"""What a data set consists of, before a single image has been opened."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from dml_jax.errors import DataError

SPLITS = ("train", "test", "gallery")  # where there is a gallery, the test images are the queries
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
CLUTTER = (
    "thumbs.db",
    "desktop.ini",
    "__macosx",
)  # left by file managers, next to everything that starts with a dot

HEAVIEST = 2**28  # bytes of a file


class File(NamedTuple):
    """Where the content of a file lies: all of the file at `path`, or `size` bytes of it from `offset` on."""

    path: Path
    offset: int = 0
    size: int = -1

    def read(self) -> bytes:
        """The content.

        Raises:
          DataError: missing, a folder, a broken link, unreadable or far too large.
        """
        try:
            if self.size >= 0:
                with self.path.open("rb") as file:
                    file.seek(self.offset)
                    return file.read(self.size)
            if self.path.stat().st_size > HEAVIEST:
                raise DataError(f"larger than {HEAVIEST // 2**20} MiB")
            return self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DataError("a broken link" if self.path.is_symlink() else "missing") from error
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}") from error


Files = Mapping[str, File]  # path relative to its source, with slashes -> where it is


class Entry(NamedTuple):
    """An image: its name in the data set, its file, its class and its split."""

    id: str
    file: File
    label: str
    split: str


class Options(NamedTuple):
    """How classes are split where a data set has no splits of its own.

    Attributes:
      test_share: share of the classes that are tested on.
      splits: "folders" where folders called train and test decide, "classes" where those are passed over, "auto" the
        former where there are such folders.
    """

    test_share: float = 0.5
    splits: str = "auto"


class Recipe(NamedTuple):
    """How a data set is read as its owners ship it.

    Attributes:
      find: (files, options) -> its entries. Raises DataError where the files are not this data set.
      counts: split -> (images, classes) of the whole data set; None where they are not fixed.
      nested: whether archives among the files are unpacked too.
      home: where the data set comes from.
      citation: whom to cite.
    """

    find: Callable[[Files, Options], list[Entry]]
    counts: Mapping[str, tuple[int, int]] | None = None
    nested: bool = False
    home: str = ""
    citation: str = ""


def walk(root: Path) -> Iterator[tuple[str, File]]:
    """All files below a folder but clutter, sorted by name; links to folders are followed once.

    Raises:
      DataError: the folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename}: {error.strerror}") from error

    seen = set()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=fail):
        real = os.path.realpath(folder)
        folders[:] = sorted(name for name in folders if not _clutter(name)) if real not in seen else []
        if real in seen:
            continue
        seen.add(real)
        base = Path(folder).relative_to(root).as_posix()
        for name in sorted(names):
            if not _clutter(name):
                yield (name if base == "." else f"{base}/{name}"), File(Path(folder, name))


def clutter(path: str) -> bool:
    """Whether a path in an archive is none of the user's files."""
    return any(_clutter(part) for part in path.split("/"))


def _clutter(name: str) -> bool:
    return name.startswith(".") or name.lower() in CLUTTER


def mixed(entries: Iterable[Entry]) -> None:
    """Makes sure that no class is both trained and tested on.

    Raises:
      DataError: naming such classes.
    """
    labels: dict[bool, set[str]] = {True: set(), False: set()}
    for entry in entries:
        labels[entry.split == "train"].add(entry.label)
    if shared := sorted(labels[True] & labels[False]):
        names = ", ".join(shared[:5]) + (", ..." if len(shared) > 5 else "")
        raise DataError(
            f"{len(shared)} classes are in training and test ({names}): images of unseen classes are to be retrieved, "
            "so a class must be in one of them; dml_jax.prepare --splits=classes divides the classes anew"
        )


def locate(files: Files, name: str, data_set: str) -> str:
    """The folder, "" or ending in a slash, that holds the file called `name` (which may have folders in front).

    Raises:
      DataError: there is none, or several.
    """
    found = [path[: -len(name)] for path in files if path == name or path.endswith(f"/{name}")]
    if len(found) != 1:
        what = "is missing" if not found else f"is there {len(found)} times"
        raise DataError(f"{name} {what}: these are not the files of {data_set}")
    return found[0]


def lines(files: Files, path: str) -> list[list[str]]:
    """The words of each line of a text file, empty lines left out.

    Raises:
      DataError: it is missing or not UTF-8.
    """
    try:
        text = files[path].read().decode("utf-8-sig")
    except KeyError as error:
        raise DataError(f"{path} is missing") from error
    except (DataError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return [line.split() for line in text.splitlines() if line.strip()]


def at(files: Files, path: str) -> File:
    """The file at a path that a list of images names; one that does not exist where it is missing."""
    return files.get(path, File(Path(os.devnull, path)))
