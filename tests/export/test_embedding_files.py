"""Exporting arrays: files written, and directories that are not replaced."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from dml_jax import run, seal
from dml_jax.data.split import Split
from dml_jax.errors import DataError
from dml_jax.export import embedding_files
from tests.tiny_model import identity
from tests.train.experiments import small

ROWS = np.eye(3, 4, dtype=np.float32)
VALUES = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)


def write(directory: Path) -> embedding_files.Exported:
    return embedding_files.write(
        directory, ROWS, np.array([0, 1, 1]), ["a", "b", "c"], identity=identity(7)
    )


def test_what_is_written(tmp_path: Path) -> None:
    write(tmp_path / "out")
    written = write(tmp_path / "out")  # replaces its own output
    np.testing.assert_equal(written._asdict(), embedding_files.read(tmp_path / "out")._asdict())
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "embeddings.npy"), ROWS)
    content = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert content["about"]["shapes"] == {"embeddings.npy": [3, 4], "labels.npy": [3]}
    assert content["about"]["dtypes"] == {"embeddings.npy": "float32", "labels.npy": "int64"}
    assert content["files"].keys() == {"embeddings.npy", "labels.npy", "ids.json"}
    for name, known in content["files"].items():
        written_file = (tmp_path / "out" / name).read_bytes()
        assert known == {
            "size": len(written_file),
            "sha256": hashlib.sha256(written_file).hexdigest(),
        }
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_remains_of_a_killed_writer_are_replaced(tmp_path: Path) -> None:
    write(tmp_path / "out")
    (tmp_path / "out" / ".manifest.json.abcdefgh.tmp").touch()
    write(tmp_path / "out")
    assert not list((tmp_path / "out").glob(".*"))


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    embedding_files.write(tmp_path / "e", np.eye(2), None, ["a", "\udcff"], identity=identity(1))
    assert embedding_files.read(tmp_path / "e").ids == ["a", "\udcff"]


def test_metadata_is_written_and_read_again(tmp_path: Path) -> None:
    columns = {"shop": ["north", None, "süd"], "price": [1, 2.5, None], "sold": [True, False, None]}
    write(tmp_path / "e")
    assert embedding_files.read(tmp_path / "e").metadata == {}
    labels = np.array([0, 1, 1])
    embedding_files.write(
        tmp_path / "e", ROWS, labels, list("abc"), identity=identity(7), metadata=columns
    )
    assert json.loads((tmp_path / "e" / "metadata.json").read_text()) == columns
    assert embedding_files.read(tmp_path / "e").metadata == columns
    write(tmp_path / "e")
    assert not (tmp_path / "e" / "metadata.json").exists()


def test_a_run_exports_the_metadata_of_its_splits(tmp_path: Path) -> None:
    split = Split(
        np.array([0, 1, 1]),
        list("abc"),
        lambda *_: ROWS,
        ["x", "y"],
        metadata={"price": [3, None, 5]},
    )
    experiment: Any = SimpleNamespace(config=small(steps=1), splits={"test": split}, data_hash="")
    run.write_embeddings(experiment, tmp_path, {"test": ROWS}, identity(7), finished=True)
    found = embedding_files.read(tmp_path / "embeddings" / "test").metadata
    assert found == {"price": [3, None, 5], "class_name": ["x", "y", "y"]}


def test_directories_with_other_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "x.jpg").write_text("x")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"contains x.jpg, which is not an exported file"):
        write(tmp_path / "photos")
    with pytest.raises(DataError, match="is a file, below one"):
        write(tmp_path / "file")
    with pytest.raises(DataError, match=r"file/a/b: is a file, below one"):
        write(tmp_path / "file" / "a" / "b")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "photos", "x.jpg"]


@pytest.mark.parametrize(
    "name", ["embeddings.npy", "labels.npy", "ids.json", "metadata.json", "manifest.json"]
)
def test_a_changed_file_is_refused(name: str, tmp_path: Path) -> None:
    labels, columns = np.array([0, 1, 1]), {"class_name": ["x", "y", "y"]}
    embedding_files.write(
        tmp_path / "e", ROWS, labels, ["a", "b", "c"], identity=identity(1), metadata=columns
    )
    file = tmp_path / "e" / name
    content = file.read_bytes()
    changed = content.replace(b'"step": 1', b'"step": 2')  # of the manifest
    file.write_bytes(content[:-1] + b"\x01" if changed == content else changed)
    with pytest.raises(DataError, match=rf"^{file}: has changed since it was written; (ex|re)"):
        embedding_files.read(tmp_path / "e")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "embeddings.npy",
            np.full((3, 4), np.nan, np.float32),
            r"embeddings\.npy: 3 of 3 rows hold NaN or infinity",
        ),
        (
            "embeddings.npy",
            ROWS[:2],
            r"embeddings\.npy: holds float32 of shape \[2, 4\] for 3 names in ids\.json",
        ),
        (
            "embeddings.npy",
            ROWS.astype(np.float64),
            r"embeddings\.npy: holds float64 of shape \[3, 4\]",
        ),
        (
            "embeddings.npy",
            ROWS.ravel(),
            r"embeddings\.npy: holds float32 of shape \[12\]; give real numbers \[N, D\]",
        ),
        ("embeddings.npy", ROWS.astype(str), r"embeddings\.npy: holds <U32 of shape \[3, 4\]"),
        (
            "labels.npy",
            np.arange(2),
            r"labels\.npy: holds int64 of shape \[2\] for 3 rows of embeddings\.npy",
        ),
        ("labels.npy", np.zeros(3), r"labels\.npy: holds float64 of shape \[3\]"),
        ("labels.npy", np.array(list("abc")), r"labels\.npy: holds <U1; must be int64"),
        (
            "ids.json",
            ["a", "b", 3],
            r"ids\.json: is truncated or damaged \(2: input should be a valid string\)",
        ),
        ("ids.json", ["a", "b"], r"embeddings\.npy: holds float32 of shape \[3, 4\] for 2 names"),
        ("ids.json", {"a": 1}, r"ids\.json: is truncated or damaged"),
        (
            "metadata.json",
            {"class_name": ["x", "y"]},
            r"metadata\.json: .*'class_name' has 2 values for 3 images",
        ),
        ("metadata.json", ["x"], r"metadata\.json: is truncated or damaged"),
    ],
)
def test_crafted_files_with_the_right_checksums(
    name: str, content: Any, message: str, tmp_path: Path
) -> None:
    write(tmp_path)
    if isinstance(content, np.ndarray):
        np.save(tmp_path / name, content)
    else:
        (tmp_path / name).write_text(json.dumps(content))
    seal.close(tmp_path, embedding_files.KIND)
    with pytest.raises(DataError, match=message):
        embedding_files.read(tmp_path)


def test_a_broken_link_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "e").symlink_to(tmp_path / "e")
    with pytest.raises(DataError, match=r"e: is a file, below one, or a broken link; give"):
        embedding_files.write(tmp_path / "e", np.eye(2), None, ["a", "b"], identity=identity(1))


def test_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write(Path("."))
    assert (tmp_path / "here" / "embeddings.npy").exists()


def test_a_full_disk_is_named_and_gets_its_space_back(tmp_path: Path, full_disk: Any) -> None:
    with (
        full_disk(140),
        pytest.raises(OSError, match="File too large") as caught,
    ):  # the embeddings have more bytes
        write(tmp_path / "test")
    assert caught.value.filename == str(tmp_path / "test")
    assert list(tmp_path.iterdir()) == []


def test_columns_of_parquet(tmp_path: Path) -> None:
    embedding_files.write(
        tmp_path / "test",
        VALUES,
        np.array([4, 0, 4]),
        ["a", "\udcff", "ü"],
        identity=identity(1),
        metadata={
            "class_name": ["wren", "caf\udce9", "wren"],
            "label": [1.5, None, 2],
            "metadata_label": [1, 2, 3],
            "mixed": [1, "x", None],
        },
    )
    embedding_files.write_parquet(
        tmp_path / "test.parquet", embedding_files.read(tmp_path / "test")
    )
    table = parquet.read_table(tmp_path / "test.parquet")
    assert table.schema.field("embedding").type == pyarrow.list_(pyarrow.float32(), 5)
    assert table.schema.field("label").type == pyarrow.int64()
    np.testing.assert_array_equal(
        np.stack(table["embedding"].to_pylist()).astype(np.float32), VALUES
    )
    assert table.drop_columns("embedding").to_pydict() == {
        "id": ["a", r"\udcff", "ü"],
        "label": [4, 0, 4],
        "class_name": ["wren", r"caf\udce9", "wren"],
        "metadata_metadata_label": [1.5, None, 2.0],
        "metadata_label": [1, 2, 3],
        "mixed": ["1", "x", None],
    }


def test_parquet_of_images_without_labels(tmp_path: Path) -> None:
    embedding_files.write(tmp_path / "new", VALUES, None, ["a", "b", "c"], identity=identity(1))
    embedding_files.write_parquet(tmp_path / "new.parquet", embedding_files.read(tmp_path / "new"))
    assert parquet.read_table(tmp_path / "new.parquet").column_names == ["embedding", "id"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "new.parquet"]
