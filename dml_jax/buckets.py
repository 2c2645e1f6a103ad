"""Files at URLs, and runs in Google Cloud Storage.

Files at URLs are read and written by the file systems of Arrow, `pyarrow.fs.FileSystem.from_uri`,
e.g. gs://anonymous@bucket/photos for a public bucket.

For a run in Google Cloud Storage, Orbax writes the checkpoints to the bucket directly. All other
files are in a local directory: they are copied from the bucket when a command starts, and changes
are copied to it before a checkpoint counts as complete and at the end, so a killed run continues.
"""

import atexit
import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from dml_jax.errors import CheckpointError, DataError, PeerError, UserError
from dml_jax.files import atomic_write, is_url, reason

WRITER = ".writer"  # in the bucket: the object that names the process that may write
RETRIES = 12  # per request, after 1, 2, 4, 8, 16, 32, 32, … seconds, four minutes together
SECONDS = 60  # without an answer; Arrow would try for a quarter of an hour
URL_SIGNS = ":/?#[]@!$&'()*+,;=%"
IN_BUCKET = ("checkpoints/latest/", "checkpoints/best/", WRITER)  # not copied


def check_url(option: str, url: str) -> str:
    """The URL of a run, gs://bucket/directory, without a last slash; CheckpointError for others."""
    if not url.startswith("gs://") or not url.removeprefix("gs://").strip("/").partition("/")[2]:
        raise CheckpointError(
            f"{option}={url}: give gs://bucket/directory, or a directory, where S3 may be mounted"
        )
    try:
        import gcsfs  # noqa: F401
    except ImportError:
        problem = f"{option}={url}: gcsfs is not installed: pip install gcsfs"
        raise CheckpointError(problem) from None
    return url.rstrip("/")


def _client() -> Any:
    """The bucket's client, shared with orbax, without a cache, because other processes write."""
    import fsspec
    import gcsfs

    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    gcsfs.GCSFileSystem.retries = RETRIES  # also for orbax
    return fsspec.filesystem("gcs")


@dataclass
class _Copy:
    """The local files of a run."""

    directory: Path
    url: str
    writer: str = ""  # name of this process, if it may write
    there: dict[str, int] = field(default_factory=dict)  # in the bucket: name -> last change

    @property
    def root(self) -> str:
        return self.url.removeprefix("gs://")

    def paths(self, names: list[str]) -> tuple[list[str], list[str]]:
        """The local paths of files, and those in the bucket."""
        here, there = self.directory, self.root
        return [str(here / name) for name in names], [f"{there}/{name}" for name in names]


_copies: list[_Copy] = []  # made by this process


def _copy_of(path: Path) -> _Copy | None:
    return next((copy for copy in _copies if path.absolute().is_relative_to(copy.directory)), None)


def is_copy(path: Path) -> bool:
    """Whether a path is among the local files of a run in a bucket."""
    return _copy_of(path) is not None


@contextmanager
def working_copy(
    option: str, url: str | Path, *, writing: bool, active: bool = True
) -> Iterator[Path]:
    """The local copy of a run in a bucket, removed at the end; a local path is returned unchanged.

    If the run is to be written, this process takes it over from any other that writes it; `active`
    is False on all processes of a run but the first.
    """
    if not is_url(url):
        yield Path(url)
        return
    with (
        tempfile.TemporaryDirectory(prefix="dml_jax-") as parent,
        reaching(f"{option}={check_url(option, str(url))}"),
    ):
        copy = _Copy(Path(parent, str(url).rstrip("/").rpartition("/")[2]), str(url).rstrip("/"))
        copy.directory.mkdir()
        if writing and active:
            _take_over(option, copy)
        _copies.append(copy)
        try:
            pull(copy.directory)
            yield copy.directory
            if writing:
                push(copy.directory)
        except BaseException as error:
            if writing and copy.there:  # files of a run that has begun, such as its log
                with suppress(Exception):
                    push(copy.directory)
            if isinstance(error, UserError):
                raise type(error)(str(error).replace(str(copy.directory), copy.url)) from error
            raise
        finally:
            _copies.remove(copy)
            with suppress(Exception):
                if copy.writer and _writer(copy) == copy.writer:
                    _client().rm_file(f"{copy.root}/{WRITER}")


def read_copy(option: str, url: str) -> Path:
    """A local directory for reading a run, removed when the process ends."""
    until_exit = ExitStack()
    atexit.register(until_exit.close)
    return until_exit.enter_context(working_copy(option, url, writing=False))


def origin(path: Path) -> Path:
    """The path in the bucket of a path in a local copy; any other path is returned unchanged."""
    copy = _copy_of(path)
    if copy is None:
        return path.absolute()
    from etils import epath

    _client()  # before orbax
    return cast(Path, epath.Path(copy.url) / path.absolute().relative_to(copy.directory))


def pull(directory: Path) -> None:
    """Downloads the files of a run that its local copy lacks; ignores other directories."""
    if copy := _copy_of(directory):
        names = [path.removeprefix(f"{copy.root}/") for path in _client().find(copy.root)]
        local = [n for n in names if n[-1:] != "/" and not any(part in n for part in IN_BUCKET)]
        missing = [name for name in local if not (copy.directory / name).exists()]
        for name in missing:
            (copy.directory / name).parent.mkdir(parents=True, exist_ok=True)
        if missing:
            _client().get(*reversed(copy.paths(missing)))
        copy.there |= {name: (copy.directory / name).stat().st_mtime_ns for name in missing}


def push(directory: Path) -> None:
    """Uploads changed files of a local copy; does nothing with other directories.

    The manifest, which marks a finished run, is the last. CheckpointError if the run is taken over.
    """
    if copy := _copy_of(directory):
        check_writer(directory)
        here = {
            path.relative_to(copy.directory).as_posix(): path.stat().st_mtime_ns
            for path in sorted(copy.directory.rglob("*"))
            if path.is_file() and not path.name.startswith(".")
        }
        changed = [name for name, time in here.items() if copy.there.get(name) != time]
        for last in (False, True):
            if names := [name for name in changed if (name == "manifest.json") == last]:
                _client().put(*copy.paths(names))
        for name in copy.there.keys() - here.keys():
            _client().rm_file(f"{copy.root}/{name}")
        copy.there = here


def check_writer(directory: Path) -> None:
    """Raises CheckpointError if another process has taken over the run that this one writes."""
    if (copy := _copy_of(directory)) and copy.writer and (other := _writer(copy)) != copy.writer:
        other = other or "a process that has ended"
        raise CheckpointError(f"{copy.url}: {other} has taken over this run, so this process ends")


def _writer(copy: _Copy) -> str:
    """The process that may write; empty if there is none."""
    try:
        return str(_client().cat_file(f"{copy.root}/{WRITER}").decode())
    except FileNotFoundError:
        return ""


def _take_over(option: str, copy: _Copy) -> None:
    """Replaces the writer; if several processes do it at once, the last one writes, others end."""
    if earlier := _writer(copy):
        print(f"{copy.url}: taking over from {earlier}", flush=True)
        with suppress(FileNotFoundError):  # it has just ended
            _client().rm_file(f"{copy.root}/{WRITER}")
    writer = f"process {os.getpid()} on {socket.gethostname()} ({uuid.uuid4().hex[:8]})"
    try:
        # With ifGenerationMatch=0.
        _client().pipe_file(f"{copy.root}/{WRITER}", writer.encode(), mode="create")
    except FileExistsError:
        other = _writer(copy)
        if other != writer:  # and not a repetition, because the first answer was lost
            problem = f"{option}={copy.url}: {other} has just started this run"
            raise CheckpointError(problem) from None
    copy.writer = writer


@contextmanager
def reaching(where: str) -> Iterator[None]:
    """Within this context, a failure of the client is a CheckpointError or PeerError."""
    try:
        yield
    except FileNotFoundError as error:
        if error.filename or not is_url(where.partition("=")[2] or where):  # a local file
            raise
        if "=" not in where:  # in a run that has begun, e.g. because a listing was cut short
            raise PeerError(f"{where}: an object that was there is not found") from error
        raise CheckpointError(
            f"{where}: there is no such bucket or object; create the bucket first"
        ) from None
    except Exception as error:
        module = type(error).__module__
        denied = str(error).startswith("Forbidden") or getattr(error, "code", 0) == 401
        if denied or module.startswith("google.auth"):
            raise CheckpointError(f"{where}: access is denied ({reason(error)})") from error
        if module.startswith(("gcsfs", "aiohttp", "requests")):
            raise PeerError(f"{where}: cannot be reached ({reason(error)})") from error
        raise


def file_system(url: str) -> tuple[Any, str]:
    """The `pyarrow.fs.FileSystem` of a URL and the path in it."""
    from pyarrow import fs

    limit = f"?retry_limit_seconds={SECONDS}" if url.startswith("gs://") and "?" not in url else ""
    # Users need not encode spaces and umlauts; in names of listed files, all signs are encoded.
    system, path = fs.FileSystem.from_uri(quote(url, safe=URL_SIGNS) + limit)
    return system, path


@contextmanager
def accessing(url: str, what: str = "read") -> Iterator[None]:
    """Within this context, a failure of the bucket or the network is a DataError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        remedy = "check the name of the bucket and your rights"
        raise DataError(f"{url}: cannot be {what} ({reason(error)}); {remedy}") from error


def list_files(url: str) -> dict[str, Any]:
    """The files below a URL, `pyarrow.fs.FileInfo` by relative path; "" for a single file."""
    from pyarrow import fs

    with accessing(url):
        system, root = file_system(url)
        found = system.get_file_info(root)
        selector = fs.FileSelector(root, recursive=True)
        infos = [found] if found.is_file else system.get_file_info(selector)
        start = root.rstrip("/")
        files = {i.path.removeprefix(start).lstrip("/"): i for i in infos if i.is_file}
        if not files:
            raise DataError(f"{url}: there are no files")
    return dict(sorted(files.items()))


def open_file(url: str) -> Any:
    """A file in a bucket, open for reading (`pyarrow.NativeFile`); DataError if it is missing."""
    with accessing(url):
        system, path = file_system(url)
        return system.open_input_file(path)


@contextmanager
def written(file: Path | str) -> Iterator[Path]:
    """Context with a temporary path, whose file is moved or uploaded as a whole at the end."""
    if isinstance(file, Path):
        with atomic_write(file) as draft:
            yield draft
        return
    with tempfile.TemporaryDirectory(prefix="dml_jax-") as directory:
        draft = Path(directory, "draft")
        yield draft
        with accessing(file, "written"), draft.open("rb") as source:
            system, path = file_system(file)
            with system.open_output_stream(path) as target:
                shutil.copyfileobj(source, target, 2**24)
