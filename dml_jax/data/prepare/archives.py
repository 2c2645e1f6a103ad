"""Unpacking untrusted archives.

The members of an archive are concatenated into one file, so that no name in it is ever used as a path. Links and
devices are rejected, and the unpacked size is limited, with headers.
"""

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
    left = max_unpacked(archive)
    found: dict[str, tuple[int, int]] = {}
    with reading(archive, "download or copy it again"), target.open("wb") as file:
        for member in members(archive):
            if len(found) == MAX_FILES:
                raise DataError(f"contains more than {MAX_FILES} files")
            name, offset = PurePosixPath(member.name.replace("\\", "/")).as_posix(), file.tell()
            size = _copy(member, file, left)
            found[name.encode(errors="backslashreplace").decode()] = (offset, size)
            left -= size
    return [(name, offset, size) for name, (offset, size) in found.items()]


def max_unpacked(archive: Path) -> int:
    """The number of bytes to which a file may unpack."""
    return ALLOWANCE + MAX_RATIO * archive.stat().st_size


def _copy(member: Member, file: IO[bytes], left: int) -> int:
    """Copies a member, counting the actual bytes; returns their number."""
    written = 0
    while chunk := member.content.read(CHUNK):
        written += len(chunk)
        if written > left or member.size > left:
            raise DataError(f"unpacks to more than {MAX_RATIO} times its size")
        with name_file(Path(file.name)):
            file.write(chunk)
    return written


def members(archive: Path | str, opened: Any = None) -> Iterator[Member]:
    """The regular files in a zip or tar archive, or in the `opened` one in a bucket."""
    if str(archive).lower().endswith(".zip"):
        return _zip(opened or archive)
    size = opened.size() if opened else Path(archive).stat().st_size
    return _tar(archive, opened, ALLOWANCE + MAX_RATIO * size)


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


def _tar(archive: Path | str, opened: Any, limit: int) -> Iterator[Member]:
    with tarfile.open(archive, "r|*", opened, tarinfo=_Header) as file:
        while info := file.next():
            file.members.clear()  # type: ignore[attr-defined]  # tarfile would keep every header
            if info.offset_data > limit:
                raise DataError(f"unpacks to more than {MAX_RATIO} times its size")
            if not info.isdir():
                _check_type(info.isreg(), info.name)
                yield Member(info.name, info.size, file.extractfile(info))  # type: ignore[arg-type]
