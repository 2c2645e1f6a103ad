"""Files at URLs, and runs in Google Cloud Storage.

Arrow reads files at URLs (`pyarrow.fs.FileSystem.from_uri`), e.g. gs://anonymous@bucket/photos in a
public bucket.

For a run in Google Cloud Storage, Orbax writes the checkpoints to the bucket. Other files are
written locally and uploaded whole, because objects cannot be appended to: logs before a checkpoint
counts as complete, so that a killed run can resume, and everything at the end. The process that
started last is the writer.
"""

import atexit
import os
import socket
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from dml_jax import seal
from dml_jax.errors import CheckpointError, DataError, PeerError, UserError
from dml_jax.files import is_url, reason

ORIGIN = ".bucket"  # file in a local directory with its URL
WRITER = ".writer"  # names a process; in the bucket, the one that may write
RETRIES = 12  # per request, after 1, 2, 4, 8, 16, 32, 32, … seconds: four minutes
SECONDS = 60  # without an answer; Arrow's default is 15 minutes
URL_SIGNS = ":/?#[]@!$&'()*+,;=%"
CHECKPOINTS = "/checkpoints/"  # not copied from the bucket


def check_url(option: str, url: str) -> str:
    """The URL gs://bucket/directory of a run without a final slash; CheckpointError if invalid."""
    if not url.startswith("gs://") or not url.removeprefix("gs://").strip("/").partition("/")[2]:
        raise CheckpointError(
            f"{option}={url}: give gs://bucket/directory or a directory, e.g. a mounted S3 bucket"
        )
    try:
        import gcsfs  # noqa: F401
    except ImportError:
        problem = f"{option}={url}: gcsfs is not installed: pip install gcsfs"
        raise CheckpointError(problem) from None
    return url.rstrip("/")


def _client() -> Any:
    """The client, shared with orbax; without a cache, because other processes may write."""
    import fsspec
    import gcsfs

    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    gcsfs.GCSFileSystem.retries = RETRIES  # also for orbax
    return fsspec.filesystem("gcs")


@contextmanager
def local_files(option: str, run: str | Path) -> Iterator[Path]:
    """The directory of a run or, for a run in a bucket, a temporary directory with its files.

    Checkpoints remain in the bucket, see `origin`; `upload` writes other files there.
    """
    if not is_url(run):
        yield Path(run)
        return
    url = check_url(option, str(run))
    with tempfile.TemporaryDirectory(prefix="dml_jax-") as parent, reaching(f"{option}={url}"):
        directory, root = Path(parent, url.rpartition("/")[2]), url.removeprefix("gs://")
        directory.mkdir()
        (directory / ORIGIN).write_text(url)
        for path in _client().find(root):
            name = path.removeprefix(f"{root}/")
            if name != WRITER and CHECKPOINTS not in f"/{name}" and name[-1:] != "/":
                _client().get_file(path, str(directory / name))
        try:
            yield directory
        except UserError as error:
            raise type(error)(str(error).replace(str(directory), url)) from error


def read_copy(option: str, url: str) -> Path:
    """A local directory with a run to read, removed when the process ends."""
    until_exit = ExitStack()
    atexit.register(until_exit.close)
    return until_exit.enter_context(local_files(option, url))


def origin(path: Path) -> Path:
    """The bucket path for a path in `local_files`; for other paths, the absolute path."""
    path = path.absolute()
    for directory in (path, *path.parents):
        if (directory / ORIGIN).exists():
            from etils import epath

            _client()  # before orbax
            url = epath.Path((directory / ORIGIN).read_text())
            return cast(Path, url / path.relative_to(directory))
    return path


def upload(directory: Path, *patterns: str) -> None:
    """Uploads whole files of a run in a bucket, its manifest last.

    CheckpointError if another process has taken over the run.
    """
    if is_url(str(origin(directory))):
        check_writer(directory)
        paths = {path for pattern in patterns for path in directory.glob(pattern)}
        files = [path for path in paths if path.is_file() and not path.name.startswith(".")]
        files.sort(key=lambda path: (path.name == seal.MANIFEST, -len(path.parts)))
        for path in files:
            origin(path).write_bytes(path.read_bytes())


def take_over(directory: Path) -> None:
    """Makes this process the writer of a run in a bucket; the previous writer stops writing.

    CheckpointError if another process does so at the same time.
    """
    if (directory / ORIGIN).exists():
        local, remote = directory / WRITER, str(origin(directory / WRITER)).removeprefix("gs://")
        local.write_text(
            f"process {os.getpid()} on {socket.gethostname()} ({uuid.uuid4().hex[:8]})"
        )
        with suppress(FileNotFoundError):
            _client().rm_file(remote)
        with suppress(
            FileExistsError
        ):  # another process created it, or we did and the answer was lost
            _client().pipe_file(remote, local.read_bytes(), mode="create")  # ifGenerationMatch=0
        check_writer(directory)


def check_writer(directory: Path) -> None:
    """Raises CheckpointError if another process has become the writer of this run."""
    local = directory / WRITER
    if local.exists() and (current := origin(local).read_text()) != local.read_text():
        raise CheckpointError(
            f"{directory}: {current} has taken over this run, so this process ends"
        )


@contextmanager
def reaching(where: str) -> Iterator[None]:
    """Context in which a failure of the client becomes a CheckpointError or PeerError."""
    try:
        yield
    except FileNotFoundError as error:
        if error.filename or not is_url(where.partition("=")[2] or where):  # a local file
            raise
        if "=" not in where:  # during a run, e.g. because a listing was incomplete
            raise PeerError(f"{where}: an object has disappeared") from error
        raise CheckpointError(
            f"{where}: the bucket or object does not exist; create the bucket first"
        ) from None
    except Exception as error:
        module = type(error).__module__
        denied = str(error).startswith("Forbidden") or getattr(error, "code", 0) == 401
        if denied or module.startswith("google.auth"):
            raise CheckpointError(f"{where}: access denied ({reason(error)})") from error
        if module.startswith(("gcsfs", "aiohttp", "requests")):
            raise PeerError(f"{where}: cannot be reached ({reason(error)})") from error
        raise


def file_system(url: str) -> tuple[Any, str]:
    """The `pyarrow.fs.FileSystem` of a URL and the path in it."""
    from pyarrow import fs

    limit = f"?retry_limit_seconds={SECONDS}" if url.startswith("gs://") and "?" not in url else ""
    # Users may type spaces and umlauts; in the names of listed files, all characters are encoded.
    system, path = fs.FileSystem.from_uri(quote(url, safe=URL_SIGNS) + limit)
    return system, path


@contextmanager
def accessing(url: str, what: str = "read") -> Iterator[None]:
    """Context in which a failure of the bucket or network becomes a DataError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        remedy = "check the name of the bucket and your permissions"
        raise DataError(f"{url}: cannot be {what} ({reason(error)}); {remedy}") from error


def list_files(url: str) -> dict[str, Any]:
    """The files below a URL, `pyarrow.fs.FileInfo` by relative path; "" for a single file."""
    from pyarrow import fs

    with accessing(url):
        system, root = file_system(url)
        info = system.get_file_info(root)
        selector = fs.FileSelector(root, recursive=True)
        infos = [info] if info.is_file else system.get_file_info(selector)
        start = root.rstrip("/")
        files = {i.path.removeprefix(start).lstrip("/"): i for i in infos if i.is_file}
        if not files:
            raise DataError(f"{url}: contains no files")
    return dict(sorted(files.items()))
