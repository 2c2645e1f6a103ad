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
NOT_A_FILE = "is a link or device; unpack the archive and give the folder"
EXTENSIONS = (  # types of tar headers that precede another one
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class Member(NamedTuple):
    """A regular file in an archive: its name, declared size and content, which must be read before the next member."""

    name: str
    size: int
    content: IO[bytes]


def is_archive(name: str) -> bool:
    """Whether a file with this name is an archive."""
    return name.lower().endswith(ENDINGS)


def unpack(archive: Path, target: Path) -> list[tuple[str, int, int]]:
    """Writes the regular files of an archive into the single file `target`: name, offset and size in bytes of each.

    Of members with the same name, the last one counts. Raises DataError for a damaged or encrypted archive, links,
    devices, too many members or bytes; `target` is deleted in this case.
    """
    left = max_unpacked(archive)
    found: dict[str, tuple[int, int]] = {}
    try:
        with reading(archive, "download or copy it again"), target.open("wb") as file:
            for member in members(archive):
                if len(found) == MAX_FILES:
                    raise DataError(f"contains more than {MAX_FILES} files")
                name, offset = _normalised(member.name), file.tell()
                found[name] = (offset, _copy(member, file, left))
                left -= found[name][1]
    except BaseException:
        target.unlink(missing_ok=True)
        raise
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


def _normalised(name: str) -> str:
    return PurePosixPath(name.replace("\\", "/")).as_posix().encode(errors="backslashreplace").decode()


def members(archive: Path | str, opened: Any = None) -> Iterator[Member]:
    """The regular files in a zip or tar archive, which may have been `opened`, if it is in a bucket."""
    size = opened.size() if opened else Path(archive).stat().st_size
    if str(archive).lower().endswith(".zip"):
        yield from _zip_members(opened or archive)
    else:
        yield from _tar_members(archive, opened, ALLOWANCE + MAX_RATIO * size)


def _zip_members(archive: Any) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            if info.external_attr >> 28 not in (0, 4, 8):  # Unix file type: 4 directory, 8 regular file, 10 link
                raise DataError(f"{info.filename!r} {NOT_A_FILE}")
            if not info.is_dir():
                with file.open(info) as content:
                    yield Member(info.filename, info.file_size, content)


class _Header(tarfile.TarInfo):
    """A tar header, rejected if tarfile would read more than `MAX_HEADER` bytes of names and attributes for it."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            info = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if not bytes(buf).strip(b"\0"):  # the end
                raise
            raise tarfile.ReadError(f"a header is damaged: {error}") from error  # tarfile would take it for the end
        if (info.type in EXTENSIONS and info.size > MAX_HEADER) or info.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(f"a header of type {info.type!r} with {info.size} bytes")
        return info


def _tar_members(archive: Path | str, opened: Any, limit: int) -> Iterator[Member]:
    with tarfile.open(archive, "r|*", opened, tarinfo=_Header) as file:
        while info := file.next():
            file.members.clear()  # type: ignore[attr-defined]  # tarfile would keep every header
            if info.offset_data > limit:
                raise DataError(f"unpacks to more than {MAX_RATIO} times its size")
            content = file.extractfile(info) if info.isreg() else None
            if content is not None:
                yield Member(info.name, info.size, content)
            elif not info.isdir():
                raise DataError(f"{info.name!r} {NOT_A_FILE}")
