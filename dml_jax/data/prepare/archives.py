"""Unpacking untrusted archives, and the limits of every file that contains others or is compressed.

The members of an archive are concatenated into one file, so that no name in it is ever used as a
path. Links and devices are rejected. The unpacked size, with headers, is limited by
`check_unpacked` before anything is read.
"""

import io
import math
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.lib import format as npy

from dml_jax.errors import DataError
from dml_jax.files import name_file, reading

ENDINGS = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tbz2", ".tar.xz")
MAX_FILES = 500_000  # members of an archive
MAX_HEADER = 2**20  # bytes of a long name or of extended attributes in a tar archive
MAX_RATIO = 200  # unpacked bytes per byte of the archive, in addition to `ALLOWANCE`
ALLOWANCE = 64 * 2**20  # bytes
OVERHEAD = 100  # bytes that each member or row counts in addition to its content
CHUNK = 2**20  # bytes


class Member(NamedTuple):
    """A regular file in an archive; its content must be read before the next member."""

    name: str
    size: int
    content: IO[bytes]


def unpack(archive: Path, target: Path) -> list[tuple[str, int, int]]:
    """Joins the regular files of an archive in the file `target`: name, offset, size of each.

    If members have the same name, the last one counts. Raises DataError for a damaged or encrypted
    archive, links, devices, too many members or bytes.
    """
    found: dict[str, tuple[int, int]] = {}
    with (
        reading(archive, "download or copy it again"),
        archive.open("rb") as opened,
        target.open("wb") as file,
    ):
        for member in members(archive.name, opened):
            if len(found) == MAX_FILES:
                raise DataError(f"contains more than {MAX_FILES} files")
            offset = file.tell()
            while chunk := member.content.read(CHUNK):
                with name_file(target):
                    file.write(chunk)
            name = PurePosixPath(member.name.replace("\\", "/")).as_posix()
            name = name.encode(errors="backslashreplace").decode()
            found[name] = offset, file.tell() - offset
    return [(name, offset, size) for name, (offset, size) in found.items()]


def check_unpacked(unpacked: int, size: int) -> None:
    """Raises DataError if a file of `size` bytes unpacks to more bytes than it may."""
    if unpacked > ALLOWANCE + MAX_RATIO * size:
        remedy = "if it is yours, give the images as files"
        raise DataError(f"unpacks to more than {MAX_RATIO} times its size; {remedy}")


def length(file: IO[bytes]) -> int:
    """Size in bytes of an opened file, which is then at its beginning."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def members(name: str, archive: Any) -> Iterator[Member]:
    """The regular files in an opened zip or tar archive; raises the DataErrors of `unpack`."""
    return _zip(archive) if name.lower().endswith(".zip") else _tar(archive)


def arrays(file: IO[bytes]) -> dict[str, np.ndarray]:
    """The arrays of an uncompressed .npz file; DataError if it declares more than its size."""
    size, found = length(file), {}
    with zipfile.ZipFile(file) as archive:
        if sum(info.file_size for info in archive.infolist()) > size:
            raise DataError("declares arrays that are larger than the file")
        for info in archive.infolist():
            content = io.BytesIO(archive.read(info))
            old = npy.read_magic(content) == (1, 0)
            read_header = npy.read_array_header_1_0 if old else npy.read_array_header_2_0
            shape, _, dtype = read_header(content)
            # NumPy would allocate the whole array.
            if math.prod(shape) * dtype.itemsize > info.file_size - content.tell():
                raise DataError(f"{info.filename}: is shorter than its shape {list(shape)}")
            content.seek(0)
            found[info.filename.removesuffix(".npy")] = npy.read_array(content, allow_pickle=False)
    return found


def _check_type(regular: bool, name: str) -> None:
    if not regular:
        raise DataError(f"{name!r} is a link or device; unpack the archive and give the folder")


def _zip(archive: Any) -> Iterator[Member]:
    size = length(archive)
    with zipfile.ZipFile(archive) as file:
        # No member gives more bytes than it declares, even if several share compressed bytes.
        check_unpacked(sum(info.file_size + OVERHEAD for info in file.infolist()), size)
        for info in file.infolist():
            # Unix file type: 4 directory, 8 regular file, 10 link
            _check_type(info.external_attr >> 28 in (0, 4, 8), info.filename)
            if not info.is_dir():
                with file.open(info) as content:
                    yield Member(info.filename, info.file_size, content)


class _Header(tarfile.TarInfo):
    """A tar header; tarfile would take a damaged one for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            info = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if not bytes(buf).strip(b"\0"):  # the end
                raise
            raise tarfile.ReadError(f"a header is damaged: {error}") from error
        if info.size > MAX_HEADER and not info.isreg():  # tarfile would read it at once
            raise tarfile.ReadError(f"a header of type {info.type!r} with {info.size} bytes")
        return info


def _tar(archive: Any) -> Iterator[Member]:
    size, unpacked = length(archive), 0
    # Each of its reads is unpacked as a whole, to up to 20,000 times this size.
    with tarfile.open(fileobj=archive, mode="r|*", tarinfo=_Header, bufsize=2048) as file:
        while info := file.next():
            file.members.clear()  # type: ignore[attr-defined]  # tarfile would keep every header
            unpacked += info.size  # more than the archive holds if the file is sparse
            check_unpacked(max(unpacked, info.offset_data + info.size), size)
            if not info.isdir():
                _check_type(info.isreg(), info.name)
                yield Member(info.name, info.size, file.extractfile(info))  # type: ignore[arg-type]
