"""Unpacking archives that may be hostile.

The members of an archive become one file, one behind the other, so that no name in it is ever used as a path. Names
that lead outside, links and devices are refused all the same, and nothing grows without bound.
"""

import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, NamedTuple

from dml_jax.errors import DataError

ENDINGS = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tbz2", ".tar.xz")
MEMBERS = 500_000  # files in an archive
GROWTH = 200  # bytes unpacked for a byte of archive, beyond
ALLOWANCE = 64 * 2**20  # so many bytes
CHUNK = 2**20


class Member(NamedTuple):
    """A regular file in an archive: its name, the size announced and its content, to be read before the next."""

    name: str
    size: int
    content: IO[bytes]


def is_archive(name: str) -> bool:
    """Whether a file of that name is one."""
    return name.lower().endswith(ENDINGS)


def unpack(archive: Path, target: Path) -> list[tuple[str, int, int]]:
    """Writes the regular files of a zip or tar archive into the one file `target`.

    Returns:
      (name, offset in bytes, size in bytes) of each.

    Raises:
      DataError: damaged or encrypted; members that are links or devices, lead outside, come twice, or are too many;
        more bytes than an archive of images can hold. `target` is gone then.
    """
    left = ALLOWANCE + GROWTH * archive.stat().st_size
    found: dict[str, tuple[int, int]] = {}
    try:
        with target.open("wb") as file:
            for member in _members(archive):
                name = _inside(archive, member.name)
                if name in found:
                    raise DataError(f"{archive}: holds {name!r} twice")
                if len(found) == MEMBERS:
                    raise DataError(f"{archive}: more than {MEMBERS} files")
                offset = file.tell()
                found[name] = (offset, _copy(archive, member, file, left))
                left -= found[name][1]
    except DataError:
        target.unlink()
        raise
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        EOFError,
        OSError,
        RuntimeError,
        ValueError,
        NotImplementedError,
    ) as error:
        target.unlink(missing_ok=True)
        raise DataError(f"{archive}: cannot be unpacked, {str(error) or type(error).__name__}") from error
    return [(name, offset, size) for name, (offset, size) in found.items()]


def _copy(archive: Path, member: Member, file: IO[bytes], left: int) -> int:
    """Copies a member, counting what really comes out of it; returns the bytes."""
    written = 0
    while chunk := member.content.read(CHUNK):
        written += len(chunk)
        if written > left or member.size > left:
            raise DataError(f"{archive}: unpacks to more than {GROWTH} times its size")
        file.write(chunk)
    if written != member.size:
        raise DataError(f"{archive}: {member.name!r} has {written} bytes, {member.size} are announced")
    return written


def _inside(archive: Path, name: str) -> str:
    """The member's path in the archive.

    Raises:
      DataError: it leads outside, or is no name.
    """
    path = PurePosixPath(name.replace("\\", "/"))
    outside = path.is_absolute() or PureWindowsPath(name).drive or ".." in path.parts
    if outside or not path.parts or "\0" in name or len(name) > 1024:
        raise DataError(f"{archive}: {name[:200]!r} leads outside the archive or is no file name; refused")
    try:
        return path.as_posix().encode().decode()
    except UnicodeEncodeError as error:
        raise DataError(f"{archive}: the name {name!r} is not UTF-8") from error


def _members(archive: Path) -> Iterator[Member]:
    yield from _zipped(archive) if archive.name.lower().endswith(".zip") else _tarred(archive)


def _zipped(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as file:
        if len(file.infolist()) > MEMBERS:
            raise DataError(f"{archive}: more than {MEMBERS} files")
        for info in file.infolist():
            if info.external_attr >> 28 not in (0, 4, 8):  # Unix mode: 4 a directory, 8 a file, 10 a link
                raise DataError(f"{archive}: {info.filename!r} is a link or device; refused")
            if info.flag_bits & 1:
                raise DataError(f"{archive}: is encrypted; unpack it and give the folder")
            if info.is_dir():
                _inside(archive, info.filename)
                continue
            with file.open(info) as content:
                yield Member(info.filename, info.file_size, content)


def _tarred(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive, "r|*") as file:
        for info in file:
            content = file.extractfile(info) if info.isreg() else None
            if content is not None:
                yield Member(info.name, info.size, content)
            elif not info.isdir():
                raise DataError(f"{archive}: {info.name!r} is a link or device; refused")
            elif PurePosixPath(info.name).parts:
                _inside(archive, info.name)
