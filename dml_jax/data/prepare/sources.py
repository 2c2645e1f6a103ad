"""The first step of a preparation: the files and images of a data set, listed without opening an
image.

Files in buckets are read and written by the file systems of Arrow, with URLs as of
`pyarrow.fs.FileSystem.from_uri`, e.g. gs://anonymous@bucket/photos for a public bucket.
"""

import json
import os
import posixpath
import re
import shutil
import stat
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow import fs

from dml_jax import manifest
from dml_jax.data.prepare import archives
from dml_jax.errors import ConfigError, DataError, UserError, counted
from dml_jax.files import atomic_write, reading, reason
from dml_jax.remote.downloads import Source

SPLITS = (
    "train",
    "validation",
    "test",
    "gallery",
)  # if there is a gallery, the test images are the queries
SPLIT_NAMES = {  # words in the names of folders and files and in columns of tables -> split
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(
        ("val", "valid", "validation", "validate", "dev", "devel", "development"), "validation"
    ),
    **dict.fromkeys(
        ("test", "testing", "tst", "eval", "evaluation", "holdout", "query", "queries", "probe"),
        "test",
    ),
    "gallery": "gallery",
}
BESIDE = {
    "set",
    "split",
    "data",
    "dataset",
    "images",
    "image",
    "img",
    "imgs",
}  # words that may stand beside them
IMAGE_SUFFIXES = (
    *(
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".mpo",
        ".png",
        ".bmp",
        ".gif",
        ".webp",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
    ),
    *(".pnm", ".avif", ".heic", ".heif"),
)
MARKER = "prepared.json"  # of a prepared data set
OUTPUTS = {  # files that mark what this package has written, with keys that they have -> what it is
    "config.json": ({"config", "data_hash"}, "a run"),
    "study.json": ({"study", "title"}, "a study"),
    MARKER: ({"name", "sha256", "splits"}, "a prepared data set"),
    manifest.NAME: ({"files", "sha256"}, "results"),
    "_plan.json": ({"parts", "inputs_sha256"}, "embeddings"),
}
IGNORED_NAMES = (
    "thumbs.db",
    "desktop.ini",
    "__macosx",
)  # created by file managers; hidden files are ignored as well
MAX_BYTES = 2**28  # of a single file
SECONDS = 60  # without an answer of Google Cloud Storage; Arrow would try for a quarter of an hour


class File(NamedTuple):
    """Content of a file: the whole file at `path`, or `size` bytes of it starting at `offset`."""

    path: Path
    offset: int = 0
    size: int = -1

    def read(self) -> bytes:
        """The content; raises DataError for anything but a regular file (a pipe may have no end) of
        `MAX_BYTES`."""
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
    """An image: its name in the data set, its file, its class, its split and further facts, by
    column."""

    id: str
    file: File
    class_name: str
    split: str
    metadata: Mapping[str, Scalar] = {}


class Options(NamedTuple):
    """How to find the splits and the classes of images."""

    test_share: float = (
        0.5  # share of the classes that become test classes where the source gives no splits
    )
    # Names of folders, files and values of a column that give splits: "auto" recognises them,
    # "classes" as well, but divides the classes by `test_share`, "none" takes such folders for
    # classes, and "train:valid:test" names them.
    splits: str = "auto"
    session: str = (
        ""  # see `data.sessions`; with "folder", the folder in a class folder is no class
    )
    scratch: Path = Path()  # folder for unfinished work, where recipes may write files

    def named(self) -> dict[str, str]:
        """The names in `splits` -> split; raises ConfigError for another value."""
        names = self.splits.split(":")
        if self.splits in ("auto", "classes", "none"):
            return {}
        known = {2: ("train", "test"), 3: SPLITS[:3], 4: SPLITS}.get(len(names))
        given = dict(zip(names, known, strict=True)) if known else {}
        if not all(names[i] for i in (0, -1)) or not known or len(given) < len(names):
            raise ConfigError(
                f"--splits={self.splits}: must be auto, classes, none, or the names of the "
                "folders for training, validation and test, e.g. --splits=train:valid:test or "
                "--splits=train:test"
            )
        return {name: split for name, split in given.items() if name}

    def split_of(self, name: str) -> str:
        """The split that a name says, such as "Train", "test-set" or "val_images"; empty if it says
        none."""
        if self.splits == "none":
            return ""
        if named := self.named():
            return named.get(name, "")
        words = re.findall("[A-Z]?[a-z]+|[A-Z]+", name)
        found = {word: split_of_word(word) for word in words if word.lower() not in BESIDE}
        return next(iter(found.values())) if len(found) == 1 and name.isascii() else ""


def split_of_word(word: str) -> str:
    """The split of a word such as "Training" or "testset"; empty if it is none."""
    lower = word.lower()
    return SPLIT_NAMES.get(lower) or SPLIT_NAMES.get(lower.removesuffix("set"), "")


class Recipe(NamedTuple):
    """How to read a data set as its authors distribute it."""

    # (files, options) -> the images; those whose split is empty are divided by class. Raises
    # DataError if the files are not this data set.
    find: Callable[[Files, Options], list[Entry]]
    # (files, options) -> sentences for the user about how `find` reads them, and what it had to
    # guess.
    doubts: Callable[[Files, Options], list[str]] = lambda files, options: []
    reads: tuple[str, ...] = (
        ".csv",
        ".json",
        ".mat",
        ".parquet",
        ".txt",
    )  # suffixes of files other than images
    in_place: bool = False  # whether a folder can be used without preparation
    # split -> (images, classes) of the complete data set; None if they are not fixed.
    counts: Mapping[str, tuple[int, int]] | None = None
    home: str = ""  # web page of the data set
    citation: str = ""  # paper to cite
    downloads: Sequence[Source] = ()  # the archives, where the owners publish them
    terms: str = ""  # under which the owners publish them, or why they cannot be downloaded
    # Whether the files look like this data set, judged by their names alone, whatever else they are
    # used as.
    recognised: Callable[[Files], bool] = lambda files: False


def walk(root: Path) -> Iterator[tuple[str, File]]:
    """All files below a folder except ignored ones, sorted by name; links to folders are followed
    once."""

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename}: {error.strerror}") from error

    seen = set()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=fail):
        real = os.path.realpath(folder)
        folders[:] = (
            sorted(name for name in folders if not is_ignored(name)) if real not in seen else []
        )
        if real in seen:
            continue
        seen.add(real)
        base = Path(folder).relative_to(root).as_posix()
        for name in sorted(names):
            if not is_ignored(name):
                yield (name if base == "." else f"{base}/{name}"), File(Path(folder, name))


class Survey(NamedTuple):
    """The files of a source without what this package has written."""

    files: Files
    outputs: Mapping[str, str]  # folders that are left out -> what they are
    skipped: Mapping[str, int]  # suffix -> number of files that are not images; "" for none

    def doubts(self) -> list[str]:
        """Sentences about what is left out."""
        found = []
        if self.outputs:
            shown = [f"{name} ({what})" for name, what in list(self.outputs.items())[:3]]
            more = f" and {len(self.outputs) - 3} more" if len(self.outputs) > 3 else ""
            found.append(f"left out, because dml_jax has written them: {', '.join(shown)}{more}")
        if self.skipped:
            ranked = sorted(self.skipped.items(), key=lambda pair: (-pair[1], pair[0]))
            listed = [f"{suffix or 'no suffix'}: {count:,}" for suffix, count in ranked[:8]]
            others = sum(count for _, count in ranked[8:])
            total = counted(sum(self.skipped.values()), "file")
            listed += [f"others: {others:,}"] if others else []
            found.append(f"skipped {total} other than images ({', '.join(listed)})")
        return found


def survey(found: Iterable[tuple[str, File]]) -> Survey:
    """Sorts out what is no image of the user: directories that this package has written, and other
    files."""
    files = dict(sorted(found))
    outputs: dict[str, str] = {}
    for path, file in files.items():
        folder, _, name = path.rpartition("/")
        if name in OUTPUTS and not any(_below(folder, other) for other in outputs):
            keys, what = OUTPUTS[name]
            with suppress(DataError, ValueError, TypeError, RecursionError):
                if keys <= set(json.loads(file.read())):
                    inside = {path.split("/")[0] for path in files if "/" in path and _is_own(path)}
                    outputs |= dict.fromkeys([folder] if folder else sorted(inside), what)
    kept = {
        path: file
        for path, file in files.items()
        if not any(_below(path, folder) for folder in outputs)
    }
    skipped = Counter(posixpath.splitext(path)[1].lower() for path in kept if not is_image(path))
    return Survey(kept, outputs, skipped)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _is_own(path: str) -> bool:
    """Whether a run whose work directory is the folder of the user's images has written a path with
    an image."""
    return path.split("/")[0] in ("analysis", "figures")


def list_files(
    sources: Sequence[Path],
    scratch: Path,
    announce: Callable[[str], None],
    option: str = "--source",
) -> Files:
    """All files of the sources by their relative path; archives are unpacked to `scratch`."""
    files: dict[str, File] = {}
    for i, source in enumerate(sources):
        if source.is_dir():
            found = dict(walk(source))
        elif source.is_file() and source.name.lower().endswith(archives.ENDINGS):
            announce(f"unpacking {source}")
            target = scratch / f"source-{i}"
            members = archives.unpack(source, target)
            found = {
                name: File(target, offset, size)
                for name, offset, size in members
                if not is_ignored(name)
            }
        elif source.is_file() and source.suffix.lower() == ".csv":
            others = (pair for pair in walk(source.parent) if not pair[0].lower().endswith(".csv"))
            found = {source.name: File(source), **dict(others)}
        elif source.is_file() and source.suffix.lower() == ".parquet":
            found = {source.name: File(source)}
        else:
            raise DataError(
                f"{option}={source}: must be an existing folder, .csv or .parquet file or archive "
                f"({', '.join(archives.ENDINGS)})"
            )
        if shared := set(files) & set(found):
            raise DataError(
                f"--source={source}: {min(shared)!r} is also in another source; give each file "
                "only once"
            )
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


def is_missing(file: File) -> bool:
    """Whether `file_at` did not find it."""
    return str(file.path).startswith(f"{os.devnull}/")


def located(files: Files, base: str, paths: Sequence[str]) -> list[str]:
    """The files that the paths in a table mean, as names in `files`; a path that means none stays
    as it is.

    Paths are relative to the folder `base`, or else to the source, with slashes or backslashes, and
    may contain "." and ".." and be in another Unicode form. An absolute path may be one of another
    machine: it means what is left after one start that most of the absolute paths share, if that is
    a file of the source.
    """
    composed = {unicodedata.normalize("NFC", name): name for name in files}
    composed |= {name: name for name in files}

    def known(path: str) -> str:
        plain = posixpath.normpath(path) if "\0" not in path else path
        return composed.get(plain) or composed.get(unicodedata.normalize("NFC", plain), "")

    def tails(path: str) -> Iterator[tuple[str, str]]:
        parts = posixpath.normpath(path).split("/")
        for i in range(1, len(parts)):
            if name := known("/".join(parts[i:])):
                yield "/".join(parts[:i]), name

    found, absolute = list(paths), dict[int, dict[str, str]]()
    for i, path in enumerate(paths):
        slashed = (
            path
            if "\\" not in path or known(posixpath.join(base, path))
            else path.replace("\\", "/")
        )
        if re.match("/|[A-Za-z]:/", slashed):
            absolute[i] = dict(tails(slashed))
        else:
            found[i] = known(posixpath.join(base, slashed)) or known(slashed) or path
    if starts := Counter(start for names in absolute.values() for start in names):
        start = max(starts, key=lambda name: (starts[name], -len(name)))
        for i, names in absolute.items():
            found[i] = names.get(start, found[i])
    return found


def bucket(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it."""
    limited = url.startswith("gs://") and "?" not in url
    system, path = fs.FileSystem.from_uri(
        f"{url}?retry_limit_seconds={SECONDS}" if limited else url
    )
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
            f"{url}: cannot be {what} ({reason(error)}); check the name of the bucket and your "
            "rights"
        ) from error


def listed(url: str) -> dict[str, Any]:
    """The files below a URL, by their relative path, as `pyarrow.fs.FileInfo`; a single file has
    the path ""."""
    with reaching(url):
        system, root = bucket(url)
        there = system.get_file_info(root)
        found = (
            [there]
            if there.is_file
            else system.get_file_info(fs.FileSelector(root, recursive=True))
        )
        if not any(info.is_file for info in found):
            raise DataError(f"{url}: there are no files")
    files = {
        info.path.removeprefix(root.rstrip("/")).lstrip("/"): info for info in found if info.is_file
    }
    return dict(sorted(files.items()))


def opened(url: str) -> Any:
    """A file in a bucket, a `pyarrow.NativeFile` for reading at any place; raises DataError if
    there is none."""
    with reaching(url):
        system, path = bucket(url)
        return system.open_input_file(path)


@contextmanager
def written(file: Path | str) -> Iterator[Path]:
    """Context with a temporary path; its file is moved to a local path or uploaded to a URL, and
    appears completely."""
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
