"""What a run exports: its embeddings with metadata, and Parquet."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from dml_jax import run, table
from dml_jax.data.split import Split
from dml_jax.export import embedding_files
from tests.tiny_model import identity
from tests.train.experiments import small

ROWS = np.eye(3, 4, dtype=np.float32)
VALUES = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)


def test_a_run_exports_the_metadata_of_its_splits(tmp_path: Path) -> None:
    split = Split(np.array([0, 1, 1]), list("abc"), lambda *_: ROWS, ["x", "y"], metadata={"price": [3, None, 5]})
    experiment: Any = SimpleNamespace(config=small(steps=1), splits={"test": split}, data_hash="")
    run.write_embeddings(experiment, tmp_path, {"test": ROWS}, identity(7), finished=True)
    found = table.read(tmp_path / "embeddings" / "test").metadata
    assert found == {"price": [3, None, 5], "class_name": ["x", "y", "y"]}


def test_columns_of_parquet(tmp_path: Path) -> None:
    metadata = {"class_name": ["wren", "caf\udce9", "wren"], "label": [1.5, None, 2]}
    metadata |= {"metadata_label": [1, 2, 3], "mixed": [1, "x", None]}
    rows = VALUES, np.array([4, 0, 4]), ["a", "\udcff", "ü"]
    table.write(tmp_path / "test", *rows, identity=identity(1), metadata=metadata)
    embedding_files.write_parquet(tmp_path / "test.parquet", table.read(tmp_path / "test"))
    read = parquet.read_table(tmp_path / "test.parquet")
    assert read.schema.field("embedding").type == pyarrow.list_(pyarrow.float32(), 5)
    assert read.schema.field("label").type == pyarrow.int64()
    np.testing.assert_array_equal(np.stack(read["embedding"].to_pylist()).astype(np.float32), VALUES)
    assert read.drop_columns("embedding").to_pydict() == {
        "id": ["a", r"\udcff", "ü"],
        "label": [4, 0, 4],
        "class_name": ["wren", r"caf\udce9", "wren"],
        "metadata_metadata_label": [1.5, None, 2.0],
        "metadata_label": [1, 2, 3],
        "mixed": ["1", "x", None],
    }


def test_parquet_of_images_without_labels(tmp_path: Path) -> None:
    table.write(tmp_path / "new", VALUES, None, ["a", "b", "c"], identity=identity(1))
    embedding_files.write_parquet(tmp_path / "new.parquet", table.read(tmp_path / "new"))
    assert parquet.read_table(tmp_path / "new.parquet").column_names == ["embedding", "id"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "new.parquet"]
