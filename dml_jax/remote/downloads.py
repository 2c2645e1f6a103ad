"""Downloads a file completely or not at all; verifies its length and SHA-256."""

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
        """The last part of the URL, without a query."""
        return PurePosixPath(urlsplit(self.url).path).name


def fetch(
    download: Download, target: Path, alternative: str, progress: Callable[[int], None]
) -> None:
    """Downloads a file to `target`; DataError on failure, which ends with `alternative`, another
    source."""
    try:
        with atomic_write(target) as draft:
            with (
                draft.open("wb") as file,
                urllib.request.urlopen(download.url, timeout=SECONDS) as reply,
            ):
                length = int(reply.headers["Content-Length"] or download.size)
                content_type, done = reply.headers.get_content_type(), 0
                if content_type == "text/html" or length != download.size:
                    raise ValueError(
                        f"{content_type} of {length} bytes: the file has moved or changed"
                    )
                while chunk := reply.read(CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    progress(done)
            if done != download.size:
                raise ValueError(f"ended after {done} of {download.size} bytes")
            if (digest := sha256_of(draft)) != download.sha256:
                raise ValueError(f"its SHA-256 is {digest} instead of {download.sha256}")
    except (OSError, HTTPException, ValueError) as problem:
        if isinstance(problem, OSError) and problem.errno in UNWRITABLE:
            raise
        raise DataError(
            f"{download.url}: cannot be downloaded ({reason(problem)}); try again, or {alternative}"
        ) from None
