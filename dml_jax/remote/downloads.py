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
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from dml_jax.errors import UserError
from dml_jax.files import UNWRITABLE, locked, name_file, reason
from dml_jax.files import sha256 as sha256_of

CHUNK = 2**20  # bytes
SECONDS = 60.0  # without an answer
AGAIN = "try again, or "
MOVED = {404, 410}  # codes of HTTP for addresses without a file


class Source(NamedTuple):
    """A file to download."""

    url: str  # http or https address
    size: int | None = None  # in bytes; None if unknown
    sha256: str = ""  # hexadecimal, or its first digits; empty if unknown

    @property
    def name(self) -> str:
        """The last part of the address, without a query."""
        return PurePosixPath(urlsplit(self.url).path).name


class _Failed(Exception):
    """Why a download failed, what to do about it, and whether the bytes so far are worth keeping."""

    def __init__(self, why: str, remedy: str = AGAIN, *, keep: bool = True):
        super().__init__(why)
        self.remedy, self.keep = remedy, keep


def fetch(
    source: Source,
    target: Path,
    error: type[UserError],
    elsewhere: str,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Downloads a file to `target`; failures are of the type `error`, and end with how to get the file `elsewhere`."""
    part = target.with_name(f"{target.name}.part")
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(part, wait=False))
        except BlockingIOError:
            raise error(f"{source.url}: another process is downloading it to {part}; wait for it") from None
        stack.enter_context(name_file(part))
        file = stack.enter_context(part.open("ab"))
        try:
            _append(source, file, progress)
            file.flush()
            os.fsync(file.fileno())
            if not (digest := sha256_of(part)).startswith(source.sha256):
                raise _Failed(f"its SHA-256 is {digest} instead of {source.sha256}", keep=False)
            os.replace(part, target)
        except (_Failed, OSError, HTTPException, ValueError) as problem:
            if isinstance(problem, OSError) and problem.errno in UNWRITABLE:
                raise
            file.flush()
            cause = problem.reason if isinstance(problem, URLError) and isinstance(problem.reason, OSError) else problem
            failed = cause if isinstance(cause, _Failed) else _Failed(reason(cause))
            size = os.fstat(file.fileno()).st_size if source.sha256 and failed.keep else 0
            if not size:
                part.unlink()
            elif failed.remedy == AGAIN:
                failed.remedy = f"run the same command again to continue after {size} bytes, or "
            raise error(f"{source.url}: cannot be downloaded ({failed}); {failed.remedy}{elsewhere}") from None


def _append(source: Source, file: IO[bytes], progress: Callable[[int], None]) -> None:
    """Appends what is missing, or writes everything if the server does not send parts."""
    done = file.tell()
    if not source.sha256 or (source.size is not None and done > source.size):
        done = file.truncate(0)
    if done == source.size:
        return
    request = urllib.request.Request(source.url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        reply = urllib.request.urlopen(request, timeout=SECONDS)
    except HTTPError as error:
        error.close()
        if error.code == 416 and done:  # nothing follows these bytes; the SHA-256 shows whether they are the file
            return
        raise _Failed(f"HTTP {error.code}: {error.reason}", "" if error.code in MOVED else AGAIN) from error
    with reply:
        if reply.headers.get_content_type() == "text/html":
            raise _Failed("the answer is a web page instead of the file, which has moved", "")
        if reply.status != 206 or not str(reply.headers["Content-Range"]).startswith(f"bytes {done}-"):
            done = file.truncate(0)
            if reply.status != 200:
                raise _Failed(f"HTTP {reply.status}: not the part that was asked for")
        length = reply.headers["Content-Length"]
        total = source.size if length is None else done + int(length)
        if source.size not in (None, total):
            raise _Failed(f"it has {total} bytes instead of {source.size}: another file is at this address", "")
        while chunk := reply.read(CHUNK):
            file.write(chunk)
            done += len(chunk)
            progress(done)
            if total is not None and done > total:
                break
    if total is not None and done != total:
        raise _Failed(f"ended after {done} of {total} bytes")
