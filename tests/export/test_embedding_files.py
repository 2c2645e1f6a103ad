"""Exporting arrays: files written, and directories that are not replaced."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from dml_jax.errors import DataError
from dml_jax.export import embedding_files

ROWS = np.eye(3, 4, dtype=np.float32)


def write(directory: Path) -> None:
    embedding_files.write(directory, ROWS, np.array([0, 1, 1]), ["a", "b", "c"], config_hash="h", step=7)


def test_what_is_written(tmp_path: Path) -> None:
    write(tmp_path / "out")
    write(tmp_path / "out")  # replaces its own output
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "embeddings.npy"), ROWS)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["shapes"] == {"embeddings.npy": [3, 4], "labels.npy": [3]}
    assert manifest["dtypes"] == {"embeddings.npy": "float32", "labels.npy": "int64"}
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == digest
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_directories_with_other_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "x.jpg").write_text("x")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"holds x.jpg, which is not an exported file"):
        write(tmp_path / "photos")
    with pytest.raises(DataError, match="is a file"):
        write(tmp_path / "file")
    with pytest.raises(DataError, match=r"file/a/b: is below a file"):
        write(tmp_path / "file" / "a" / "b")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "photos", "x.jpg"]


def test_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write(Path("."))
    assert (tmp_path / "here" / "embeddings.npy").exists()
