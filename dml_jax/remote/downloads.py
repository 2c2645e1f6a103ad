"""Downloading a file completely or not at all, with its length and SHA-256 checked.

If the SHA-256 is known, an interrupted download is continued: the bytes so far are beside the file, in `<name>.part`.
Without one, nothing would show that the rest belongs to them, and they are not kept.
"""

import os
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlsplit

from dml_jax.errors import UserError
from dml_jax.files import UNWRITABLE, locked, name_file, reason
from dml_jax.files import sha256 as sha256_of

CHUNK = 2**20  # bytes
SECONDS = 60.0  # without an answer


class Source(NamedTuple):
    """A file to download."""

    url: str  # http or https address
    size: int | None = None  # in bytes; None if unknown
    sha256: str = ""  # hexadecimal, or its first digits; empty if unknown

    @property
    def name(self) -> str:
        """The last part of the address, without a query."""
        return PurePosixPath(urlsplit(self.url).path).name


def fetch(
    source: Source,
    target: Path,
    error: type[UserError],
    elsewhere: str,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Downloads a file to `target`; failures are of the type `error`, and end with `elsewhere`, another source."""
    part = target.with_name(f"{target.name}.part")
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(part, wait=False))
            stack.enter_context(name_file(part))
            with part.open("ab") as file:
                _append(source, file, progress)
                os.fsync(file.fileno())
            if not (digest := sha256_of(part)).startswith(source.sha256):
                part.unlink()
                raise ValueError(f"its SHA-256 is {digest} instead of {source.sha256}")
            os.replace(part, target)
        except (OSError, HTTPException, ValueError) as problem:
            if isinstance(problem, OSError) and problem.errno in UNWRITABLE:
                raise
            why, again = reason(problem), "try again"
            if isinstance(problem, BlockingIOError):
                why = f"another process is downloading it to {part}"
            elif source.sha256 and part.exists() and (size := part.stat().st_size):
                again = f"run the same command again to continue after {size} bytes"
            else:
                part.unlink(missing_ok=True)
            raise error(f"{source.url}: cannot be downloaded ({why}); {again}, or {elsewhere}") from None


def _append(source: Source, file: IO[bytes], progress: Callable[[int], None]) -> None:
    """Appends the missing part, or writes everything if the server does not send parts; ValueError for another file."""
    done = file.tell()
    if not source.sha256 or (source.size is not None and done > source.size):
        done = file.truncate(0)
    if done == source.size:
        return
    request = urllib.request.Request(source.url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        reply = urllib.request.urlopen(request, timeout=SECONDS)
    except HTTPError as error:
        if error.code == 416 and done:  # nothing follows these bytes; the SHA-256 shows whether they are the file
            return
        raise
    with reply:
        if reply.status != 206 or not str(reply.headers["Content-Range"]).startswith(f"bytes {done}-"):
            done = file.truncate(0)
        length = reply.headers["Content-Length"]
        total = source.size if length is None else done + int(length)
        if reply.headers.get_content_type() == "text/html" or source.size not in (None, total):
            raise ValueError(f"{reply.headers.get_content_type()} of {total} bytes: the file has moved or changed")
        while chunk := reply.read(CHUNK):
            file.write(chunk)
            done += len(chunk)
            progress(done)
    if total is not None and done != total:
        raise ValueError(f"ended after {done} of {total} bytes")
