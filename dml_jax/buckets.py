"""Runs in Google Cloud Storage.

A run in a bucket is used through a working copy: a local directory with all of its files but the checkpoints, which
orbax writes to the bucket directly. The copy is made when a command starts; what has changed in it is uploaded before a
checkpoint is marked as complete, and at the end. So a killed run continues from the bucket alone.
"""

import atexit
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dml_jax.errors import CheckpointError, UserError
from dml_jax.files import is_url, reason

LEASES = ".lease"  # in the bucket: objects with increasing numbers, of which the last one holds the run
RENEWAL = 15.0  # seconds between renewals of a lease
EXPIRY = 60.0  # seconds without one, after which another process takes the run over
IN_BUCKET = ("checkpoints/latest/", "checkpoints/best/", f"{LEASES}/")  # directories that are not copied


def check_url(option: str, url: str) -> str:
    """The URL of a run in Google Cloud Storage, without a slash at its end; CheckpointError for any other."""
    if not url.startswith("gs://"):
        raise CheckpointError(
            f"{option}={url}: checkpoints can only be written to gs:// URLs and directories (orbax refuses others); "
            "give one of these, e.g. where the bucket is mounted (mount-s3)"
        )
    if not url.removeprefix("gs://").strip("/").partition("/")[2]:
        raise CheckpointError(f"{option}={url}: is a whole bucket; give a directory in it, gs://bucket/directory")
    try:
        import gcsfs  # noqa: F401
    except ImportError:
        raise CheckpointError(f"{option}={url}: gcsfs is not installed: pip install gcsfs") from None
    return url.rstrip("/")


def _client() -> Any:
    """The client of the bucket, which also orbax uses; listings are never cached, because other processes write."""
    import fsspec

    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    return fsspec.filesystem("gcs")


@dataclass
class _Copy:
    """A working copy: its lease, if this process has it, and time and size of the files that are also in the bucket."""

    directory: Path
    url: str
    lease: str | None
    there: dict[str, list[int]] = field(default_factory=dict)


_copies: list[_Copy] = []  # of this process


def _copy_of(path: Path) -> _Copy | None:
    return next((copy for copy in _copies if path.absolute().is_relative_to(copy.directory)), None)


@contextmanager
def working_copy(option: str, url: str | Path, *, writing: bool, active: bool = True) -> Iterator[Path]:
    """A working copy of a run in a bucket, which is removed at the end; a path that is no URL is its own.

    Args:
      option: named in messages.
      writing: whether the run is written; one command at a time, as long as it renews its lease.
      active: False on all processes but the first, which holds the lease.

    Raises:
      CheckpointError: the bucket does not exist or may not be written, or another command uses the run.
    """
    if not is_url(url):
        yield Path(url)
        return
    url, done = check_url(option, str(url)), False
    with (
        tempfile.TemporaryDirectory(prefix="dml_jax-") as parent,
        _leased(option, url) if writing and active else nullcontext() as lease,
    ):
        copy = _Copy(Path(parent, url.rpartition("/")[2]), url, lease)
        copy.directory.mkdir()
        _copies.append(copy)
        try:
            with _reaching(option, url):
                pull(copy.directory)
            try:
                yield copy.directory
                done = True
            finally:
                if writing and (done or copy.there):
                    push(copy.directory)
        except UserError as error:
            raise type(error)(str(error).replace(str(copy.directory), url)) from error
        finally:
            _copies.remove(copy)


def read_copy(option: str, url: str) -> Path:
    """A working copy for reading, which is removed when the process ends; CheckpointError if it cannot be read."""
    until_exit = ExitStack()
    atexit.register(until_exit.close)
    return until_exit.enter_context(working_copy(option, url, writing=False))


def origin(path: Path) -> Path:
    """Where a path of a working copy is in the bucket; any other path is its own."""
    copy = _copy_of(path)
    if copy is None:
        return path.absolute()
    from etils import epath

    _client()  # before orbax
    return cast(Path, epath.Path(copy.url) / path.absolute().relative_to(copy.directory))


def pull(directory: Path) -> None:
    """Downloads the files of a run that its working copy lacks; does nothing with other directories."""
    copy = _copy_of(directory)
    if copy is None:
        return
    root, client = copy.url.removeprefix("gs://"), _client()

    def fetch(name: str) -> None:
        file = copy.directory / name
        draft = file.with_name(f".{file.name}")  # which is never uploaded
        file.parent.mkdir(parents=True, exist_ok=True)
        client.get_file(f"{root}/{name}", str(draft))
        draft.rename(file)

    names = [path.removeprefix(f"{root}/") for path in client.find(root)]
    missing = [
        n for n in names if not (any(d in n for d in IN_BUCKET) or n[-1:] == "/" or (copy.directory / n).exists())
    ]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fetch, missing))
    copy.there |= {name: _stamp(copy.directory / name) for name in missing}


def push(directory: Path) -> None:
    """Uploads what has changed in a working copy since it was made or uploaded; does nothing with other directories.

    `results.json`, which says that a run is finished, is the last. Raises CheckpointError if another process has taken
    the run over, or the bucket cannot be written.
    """
    copy = _copy_of(directory)
    if copy is None:
        return
    url, client = copy.url, _client()
    with _reaching("--workdir", url):
        if copy.lease and _newest_lease(client, url) != copy.lease:
            raise CheckpointError(f"{url}: another process has taken over this run, which had stopped responding")
        here = {
            path.relative_to(copy.directory).as_posix(): _stamp(path)
            for path in sorted(copy.directory.rglob("*"), key=lambda path: path.name == "results.json")
            if path.is_file() and not path.name.startswith(".")
        }
        for name, stamp in here.items():
            if copy.there.get(name) != stamp:
                client.put_file(str(copy.directory / name), f"{url}/{name}")
        for name in copy.there.keys() - here.keys():
            client.rm_file(f"{url}/{name}")
    copy.there = here


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_mtime_ns, status.st_size]


def objects(directory: Path) -> dict[str, dict[str, Any]]:
    """Size and CRC-32C, known to the bucket without reading them, of all objects below a directory in it."""
    root = str(directory).removeprefix("gs://")
    found: Mapping[str, Mapping[str, Any]] = _client().find(root, detail=True)
    return {
        path.removeprefix(f"{root}/"): {"size": about["size"], "crc32c": about["crc32c"]}
        for path, about in found.items()
        if not path.endswith("/")
    }


@contextmanager
def _reaching(option: str, url: str) -> Iterator[None]:
    """Within this context, a failure of the bucket is a CheckpointError; clients raise many types of exceptions."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"{option}={url}: there is no such bucket or object; create the bucket first") from None
    except Exception as error:
        raise CheckpointError(
            f"{option}={url}: cannot be used ({reason(error)}); check the name of the bucket and your rights to write "
            "to it (gcloud auth application-default login)"
        ) from error


@contextmanager
def _leased(option: str, url: str) -> Iterator[str]:
    """Holds a run in a bucket; the value is the name of the lease.

    An object is only created if there is none of its name, so that one of several processes gets it. A process that is
    killed leaves its lease behind, which is not renewed any more.
    """
    holder = f"{socket.gethostname()}, process {os.getpid()}, {uuid.uuid4().hex[:8]}".encode()
    with _reaching(option, url):
        client = _client()
        lease = _acquire(client, option, url, holder)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(RENEWAL):
            try:
                if client.cat_file(lease) != holder:
                    return
                client.pipe_file(lease, holder)
            except FileNotFoundError:
                return
            except Exception:  # the network may come back in time
                continue

    renewing = threading.Thread(target=renew, daemon=True)
    renewing.start()
    try:
        yield lease
    finally:
        ended.set()
        renewing.join()
        try:
            if client.cat_file(lease) == holder:
                client.rm_file(lease)
        except Exception:  # it expires
            pass


def _acquire(client: Any, option: str, url: str, holder: bytes) -> str:
    """Takes the lease; waits until one that is not renewed expires."""
    seen, since = None, time.monotonic()
    while newest := _newest_lease(client, url):
        try:
            generation, other = client.info(newest)["generation"], client.cat_file(newest).decode()
        except FileNotFoundError:
            continue
        if seen is None:
            print(f"{url}: in use by {other}, or was until it was killed; waiting up to {EXPIRY:.0f} s", flush=True)
            seen = (newest, generation)
        if (newest, generation) != seen:
            raise CheckpointError(f"{option}={url}: another run is using it ({other})")
        if time.monotonic() - since > EXPIRY:
            break
        time.sleep(RENEWAL / 5)
    number = int(newest.rpartition("/")[2]) + 1 if newest else 1
    lease = f"{url.removeprefix('gs://')}/{LEASES}/{number:09d}"
    try:
        client.pipe_file(lease, holder, mode="create")
    except FileExistsError:
        if client.cat_file(lease) != holder:  # and not a repetition, because the first answer was lost
            raise CheckpointError(f"{option}={url}: another run is using it") from None
    if newest:
        client.rm_file(newest)
    return lease


def _newest_lease(client: Any, url: str) -> str:
    return max(client.find(f"{url.removeprefix('gs://')}/{LEASES}"), default="")
