"""Hostile archives are rejected and leave no files behind."""

import io
import os
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dml_jax.data.prepare import archives
from dml_jax.errors import DataError


def zipped(
    path: Path, members: dict[str, bytes], mode: int = 0, compression: int = zipfile.ZIP_DEFLATED
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in members.items():
            info = zipfile.ZipInfo("placeholder")
            info.filename = name
            info.external_attr = mode << 16
            info.compress_type = compression
            file.writestr(info, data)
    return path


def tarred(path: Path, members: list[tarfile.TarInfo], compression: str = "gz") -> Path:
    with tarfile.open(path, f"w:{compression}") as file:
        for info in members:
            file.addfile(info, io.BytesIO(b"x" * info.size))
    return path


def info(
    name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = ""
) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname = kind, size, link
    return member


@pytest.mark.parametrize("name", ["good.zip", "good.tar", "good.tgz"])
def test_unpacks_regular_files(tmp_path: Path, name: str) -> None:
    content = {
        "a/b.jpg": b"picture",
        "a/ä ö.png": b"",
        "list.txt": os.urandom(3 * archives.CHUNK + 1),
    }
    path = tmp_path / name
    if name.endswith("zip"):
        zipped(path, content)
    else:
        with tarfile.open(path, "w:" if name.endswith(".tar") else "w:gz") as file:
            file.addfile(info("./", tarfile.DIRTYPE))
            file.addfile(info("a", tarfile.DIRTYPE))
            for member, data in content.items():
                file.addfile(info(f"./{member}", size=len(data)), io.BytesIO(data))
    found = archives.unpack(path, tmp_path / "blob")
    blob = (tmp_path / "blob").read_bytes()
    assert {member: blob[offset : offset + size] for member, offset, size in found} == content


LINK = 0o120777
BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "zip link": (lambda p: zipped(p / "x.zip", {"l": b"/etc/passwd"}, LINK), "link or device"),
    "tar link": (
        lambda p: tarred(p / "x.tar.gz", [info("l", tarfile.LNKTYPE, link="../x")]),
        "link or device",
    ),
    "pipe": (lambda p: tarred(p / "x.tar.gz", [info("d", tarfile.FIFOTYPE)]), "link or device"),
    "not an archive": (lambda p: _written(p / "x.zip", b"hello"), "is truncated or damaged"),
    "truncated": (lambda p: _truncated(p), "is truncated or damaged"),
    "second tar header": (lambda p: _second_header(p), "a header is damaged"),
}


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _second_header(folder: Path) -> Path:
    """tarfile itself would take this archive for one with a single member."""
    path = tarred(folder / "x.tar", [info("a", size=100), info("b", size=100)], "")
    data = bytearray(path.read_bytes())
    data[1024 + 3] ^= 1
    return _written(path, bytes(data))


def _truncated(folder: Path) -> Path:
    path = tarred(folder / "x.tgz", [info("a", size=100_000)])
    return _written(path, path.read_bytes()[:-100])


@pytest.mark.parametrize("kind", BAD)
def test_rejects(tmp_path: Path, kind: str) -> None:
    make, message = BAD[kind]
    archive = make(tmp_path)
    with pytest.raises(DataError, match=message):
        archives.unpack(archive, tmp_path / "blob")
    assert {path.name for path in tmp_path.iterdir()} <= {archive.name, "blob"}


def test_names_are_no_paths(tmp_path: Path) -> None:
    """Names that lead elsewhere or are not UTF-8 are only names; of two equal ones, the last
    counts."""
    path = zipped(tmp_path / "x.zip", {"a/../../x": b"12", "/etc/x": b"3", "C:\\x": b"4"})
    assert archives.unpack(path, tmp_path / "blob") == [
        ("a/../../x", 0, 2),
        ("/etc/x", 2, 1),
        ("C:/x", 3, 1),
    ]
    with tarfile.open(
        tmp_path / "x.tar", "w:", format=tarfile.GNU_FORMAT, encoding="latin-1"
    ) as file:
        file.addfile(info("ä.jpg"))
    assert archives.unpack(tmp_path / "x.tar", tmp_path / "blob") == [("\\udce4.jpg", 0, 0)]
    twice = tarred(tmp_path / "x.tgz", [info("a", size=1), info("./a", size=2)])
    assert archives.unpack(twice, tmp_path / "blob") == [("a", 1, 2)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["blob", "x.tar", "x.tgz", "x.zip"]


def test_rejects_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "ALLOWANCE", 2**20)
    bomb = zipped(tmp_path / "x.zip", {f"{i}": bytes(2**20) for i in range(8)})
    assert bomb.stat().st_size < 20_000
    with pytest.raises(DataError, match="200 times"):
        archives.unpack(bomb, tmp_path / "blob")
    tar = tarred(tmp_path / "x.tgz", [info("zeros", size=2**24)])
    with pytest.raises(DataError, match="200 times"):
        archives.unpack(tar, tmp_path / "blob")


def test_bombs_are_rejected_by_their_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a member is read: also many that share their bytes, empty ones, and a sparse file in a
    tar archive."""
    monkeypatch.setattr(archives, "ALLOWANCE", 2**20)
    empty = zipped(tmp_path / "empty.zip", {str(i): b"" for i in range(12_000)})
    monkeypatch.setattr(archives, "MAX_RATIO", 0)
    one = zipped(tmp_path / "one.zip", {"0": bytes(2**19)})
    with zipfile.ZipFile(one) as file:
        file.filelist *= 3  # of the same place
        file._didModify = True  # type: ignore[attr-defined]
        monkeypatch.setattr(zipfile, "ZipFile", lambda opened: file)
        with pytest.raises(DataError, match="unpacks to more than"), one.open("rb") as opened:
            next(archives.members("one.zip", opened))
        monkeypatch.undo()
    monkeypatch.setattr(archives, "ALLOWANCE", 2**20)
    monkeypatch.setattr(archives, "MAX_RATIO", 0)
    sparse = tarfile.TarInfo("zeros")
    sparse.size, sparse.type = 0, tarfile.GNUTYPE_SPARSE
    head = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
    head[483:495] = b"%011o\0" % 2**30  # the size of the whole file
    head[148:156] = b"        "
    head[148:156] = b"%06o\0 " % sum(head)
    (tmp_path / "sparse.tar").write_bytes(bytes(head) + bytes(1024))
    for path in (empty, tmp_path / "sparse.tar"):
        with pytest.raises(DataError, match="unpacks to more than"), path.open("rb") as opened:
            next(archives.members(path.name, opened))


def test_arrays_are_not_larger_than_their_file(tmp_path: Path) -> None:
    path, rows = (
        tmp_path / "x.npz",
        {"rows": np.eye(3, dtype=np.float32), "names": np.array(["a", "Ü"]), "none": []},
    )
    np.savez(path, **rows)
    with path.open("rb") as file:
        found = archives.arrays(file)
    assert list(found) == list(rows)
    for name, array in rows.items():
        np.testing.assert_array_equal(found[name], array, strict=isinstance(array, np.ndarray))
    np.savez_compressed(path, rows=np.zeros(2**20))
    with pytest.raises(DataError, match="larger than the file"), path.open("rb") as file:
        archives.arrays(file)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)}
    )
    zipped(path, {"rows.npy": header.getvalue()}, compression=zipfile.ZIP_STORED)
    with (
        pytest.raises(DataError, match=r"rows\.npy: is shorter than its shape \[1099511627776\]"),
        path.open("rb") as file,
    ):
        archives.arrays(file)
    np.savez(path, rows=np.array([None]))
    with pytest.raises(ValueError, match="allow_pickle"), path.open("rb") as file:
        archives.arrays(file)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_rejects_large_headers(tmp_path: Path, kind: bytes) -> None:
    """tarfile reads and parses a header at once: one of 1.2 GB took 2.3 GB of memory and
    minutes."""
    path = tarred(tmp_path / "x.tgz", [info("header", kind, 2**25), info("a", size=1)])
    tracemalloc.start()
    with pytest.raises(
        DataError, match=r"is truncated or damaged \(a header of type b'.' with 33554432 bytes"
    ):
        archives.unpack(path, tmp_path / "blob")
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_rejects_many_headers_without_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "ALLOWANCE", 2**20)
    path = tarred(
        tmp_path / "x.tgz",
        [info(str(i), tarfile.DIRTYPE) for i in range(10_000)] + [info("a", size=1)],
    )
    assert path.stat().st_size < 60_000
    monkeypatch.setattr(archives, "MAX_RATIO", 20)
    with pytest.raises(DataError, match="unpacks to more than 20 times its size"):
        archives.unpack(path, tmp_path / "blob")


def test_rejects_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_FILES", 10)
    for archive in (
        zipped(tmp_path / "x.zip", {str(i): b"" for i in range(11)}),
        tarred(tmp_path / "x.tgz", [info(str(i)) for i in range(11)]),
    ):
        with pytest.raises(DataError, match="more than 10 files"):
            archives.unpack(archive, tmp_path / "blob")
    assert (
        len(
            archives.unpack(
                zipped(tmp_path / "y.zip", {str(i): b"" for i in range(10)}), tmp_path / "blob"
            )
        )
        == 10
    )
