"""The first step of a preparation: the files and images of a data set, listed without opening an image.

Files in buckets are read and written by the file systems of Arrow, with URLs as of `pyarrow.fs.FileSystem.from_uri`,
e.g. gs://anonymous@bucket/photos for a public bucket.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow import fs

from dml_jax.data.prepare import archives
from dml_jax.errors import DataError, UserError
from dml_jax.files import atomic_write, reading, reason
from dml_jax.remote.downloads import Source

SPLITS = ("train", "validation", "test", "gallery")  # if there is a gallery, the test images are the queries
SPLIT_NAMES = {  # in folders and tables -> split
    "train": "train",
    "val": "validation",
    "validation": "validation",
    "test": "test",
    "query": "test",
    "gallery": "gallery",
}
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pnm"),
    *(".heic", ".heif"),
)
IGNORED_NAMES = ("thumbs.db", "desktop.ini", "__macosx")  # created by file managers; hidden files are ignored as well
MAX_BYTES = 2**28  # of a single file
SECONDS = 60  # without an answer of Google Cloud Storage; Arrow would try for a quarter of an hour


class File(NamedTuple):
    """Content of a file: the whole file at `path`, or `size` bytes of it starting at `offset`."""

    path: Path
    offset: int = 0
    size: int = -1

    def read(self) -> bytes:
        """The content; raises DataError for anything but a regular file (a pipe may have no end) of `MAX_BYTES`."""
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
            raise DataError("missing" if missing else f"cannot be read: {reason(error)}") from error


Files = Mapping[str, File]  # path relative to the source, with slashes -> file
Scalar = str | int | float | bool | None  # a value of metadata


class Entry(NamedTuple):
    """An image: its name in the data set, its file, its class, its split and further facts, by column."""

    id: str
    file: File
    class_name: str
    split: str
    metadata: Mapping[str, Scalar] = {}


class Options(NamedTuple):
    """How to split a data set that has no official splits."""

    test_share: float = 0.5  # share of the classes that become test classes
    splits: str = "auto"  # "classes" to divide the classes by `test_share` also where folders or files give the splits
    scratch: Path = Path()  # folder for unfinished work, where recipes may write files


class Recipe(NamedTuple):
    """How to read a data set as its authors distribute it."""

    # (files, options) -> the images. Raises DataError if the files are not this data set.
    find: Callable[[Files, Options], list[Entry]]
    # files -> a sentence for the user about how `find` reads them; empty if there is none.
    note: Callable[[Files], str] = lambda files: ""
    in_place: bool = False  # whether a folder can be used without preparation
    # split -> (images, classes) of the complete data set; None if they are not fixed.
    counts: Mapping[str, tuple[int, int]] | None = None
    home: str = ""  # web page of the data set
    citation: str = ""  # paper to cite
    downloads: Sequence[Source] = ()  # the archives, where the owners publish them
    terms: str = ""  # under which the owners publish them, or why they cannot be downloaded
    # Whether the files look like this data set, judged by their names alone, whatever else they are used as.
    recognised: Callable[[Files], bool] = lambda files: False


def walk(root: Path) -> Iterator[tuple[str, File]]:
    """All files below a folder except ignored ones, sorted by name; links to folders are followed once."""

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename}: {error.strerror}") from error

    seen = set()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=fail):
        real = os.path.realpath(folder)
        folders[:] = sorted(name for name in folders if not is_ignored(name)) if real not in seen else []
        if real in seen:
            continue
        seen.add(real)
        base = Path(folder).relative_to(root).as_posix()
        for name in sorted(names):
            if not is_ignored(name):
                yield (name if base == "." else f"{base}/{name}"), File(Path(folder, name))


def list_files(sources: Sequence[Path], scratch: Path, announce: Callable[[str], None]) -> Files:
    """All files of the sources by their relative path; archives are unpacked to `scratch`."""
    files: dict[str, File] = {}
    for i, source in enumerate(sources):
        if source.is_dir():
            found = dict(walk(source))
        elif source.is_file() and source.name.lower().endswith(archives.ENDINGS):
            announce(f"unpacking {source}")
            target = scratch / f"source-{i}"
            members = archives.unpack(source, target)
            found = {name: File(target, offset, size) for name, offset, size in members if not is_ignored(name)}
        elif source.is_file() and source.suffix.lower() == ".csv":
            others = (pair for pair in walk(source.parent) if not pair[0].lower().endswith(".csv"))
            found = {source.name: File(source), **dict(others)}
        elif source.is_file() and source.suffix.lower() == ".parquet":
            found = {source.name: File(source)}
        else:
            raise DataError(
                f"--source={source}: must be an existing folder, .csv or .parquet file or archive "
                f"({', '.join(archives.ENDINGS)})"
            )
        if shared := set(files) & set(found):
            raise DataError(f"--source={source}: {min(shared)!r} is also in another source; give each file only once")
        files |= found
    return dict(sorted(files.items()))


def stamp(path: str | Path) -> str:
    """Size, modification and change time of a file; "0" if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return "0"
    return str((status.st_size, status.st_mtime_ns, status.st_ctime_ns))


def is_image(path: str) -> bool:
    """Whether a name has the suffix of an image."""
    return path.lower().endswith(IMAGE_SUFFIXES)


def is_ignored(path: str) -> bool:
    """Whether a part of a path is hidden or was created by a file manager."""
    return any(name.startswith(".") or name in IGNORED_NAMES for name in path.lower().split("/"))


def read_rows(files: Files, path: str) -> list[list[str]]:
    """The words of each non-empty line of a text file."""
    with reading(path):
        text = file_at(files, path).read().decode("utf-8-sig")
    return [line.split() for line in text.splitlines() if line.strip()]


def file_at(files: Files, path: str) -> File:
    """The file at a path; if it is missing, a `File` that raises DataError when read."""
    return files.get(path, File(Path(f"{os.devnull}/{path}")))  # also of an absolute path


def bucket(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it."""
    limited = url.startswith("gs://") and "?" not in url
    system, path = fs.FileSystem.from_uri(f"{url}?retry_limit_seconds={SECONDS}" if limited else url)
    return system, path


@contextmanager
def reaching(url: str, what: str = "read") -> Iterator[None]:
    """Within this context, a failure of the bucket or the network is a DataError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise DataError(
            f"{url}: cannot be {what} ({reason(error)}); check the name of the bucket and your rights"
        ) from error


def listed(url: str) -> dict[str, Any]:
    """The files below a URL, by their relative path, as `pyarrow.fs.FileInfo`; a single file has the path ""."""
    with reaching(url):
        system, root = bucket(url)
        there = system.get_file_info(root)
        found = [there] if there.is_file else system.get_file_info(fs.FileSelector(root, recursive=True))
        if not any(info.is_file for info in found):
            raise DataError(f"{url}: there are no files")
    files = {info.path.removeprefix(root.rstrip("/")).lstrip("/"): info for info in found if info.is_file}
    return dict(sorted(files.items()))


def opened(url: str) -> Any:
    """A file in a bucket, a `pyarrow.NativeFile` for reading at any place; raises DataError if there is none."""
    with reaching(url):
        system, path = bucket(url)
        return system.open_input_file(path)


@contextmanager
def written(file: Path | str) -> Iterator[Path]:
    """Context with a temporary path; its file is moved to a local path or uploaded to a URL, and appears completely."""
    if isinstance(file, Path):
        with atomic_write(file) as draft:
            yield draft
        return
    with tempfile.TemporaryDirectory(prefix="dml_jax-") as directory:
        draft = Path(directory, "draft")
        yield draft
        with reaching(file, "written"), draft.open("rb") as source:
            system, path = bucket(file)
            with system.open_output_stream(path) as target:
                shutil.copyfileobj(source, target, 2**24)
