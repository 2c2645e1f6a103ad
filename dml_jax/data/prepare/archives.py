"""Unpacking untrusted archives.

The members of an archive are concatenated into one file, so that no name in it is ever used as a path. Links and
devices are rejected, and the unpacked size is limited, with headers.
"""

import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, Self

from dml_jax.errors import DataError
from dml_jax.files import name_file, reading

ENDINGS = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tbz2", ".tar.xz")
MAX_FILES = 500_000  # in an archive
MAX_HEADER = 2**20  # bytes of a long name or of extended attributes in a tar archive
MAX_RATIO = 200  # unpacked bytes per byte of the archive, in addition to
ALLOWANCE = 64 * 2**20  # this number of bytes
CHUNK = 2**20  # bytes


class Member(NamedTuple):
    """A regular file in an archive: its name, declared size and content, which must be read before the next member."""

    name: str
    size: int
    content: IO[bytes]


def unpack(archive: Path, target: Path) -> list[tuple[str, int, int]]:
    """Writes the regular files of an archive into the single file `target`: name, offset and size in bytes of each.

    Of members with the same name, the last one counts. Raises DataError for a damaged or encrypted archive, links,
    devices, too many members or bytes.
    """
    most = max_unpacked(archive)
    found: dict[str, tuple[int, int]] = {}
    with reading(archive, "download or copy it again"), archive.open("rb") as opened, target.open("wb") as file:
        for member in members(archive.name, opened):
            if len(found) == MAX_FILES:
                raise DataError(f"contains more than {MAX_FILES} files")
            name, offset = PurePosixPath(member.name.replace("\\", "/")).as_posix(), file.tell()
            while chunk := member.content.read(CHUNK):  # its actual bytes count, not only the declared ones
                if file.tell() + len(chunk) > most or offset + member.size > most:
                    raise DataError(f"unpacks to more than {MAX_RATIO} times its size")
                with name_file(target):
                    file.write(chunk)
            found[name.encode(errors="backslashreplace").decode()] = (offset, file.tell() - offset)
    return [(name, offset, size) for name, (offset, size) in found.items()]


def max_unpacked(archive: Path) -> int:
    """The number of bytes to which a file may unpack."""
    return ALLOWANCE + MAX_RATIO * archive.stat().st_size


def members(name: str, archive: Any) -> Iterator[Member]:
    """The regular files in an opened zip or tar archive of this name."""
    return _zip(archive) if name.lower().endswith(".zip") else _tar(archive)


def _check_type(regular: bool, name: str) -> None:
    if not regular:
        raise DataError(f"{name!r} is a link or device; unpack the archive and give the folder")


def _zip(archive: Any) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as file:
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
    limit = ALLOWANCE + MAX_RATIO * archive.seek(0, os.SEEK_END)
    archive.seek(0)
    with tarfile.open(fileobj=archive, mode="r|*", tarinfo=_Header) as file:
        while info := file.next():
            file.members.clear()  # type: ignore[attr-defined]  # tarfile would keep every header
            if info.offset_data > limit:
                raise DataError(f"unpacks to more than {MAX_RATIO} times its size")
            if not info.isdir():
                _check_type(info.isreg(), info.name)
                yield Member(info.name, info.size, file.extractfile(info))  # type: ignore[arg-type]
