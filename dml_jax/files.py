"""Paths and files: `~` in user input, errors that name the file being read, atomic writes."""

import contextlib
import csv
import fcntl
import glob
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pydantic

from dml_jax.errors import TRANSIENT, UNWRITABLE, ConfigError, DataError, UserError, require

BUCKETS = ("gs://", "s3://")  # URLs of data sets
NO_URL = "URLs are not supported here; give a path, e.g. of a mounted bucket (gcsfuse, mount-s3)"
OBSTRUCTED = "a file or a broken link is in the way"


def is_url(path: str | Path) -> bool:
    """Whether a path is a URL such as gs://bucket/name."""
    return re.match(r"[A-Za-z][\w+.-]+:/", str(path)) is not None  # `Path` keeps one of two slashes


def expand_path(option: str, path: str | Path) -> Path:
    """The path in an option or key, with `~` expanded; ConfigError if it is invalid."""
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
    """Whether a file or broken link at the path, or at a parent, prevents a directory there."""
    places = (path.absolute(), *path.absolute().parents)
    return not next(place for place in places if place.exists() or place.is_symlink()).is_dir()


def directory(option: str, path: str | Path) -> Path:
    """The path of a directory in an option; the directory need not exist."""
    expanded = expand_path(option, path)
    require(not obstructed(expanded), f"{option}={path}: {OBSTRUCTED}; give a directory")
    return expanded


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/dml_jax`: downloads, compiled programs and lists of checked images."""
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

    Libraries raise many types of exceptions for damaged files. A `UserError` gets the file name as
    a prefix; disk errors (full, failing) pass unchanged. Messages end with the `remedy`. A `Path`
    must be a regular file or a directory, because pipes and devices may never end.
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
        if isinstance(problem, OSError) and problem.errno in UNWRITABLE | TRANSIENT:
            raise
        unreadable = isinstance(problem, OSError) and problem.errno
        what = "cannot be read" if unreadable else "is truncated or damaged"
        raise error(f"{path}: {what} ({reason(problem)}); {remedy}") from problem


def reason(problem: Exception) -> str:
    """An exception's message, shortened to its first line; its type if the message is empty."""
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
    """Reads a JSON file and checks the type of its content; a dataclass stands for an object."""
    with reading(path, remedy, error):
        content = json.loads(path.read_text(encoding="utf-8"))
        pydantic.TypeAdapter(kind).validate_python(content)
    return content


@contextlib.contextmanager
def name_file(path: Path) -> Iterator[None]:
    """Context that adds `path` to an OSError without a file name, e.g. for a full disk.

    A library's exception that quotes such a message of the operating system becomes an OSError.
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
        for number in UNWRITABLE | TRANSIENT:
            if os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number), str(path)) from error
        raise


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Context with a temporary file next to `path` that replaces `path` if no exception occurs.

    Readers see the old file or the complete new one, never a part; the data is on disk before the
    name changes. A symbolic link is followed; a device such as /dev/stdout is written directly.
    Drafts of writers that were killed are deleted.
    """
    if path.exists() and not path.is_file():
        with name_file(path):
            yield path
        return
    path = path.resolve()
    name = f".{path.name[:40]}"
    for remains in path.parent.glob(f"{glob.escape(name)}.????????.tmp"):
        _delete_abandoned(remains)
    draft = path.with_name(f"{name}.{secrets.token_hex(4)}.tmp")
    try:
        with name_file(path), draft.open("xb") as held:
            with contextlib.suppress(OSError):  # file systems without locks
                fcntl.flock(held, fcntl.LOCK_EX)
            yield draft
            with draft.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _delete_abandoned(draft: Path) -> None:
    """Deletes the draft of `atomic_write` unless its writer, which locks it, is still there."""
    with contextlib.suppress(OSError), draft.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.unlink()


@contextlib.contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds `.NAME.lock` next to a path; without `wait`, UserError if another process holds it."""
    lock = path.with_name(f".{path.name}.lock")
    with contextlib.ExitStack() as held:
        while True:
            file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            held.callback(os.close, file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                problem = "another command is writing here; wait until it has finished"
                raise UserError(f"{path}: {problem}") from None
            if os.fstat(file).st_nlink:  # otherwise, its holder has just removed it
                break
        held.callback(lock.unlink, missing_ok=True)
        yield


def as_text(name: str) -> str:
    """A file name with undecodable bytes escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def text_of(content: bytes) -> str:
    """The text of a file in UTF-8 or, with a byte order mark, UTF-16; UnicodeDecodeError
    otherwise."""
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    return content.decode("utf-16" if wide else "utf-8-sig")


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Writes a CSV file completely or not at all."""
    options: Any = {"newline": "", "encoding": "utf-8", "errors": "backslashreplace"}
    with atomic_write(path) as draft, draft.open("w", **options) as file:
        write_rows(file, rows)


def write_rows(file: TextIO, rows: Iterable[Iterable[Any]]) -> None:
    """Writes rows as CSV; text that a spreadsheet would run as a formula gets an apostrophe."""

    def escaped(cell: Any) -> Any:
        if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
            return cell
        try:
            float(cell)
        except ValueError:
            return f"'{cell}"
        return cell

    csv.writer(file, lineterminator="\n").writerows(map(escaped, row) for row in rows)


def finite(value: Any) -> Any:
    """Replaces NaN and infinity, which JSON does not have, by None."""
    return json.loads(json.dumps(value), parse_constant=lambda name: None)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file completely or not at all; replaces NaN and infinity by null."""
    text = json.dumps(finite(value), indent=2)
    if is_url(path):  # an object appears completely
        path.write_text(text + "\n")
        return
    with atomic_write(path) as draft:
        draft.write_text(text + "\n", encoding="utf-8")
