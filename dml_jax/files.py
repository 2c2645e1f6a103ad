"""Paths and files: `~` in user input, errors that name the file being read, atomic writes."""

import contextlib
import csv
import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pydantic

from dml_jax.errors import PASSING, UNWRITABLE, ConfigError, DataError, UserError, require

BUCKETS = ("gs://", "s3://")  # URLs of data sets
NO_URL = "is a URL; give a path, e.g. one where the bucket is mounted (gcsfuse, mount-s3)"
OBSTRUCTED = "is a file, below one, or a broken link"


def is_url(path: str | Path) -> bool:
    """Whether a path is a URL such as gs://bucket/name."""
    return re.match(r"[A-Za-z][\w+.-]+:/", str(path)) is not None  # a Path has one slash there


def expand_path(option: str, path: str | Path) -> Path:
    """The path in an option or a key, with `~` expanded; ConfigError for an invalid file name."""
    if is_url(path):
        raise ConfigError(f"{option}={path}: {NO_URL}")
    try:
        expanded = Path(path).expanduser()
        str(expanded.absolute()).encode()  # libraries accept only UTF-8
        expanded.is_dir()  # fails if the name is too long
    except (RuntimeError, OSError, UnicodeEncodeError) as error:
        raise ConfigError(f"{option}={path}: cannot be used ({reason(error)})") from None
    return expanded


def obstructed(path: Path) -> bool:
    """Whether no directory can be at a path: it or a parent is a file or a broken link."""
    places = (path.absolute(), *path.absolute().parents)
    return not next(place for place in places if place.exists() or place.is_symlink()).is_dir()


def directory(option: str, path: str | Path) -> Path:
    """The directory that an option names, which need not exist."""
    found = expand_path(option, path)
    require(not obstructed(found), f"{option}={path}: {OBSTRUCTED}; give a directory")
    return found


def cache_dir() -> Path:
    """For downloads, compiled programs and lists of checked images: `$XDG_CACHE_HOME/dml_jax`."""
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path("~/.cache").expanduser()) / "dml_jax"


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def reading(
    path: str | Path,
    remedy: str = "write or copy it again",
    error: type[UserError] = DataError,
    *,
    option: str = "",
) -> Iterator[None]:
    """Context for reading one file; every exception becomes an error that names `option` and file.

    Libraries raise exceptions of many types for damaged files. A `UserError` gets the file name as
    a prefix; errors of a disk that is full or fails pass unchanged. Messages end with the `remedy`.
    A `Path` must be a regular file or a directory: others, such as pipes, may have no end.
    """
    file, path = path, f"{option}={path}" if option else path
    if isinstance(file, Path) and is_url(file):  # libraries hang, or find empty files
        raise error(f"{path}: {NO_URL}")
    try:
        if isinstance(file, Path) and file.exists() and not (file.is_file() or file.is_dir()):
            raise error("is a pipe or a device; give a file")
        yield
    except MemoryError as problem:
        raise MemoryError(f"{path}: {reason(problem)}") from problem
    except UserError as problem:
        raise type(problem)(f"{path}: {problem}") from problem
    except FileNotFoundError as problem:
        raise error(f"{path}: is missing; {remedy}") from problem
    except Exception as problem:
        if isinstance(problem, OSError) and problem.errno in UNWRITABLE | PASSING:
            raise
        unreadable = isinstance(problem, OSError) and problem.errno
        what = "cannot be read" if unreadable else "is truncated or damaged"
        raise error(f"{path}: {what} ({reason(problem)}); {remedy}") from problem


def reason(problem: Exception) -> str:
    """Short message of an exception; its type if the message is empty."""
    if isinstance(problem, pydantic.ValidationError):
        first = problem.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "JSON"
        text = first["msg"].removeprefix("Value error, ")  # of our own rules
        return f"{where}: {text[0].lower()}{text[1:]}"
    text = str(problem).strip().partition("\n")[0]
    text = (isinstance(problem, OSError) and problem.strerror) or text
    return re.sub(r"^\[Errno -?\d+\] ", "", text)[:200] or type(problem).__name__


def read_json(
    path: Path,
    kind: Any,
    remedy: str = "write or copy it again",
    error: type[UserError] = DataError,
) -> Any:
    """Reads a JSON file whose content has this type: a dataclass for an object with its fields."""
    with reading(path, remedy, error):
        content = json.loads(path.read_text(encoding="utf-8"))
        pydantic.TypeAdapter(kind).validate_python(content)
    return content


@contextlib.contextmanager
def name_file(path: Path) -> Iterator[None]:
    """Context in which an OSError that names no file, e.g. of a full disk, names `path`.

    Exceptions of libraries whose text ends with the operating system's message become an OSError.
    """
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        if error.errno:
            error.filename = error.filename or str(path)
        raise
    except Exception as error:
        for number in UNWRITABLE | PASSING:
            if os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number), str(path)) from error
        raise


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Context with a temporary file next to `path` that replaces `path` if no exception occurs.

    Readers see the old file or the complete new one, never a part; the data is on disk before the
    name changes. A symbolic link is followed; a device such as /dev/stdout is written directly.
    """
    if path.exists() and not path.is_file():
        with name_file(path):
            yield path
        return
    path = path.resolve()
    draft = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}.tmp")
    try:
        with name_file(path):
            draft.touch()
            yield draft
            with draft.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds `.NAME.lock` beside a file or directory; without `wait`, UserError if it is held."""
    lock = path.with_name(f".{path.name}.lock")
    with contextlib.ExitStack() as held:
        while True:
            file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            held.callback(os.close, file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                problem = "another command is writing there; wait for its end"
                raise UserError(f"{path}: {problem}") from None
            if os.fstat(file).st_nlink:  # else its holder has removed it
                break
        held.callback(lock.unlink, missing_ok=True)
        yield


def as_text(name: str) -> str:
    """A file's name as text, with undecodable bytes escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def text_of(content: bytes) -> str:
    """The text of a file in UTF-8 or, with a byte order mark, UTF-16; UnicodeDecodeError
    otherwise."""
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    return content.decode("utf-16" if wide else "utf-8-sig")


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Writes the rows of a table completely or not at all."""
    options: Any = {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}
    with atomic_write(path) as draft, draft.open("w", **options) as file:
        write_rows(file, rows)


def write_rows(file: TextIO, rows: Iterable[Iterable[Any]]) -> None:
    """Writes rows as CSV; a text that a spreadsheet would run as a formula gets an apostrophe."""

    def inert(cell: Any) -> Any:
        if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
            return cell
        try:
            float(cell)
        except ValueError:
            return f"'{cell}"
        return cell

    csv.writer(file, lineterminator="\n").writerows(map(inert, row) for row in rows)


def finite(value: Any) -> Any:
    """A value for JSON, which has no NaN and no infinity: they become None."""
    return json.loads(json.dumps(value), parse_constant=lambda name: None)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file completely or not at all; replaces NaN and infinity by null."""
    text = json.dumps(finite(value), indent=2)
    if is_url(path):  # an object appears completely
        path.write_text(text + "\n")
        return
    with atomic_write(path) as draft:
        draft.write_text(text + "\n", encoding="utf-8")
