"""Paths and files: `~` in user input, files written completely or not at all, SHA-256, the cache directory."""

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dml_jax.errors import ConfigError


def expand_path(option: str, path: str | Path) -> Path:
    """The path that an option or configuration key gives, with `~` expanded.

    Raises:
      ConfigError: `~name` where there is no user of that name.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{option}={path}: there is no such user's home") from None


def below_a_file(path: Path) -> bool:
    """Whether a parent of this path is a file, so that no directory can be created there."""
    return not next(parent for parent in path.absolute().parents if parent.exists()).is_dir()


def cache_dir() -> Path:
    """Where downloads, compiled programs and lists of checked images are kept: `$XDG_CACHE_HOME/dml_jax`.

    An unset, empty or relative `XDG_CACHE_HOME` means `~/.cache`, as the XDG specification says.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path("~/.cache").expanduser()) / "dml_jax"


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def name_file(path: Path) -> Iterator[None]:
    """Within this context, an OSError that names no file, as that of a full disk, names `path`."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Gives a temporary path beside `path`, which replaces `path` when the block ends without an exception.

    Readers see the old file or the complete new one, never a part; the data is on disk before the name changes. A
    symbolic link is followed; a device such as /dev/stdout is written directly.
    """
    if path.exists() and not path.is_file():
        with name_file(path):
            yield path
        return
    path = path.resolve()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    draft = Path(name)
    try:
        with name_file(path):
            yield draft
            with draft.open("rb") as file:
                os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        draft.chmod(0o666 & ~umask)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file completely or not at all; NaN and infinity, which JSON lacks, become null."""
    text = json.dumps(_finite_or_null(value), indent=2, allow_nan=False)
    with atomic_write(path) as draft:
        draft.write_text(text + "\n", encoding="utf-8")


def _finite_or_null(value: Any) -> Any:
    match value:
        case dict():
            return {key: _finite_or_null(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_finite_or_null(entry) for entry in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value
