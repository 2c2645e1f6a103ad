"""Downloading a file completely or not at all, with its length and SHA-256 checked."""

import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from dml_jax.errors import UNWRITABLE, DataError
from dml_jax.files import atomic_write, reason
from dml_jax.files import sha256 as sha256_of

CHUNK = 2**20  # bytes
SECONDS = 60.0  # without an answer


class Download(NamedTuple):
    """A file to download."""

    url: str  # http or https address
    size: int  # in bytes
    sha256: str  # hexadecimal

    @property
    def name(self) -> str:
        """The last part of the address, without a query."""
        return PurePosixPath(urlsplit(self.url).path).name


def fetch(wanted: Download, target: Path, elsewhere: str, progress: Callable[[int], None]) -> None:
    """Downloads a file to `target`; failures are DataErrors that end with `elsewhere`, another
    source."""
    try:
        with atomic_write(target) as draft:
            with (
                draft.open("wb") as file,
                urllib.request.urlopen(wanted.url, timeout=SECONDS) as reply,
            ):
                length = int(reply.headers["Content-Length"] or wanted.size)
                kind, done = reply.headers.get_content_type(), 0
                if kind == "text/html" or length != wanted.size:
                    raise ValueError(f"{kind} of {length} bytes: the file has moved or changed")
                while chunk := reply.read(CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    progress(done)
            if done != wanted.size:
                raise ValueError(f"ended after {done} of {wanted.size} bytes")
            if (digest := sha256_of(draft)) != wanted.sha256:
                raise ValueError(f"its SHA-256 is {digest} instead of {wanted.sha256}")
    except (OSError, HTTPException, ValueError) as problem:
        if isinstance(problem, OSError) and problem.errno in UNWRITABLE:
            raise
        raise DataError(
            f"{wanted.url}: cannot be downloaded ({reason(problem)}); try again, or {elsewhere}"
        ) from None
