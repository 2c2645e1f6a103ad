"""Tables of embeddings: what is written, what is refused, and growth by chunks."""

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_jax import files, table
from dml_jax.errors import DataError
from tests.processes import KILLED, ended, forked
from tests.tiny_model import identity

ROWS = np.eye(3, 4, dtype=np.float32)
VALUES = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)


def write(directory: Path) -> table.Table:
    return table.write(directory, ROWS, np.array([0, 1, 1]), ["a", "b", "c"], identity=identity(7))


def test_what_is_written(tmp_path: Path) -> None:
    write(tmp_path / "out")
    written = write(tmp_path / "out")  # replaces its own output
    np.testing.assert_equal(written._asdict(), table.read(tmp_path / "out")._asdict())
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "embeddings.npy"), ROWS)
    content = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert content["about"]["shapes"] == {"embeddings.npy": [3, 4], "labels.npy": [3]}
    assert content["about"]["dtypes"] == {"embeddings.npy": "float32", "labels.npy": "int64"}
    assert content["files"].keys() == {"embeddings.npy", "labels.npy", "ids.json"}
    for name, known in content["files"].items():
        written_file = (tmp_path / "out" / name).read_bytes()
        assert known == {"size": len(written_file), "sha256": hashlib.sha256(written_file).hexdigest()}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_metadata_and_names_that_are_not_utf8(tmp_path: Path) -> None:
    """A table without metadata then replaces one with it, and what a killed writer left."""
    columns = {"shop": ["north", None, "süd"], "price": [1, 2.5, None], "sold": [True, False, None]}
    labels, names = np.array([0, 1, 1]), ["a", "\udcff", "c"]
    table.write(tmp_path / "e", ROWS, labels, names, identity=identity(7), metadata=columns)
    assert json.loads((tmp_path / "e" / "metadata.json").read_text()) == columns
    assert table.read(tmp_path / "e").metadata == columns
    assert table.read(tmp_path / "e").ids == names
    (tmp_path / "e" / ".manifest.json.abcdefgh.tmp").touch()
    write(tmp_path / "e")
    assert table.read(tmp_path / "e").metadata == {}
    written = {"embeddings.npy", "labels.npy", "ids.json", "manifest.json"}
    assert {path.name for path in (tmp_path / "e").iterdir()} == written


def test_what_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories with other files, files and broken links; the current directory is."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "x.jpg").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "link")
    with pytest.raises(DataError, match=r"contains x.jpg, which is not an exported file"):
        write(tmp_path / "photos")
    for name in ("file", "file/a/b", "link"):
        with pytest.raises(DataError, match=f"{name}: a file or a broken link is in the way; give"):
            write(tmp_path / name)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "link", "photos", "x.jpg"]
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write(Path("."))
    assert (tmp_path / "here" / "embeddings.npy").exists()


def test_a_full_disk_is_named_and_gets_its_space_back(tmp_path: Path, full_disk: Any) -> None:
    with full_disk(140), pytest.raises(OSError, match="File too large") as caught:  # the embeddings have more bytes
        write(tmp_path / "test")
    assert caught.value.filename == str(tmp_path / "test")
    assert list(tmp_path.iterdir()) == []


FILES = 6


@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    """Files, whose contents need not be images here."""
    (tmp_path / "photos").mkdir()
    for i in range(FILES):
        (tmp_path / "photos" / f"{i}.jpg").write_text(f"content {i}")
    return [str(tmp_path / "photos" / f"{i}.jpg") for i in range(FILES)]


def row_of(content: bytes) -> np.ndarray:
    row = np.random.default_rng([*content]).normal(size=4).astype(np.float32)
    return row / np.linalg.norm(row)


def embed(chunk: Path, names: list[str], model: int = 7) -> None:
    """Stands for any process that embeds a chunk; the content "bad" is unusable."""
    contents = [Path(name).read_bytes() for name in names]
    usable = [name for name, content in zip(names, contents, strict=True) if content != b"bad"]
    rows = np.array([row_of(Path(name).read_bytes()) for name in usable]).reshape(-1, 4)
    contents = {"sha256": [files.sha256(Path(name)) for name in usable]}
    unusable = {name: "no image" for name in names if name not in usable}
    table.write(chunk, rows, None, usable, identity=identity(model), metadata=contents, unusable=unusable)


def grow(out: Path, names: list[str], chunks: int = 99, model: int = 7) -> table.Table | None:
    """Embeds what is missing in chunks of two, the last first; None if so many do not suffice."""
    with table.growing(out, identity(model)) as grown:
        missing = grown.missing(names)
        planned = [(grown.new_chunk(), missing[i : i + 2]) for i in range(0, len(missing), 2)]
        for chunk, part in planned[::-1][:chunks]:
            embed(chunk, part, model)
            grown.append(chunk)
        return grown.finish(names) if len(planned) <= chunks else None


def check(out: Path, names: list[str]) -> None:
    """The table has the rows of these files, in their order."""
    found = table.read(out, expect=identity(7))
    usable = [name for name in names if Path(name).read_bytes() != b"bad"]
    assert found.ids == usable
    expected = [row_of(Path(name).read_bytes()) for name in usable]
    np.testing.assert_array_equal(found.embeddings, expected)
    assert found.unusable == dict.fromkeys([n for n in names if n not in usable], "no image")
    assert not out.with_name("out.chunks").exists()


def test_growth(images: list[str], tmp_path: Path) -> None:
    """Also by several processes; only contents without a row are missing, wherever they are."""
    out = tmp_path / "out"
    Path(images[3]).write_bytes(b"bad")
    assert grow(out, images, chunks=1) is None
    with table.growing(out, identity(7)) as grown:
        assert grown.missing(images) == images[:4]
        for process in range(2):  # chunk i of n
            chunk = grown.new_chunk()
            assert not chunk.exists()
            embed(chunk, grown.missing(images)[process:4:2])
    grow(out, images)
    check(out, images)
    moved = [str(Path(name).rename(tmp_path / Path(name).name)) for name in images]
    Path(moved[0]).write_text("replaced")
    Path(moved[3]).write_text("good")
    with table.growing(out, identity(7)) as grown:
        assert grown.missing(moved) == [moved[0], moved[3]]
    grow(out, moved[:5])
    check(out, moved[:5])
    written = (out / "manifest.json").stat().st_mtime_ns
    grow(out, moved[:5])
    assert (out / "manifest.json").stat().st_mtime_ns == written


def move_rows(chunk: Path) -> None:
    np.save(chunk / "embeddings.npy", np.load(chunk / "embeddings.npy")[::-1])


def cut(chunk: Path) -> None:
    (chunk / "embeddings.npy").write_bytes((chunk / "embeddings.npy").read_bytes()[:-16])


def swap_names(chunk: Path) -> None:
    (chunk / "ids.json").write_text(json.dumps(table.read(chunk).ids[::-1]))


def embed_by_another_model(chunk: Path) -> None:
    embed(chunk, table.read(chunk).ids, model=8)


def forget_contents(chunk: Path) -> None:
    stored = table.read(chunk)
    table.write(chunk, np.array(stored.embeddings), None, stored.ids, identity=identity(7))


CHANGED = r"has changed since it was written"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (move_rows, rf"embeddings\.npy: {CHANGED}"),
        (cut, rf"embeddings\.npy: {CHANGED}"),
        (swap_names, rf"ids\.json: {CHANGED}"),
        (embed_by_another_model, r"was made by another model \(step is 8, not 7\)"),
        (forget_contents, r"does not say which files were embedded"),
    ],
)
@pytest.mark.parametrize("complete", [True, False])
def test_wrong_rows_are_refused(
    change: Callable[[Path], None], message: str, complete: bool, images: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    grow(out, images, chunks=99 if complete else 2)
    part = out if complete else tmp_path / "out.chunks" / "000001"
    change(part)
    with pytest.raises(DataError, match=f"{message}.*; delete {part}, and its images"):
        grow(out, images)
    shutil.rmtree(part)
    grow(out, images)
    check(out, images)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_killed_at_any_operation(images: list[str], tmp_path: Path) -> None:
    """The next call completes the table; here, three images are new and three have rows."""
    for moment in itertools.count(1, 7):
        out = tmp_path / str(moment) / "out"
        grow(out, images[:3])
        code = ended(forked(lambda out=out: grow(out, images), moment))
        if code == 0:
            break
        assert code == KILLED
        grow(out, images)
        check(out, images)
        assert [path.name for path in out.parent.iterdir() if path.suffix != ".lock"] == ["out"]
    assert moment > 60
