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

from dml_jax import run
from dml_jax.data.split import Split
from dml_jax.errors import DataError
from dml_jax.export import embedding_files
from tests.train.experiments import small

ROWS = np.eye(3, 4, dtype=np.float32)
VALUES = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)


def write(directory: Path) -> embedding_files.Exported:
    return embedding_files.write(directory, ROWS, np.array([0, 1, 1]), ["a", "b", "c"], config_hash="h", step=7)


def test_what_is_written(tmp_path: Path) -> None:
    write(tmp_path / "out")
    written = write(tmp_path / "out")  # replaces its own output
    np.testing.assert_equal(written._asdict(), embedding_files.read(tmp_path / "out")._asdict())
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "embeddings.npy"), ROWS)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["shapes"] == {"embeddings.npy": [3, 4], "labels.npy": [3]}
    assert manifest["dtypes"] == {"embeddings.npy": "float32", "labels.npy": "int64"}
    assert manifest["files"].keys() == {"embeddings.npy", "labels.npy", "ids.json"}
    for name, known in manifest["files"].items():
        content = (tmp_path / "out" / name).read_bytes()
        assert known == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_remains_of_a_killed_writer_are_replaced(tmp_path: Path) -> None:
    write(tmp_path / "out")
    (tmp_path / "out" / ".manifest.json.abcdefgh.tmp").touch()
    write(tmp_path / "out")
    assert not list((tmp_path / "out").glob(".*"))


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    embedding_files.write(tmp_path / "e", np.eye(2), None, ["a", "\udcff"], config_hash="", step=1)
    assert embedding_files.read(tmp_path / "e").ids == ["a", "\udcff"]


def test_metadata_is_written_and_read_again(tmp_path: Path) -> None:
    columns = {"shop": ["north", None, "süd"], "price": [1, 2.5, None], "sold": [True, False, None]}
    write(tmp_path / "e")
    assert embedding_files.read(tmp_path / "e").metadata == {}
    labels = np.array([0, 1, 1])
    embedding_files.write(tmp_path / "e", ROWS, labels, list("abc"), config_hash="h", step=7, metadata=columns)
    assert json.loads((tmp_path / "e" / "metadata.json").read_text()) == columns
    assert embedding_files.read(tmp_path / "e").metadata == columns
    write(tmp_path / "e")
    assert not (tmp_path / "e" / "metadata.json").exists()


def test_a_run_exports_the_metadata_of_its_splits(tmp_path: Path) -> None:
    split = Split(np.array([0, 1, 1]), list("abc"), lambda *_: ROWS, ["x", "y"], metadata={"price": [3, None, 5]})
    experiment: Any = SimpleNamespace(config=small(steps=1), splits={"test": split}, data_hash="")
    run.write_embeddings(experiment, tmp_path, {"test": ROWS}, 7, finished=True)
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


@pytest.mark.parametrize("name", ["embeddings.npy", "labels.npy", "ids.json", "metadata.json", "manifest.json"])
def test_a_changed_file_is_refused(name: str, tmp_path: Path) -> None:
    labels, columns = np.array([0, 1, 1]), {"class_name": ["x", "y", "y"]}
    embedding_files.write(tmp_path / "e", ROWS, labels, ["a", "b", "c"], config_hash="", step=1, metadata=columns)
    file = tmp_path / "e" / name
    content = file.read_bytes()
    changed = content.replace(b'_step": 1', b'_step": 2')  # of the manifest
    file.write_bytes(content[:-1] + b"\x01" if changed == content else changed)
    with pytest.raises(DataError, match=rf"^{file}: has changed since it was written; restore it"):
        embedding_files.read(tmp_path / "e")


def test_a_broken_link_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "e").symlink_to(tmp_path / "e")
    with pytest.raises(DataError, match=r"e: is a file, below one, or a broken link; give"):
        embedding_files.write(tmp_path / "e", np.eye(2), None, ["a", "b"], config_hash="", step=1)


def test_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write(Path("."))
    assert (tmp_path / "here" / "embeddings.npy").exists()


def test_a_full_disk_is_named_and_gets_its_space_back(tmp_path: Path, full_disk: Any) -> None:
    with full_disk(140), pytest.raises(OSError, match="File too large") as caught:  # the embeddings have more bytes
        write(tmp_path / "test")
    assert caught.value.filename == str(tmp_path / "test")
    assert list(tmp_path.iterdir()) == []


def test_columns_of_parquet(tmp_path: Path) -> None:
    embedding_files.write(
        tmp_path / "test", VALUES, np.array([4, 0, 4]), ["a", "b", "ü"], config_hash="", step=1,
        metadata={
            "class_name": ["wren", "robin", "wren"], "label": [1.5, None, 2], "metadata_label": [1, 2, 3],
            "mixed": [1, "x", None],
        },
    )  # fmt: skip
    embedding_files.write_parquet(tmp_path / "test.parquet", embedding_files.read(tmp_path / "test"))
    table = parquet.read_table(tmp_path / "test.parquet")
    assert table.schema.field("embedding").type == pyarrow.list_(pyarrow.float32(), 5)
    assert table.schema.field("label").type == pyarrow.int64()
    np.testing.assert_array_equal(np.stack(table["embedding"].to_pylist()).astype(np.float32), VALUES)
    assert table.drop_columns("embedding").to_pydict() == {
        "id": ["a", "b", "ü"],
        "label": [4, 0, 4],
        "class_name": ["wren", "robin", "wren"],
        "metadata_metadata_label": [1.5, None, 2.0],
        "metadata_label": [1, 2, 3],
        "mixed": ["1", "x", None],
    }


def test_parquet_of_images_without_labels(tmp_path: Path) -> None:
    embedding_files.write(tmp_path / "new", VALUES, None, ["a", "b", "c"], config_hash="", step=1)
    embedding_files.write_parquet(tmp_path / "new.parquet", embedding_files.read(tmp_path / "new"))
    assert parquet.read_table(tmp_path / "new.parquet").column_names == ["embedding", "id"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "new.parquet"]
