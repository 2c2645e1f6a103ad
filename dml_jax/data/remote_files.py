"""Files in buckets, gs:// and s3://, by the file systems of Arrow: data sets are copied to the machine's cache once.

URLs are those of `pyarrow.fs.FileSystem.from_uri`, e.g. gs://anonymous@bucket/photos for a public bucket.
"""

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
from dml_jax.files import atomic_directory, atomic_write, cache_dir, locked, reason

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

    Files that are changed, added or removed in the bucket lead to another copy. The SHA-256 of a prepared data set are
    checked. Raises DataError if the files cannot be read or are damaged.
    """
    found = listed(url)
    if outside := [name for name in found if not name or ".." in PurePosixPath(name).parts]:
        raise DataError(f"{url}: is not a directory" if outside == [""] else f"{url}: {outside[0]!r} leads outside")
    listing = "".join(f"{name}\0{info.size}\0{info.mtime_ns}\n" for name, info in found.items())
    caches = cache_dir() / "staged"
    target = caches / hashlib.sha256(f"{url}\n{listing}".encode()).hexdigest()[:32]
    caches.mkdir(parents=True, exist_ok=True)
    with locked(target.with_suffix(".part")):
        if not target.is_dir():
            size = sum(info.size for info in found.values())
            print(f"copying {len(found):,} files, {size / 2**20:,.0f} MiB, from {url} to {caches}", flush=True)
            with atomic_directory(target) as draft, _reaching(url):
                system, _ = _system(url)

                def copy(name: str) -> None:
                    path = draft / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with system.open_input_stream(found[name].path) as source, path.open("wb") as file:
                        shutil.copyfileobj(source, file, 2**20)
                    if path.stat().st_size != found[name].size:
                        raise DataError(f"{url}/{name}: ended after {path.stat().st_size} bytes; try again")

                with ThreadPoolExecutor(16) as pool:
                    list(pool.map(copy, found))
                try:
                    if store.read_marker(draft):
                        store.verify(draft)
                except DataError as error:
                    raise DataError(f"{url}: {str(error).replace(f'{draft}/', '')}") from error
    return target
