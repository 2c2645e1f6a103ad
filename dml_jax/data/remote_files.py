"""Files in buckets, gs:// and s3://, by the file systems of Arrow: data sets are copied to the machine's cache once.

URLs are those of `pyarrow.fs.FileSystem.from_uri`, e.g. gs://anonymous@bucket/photos for a public bucket.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from pyarrow import fs

from dml_jax.data import store
from dml_jax.errors import DataError, UserError
from dml_jax.files import atomic_write, cache_dir, name_file, reason

SECONDS = 60  # without an answer of Google Cloud Storage; Arrow would try for a quarter of an hour


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it."""
    limited = url.startswith("gs://") and "?" not in url
    system, path = fs.FileSystem.from_uri(f"{url}?retry_limit_seconds={SECONDS}" if limited else url)
    return system, path


@contextmanager
def _reaching(url: str, what: str = "read") -> Iterator[None]:
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
    """The files below a URL, sorted by their relative path, as `pyarrow.fs.FileInfo`; "" is the path of a single file.

    Raises DataError if there are none, or they cannot be listed.
    """
    with _reaching(url):
        system, root = _system(url)
        there = system.get_file_info(root)
        found = [there] if there.is_file else system.get_file_info(fs.FileSelector(root, recursive=True))
        if not any(info.is_file for info in found):
            raise DataError(f"{url}: there are no files")
    files = {info.path.removeprefix(root.rstrip("/")).lstrip("/"): info for info in found if info.is_file}
    return dict(sorted(files.items()))


def names(where: Path | str) -> list[str]:
    """The names of what is directly in a local directory or below a URL; empty if there is nothing at the URL."""
    if isinstance(where, Path):
        return os.listdir(where)
    with _reaching(where):
        system, root = _system(where)
        return [info.base_name for info in system.get_file_info(fs.FileSelector(root, allow_not_found=True))]


def content(file: Path | str) -> bytes:
    """The content of a local file, or of one at a URL."""
    if isinstance(file, Path):
        return file.read_bytes()
    with opened(file) as there:
        read: bytes = there.read()
        return read


@contextmanager
def written(file: Path | str) -> Iterator[Path]:
    """Context with a temporary path, whose file becomes a local one or is uploaded to a URL; it appears completely."""
    if isinstance(file, Path):
        with atomic_write(file) as draft:
            yield draft
        return
    with tempfile.TemporaryDirectory(prefix="dml_jax-") as directory:
        draft = Path(directory, "draft")
        yield draft
        with _reaching(file, "written"), draft.open("rb") as source:
            system, path = _system(file)
            with system.open_output_stream(path) as target:
                shutil.copyfileobj(source, target, 2**24)


def opened(url: str) -> Any:
    """A file in a bucket, a `pyarrow.NativeFile` for reading at any place; raises DataError if there is none."""
    with _reaching(url):
        system, path = _system(url)
        return system.open_input_file(path)


def staged(url: str) -> Path:
    """A local copy of the directory at a URL, made by one process of the machine and used again by all.

    An interrupted download is continued. The sizes of all files are checked, and for a prepared data set also their
    SHA-256. Files that are changed, added or removed in the bucket lead to another copy. Raises DataError if the files
    cannot be read, do not fit on the disk, or are damaged.
    """
    found = listed(url)
    listing = "".join(f"{name}\0{info.size}\0{info.mtime_ns}\n" for name, info in found.items())
    caches = cache_dir() / "staged"
    target = caches / hashlib.sha256(f"{url}\n{listing}".encode()).hexdigest()[:32]
    if target.is_dir():
        return target
    caches.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            draft = target.with_suffix(".part")
            _download(url, found, draft)
            try:
                if store.read_marker(draft):
                    store.verify(draft)
            except DataError as error:
                shutil.rmtree(draft)
                raise DataError(f"{url}: {str(error).replace(f'{draft}/', '')}") from error
            draft.rename(target)
    return target


def _download(url: str, found: dict[str, Any], draft: Path) -> None:
    """Downloads those files that `draft` does not hold."""
    if outside := [name for name in found if not name or ".." in PurePosixPath(name).parts]:
        raise DataError(f"{url}: is not a directory" if outside == [""] else f"{url}: {outside[0]!r} leads outside")
    draft.mkdir(exist_ok=True)
    missing = {
        name: info
        for name, info in found.items()
        if not ((path := draft / name).is_file() and path.stat().st_size == info.size)
    }
    needed, free = sum(info.size for info in missing.values()), shutil.disk_usage(draft).free
    if needed > free:
        raise DataError(
            f"{url}: {needed} bytes are to be copied to {draft.parent}, where {free} are free; make room, or set "
            "XDG_CACHE_HOME to a directory on a larger disk"
        )
    print(f"copying {len(missing):,} files, {needed / 2**20:,.0f} MiB, from {url} to {draft.parent}", flush=True)
    system, _ = _system(url)

    def copy(name: str) -> None:
        path = draft / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with name_file(path), system.open_input_stream(missing[name].path) as source, path.open("wb") as file:
            shutil.copyfileobj(source, file, 2**20)
        if path.stat().st_size != missing[name].size:
            raise DataError(f"{url}/{name}: ended after {path.stat().st_size} of {missing[name].size} bytes; try again")

    with _reaching(url), ThreadPoolExecutor(16) as pool:
        list(pool.map(copy, missing))
