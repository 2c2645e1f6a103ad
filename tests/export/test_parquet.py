"""Parquet files of embeddings: the same values in pandas' and DuckDB's reader, pyarrow."""

from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet as reader

from dml_jax.export import embedding_files, parquet

ROWS = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)


def test_columns(tmp_path: Path) -> None:
    embedding_files.write(
        tmp_path / "test", ROWS, np.array([4, 0, 4]), ["a", "b", "ü"], config_hash="", step=1,
        metadata={
            "class_name": ["wren", "robin", "wren"], "label": [1.5, None, 2], "metadata_label": [1, 2, 3],
            "mixed": [1, "x", None],
        },
    )  # fmt: skip
    parquet.write(tmp_path / "test.parquet", embedding_files.read(tmp_path / "test"))
    table = reader.read_table(tmp_path / "test.parquet")
    assert table.schema.field("embedding").type == pyarrow.list_(pyarrow.float32(), 5)
    assert table.schema.field("label").type == pyarrow.int64()
    np.testing.assert_array_equal(np.stack(table["embedding"].to_pylist()).astype(np.float32), ROWS)
    assert table.drop_columns("embedding").to_pydict() == {
        "id": ["a", "b", "ü"],
        "label": [4, 0, 4],
        "class_name": ["wren", "robin", "wren"],
        "metadata_metadata_label": [1.5, None, 2.0],
        "metadata_label": [1, 2, 3],
        "mixed": ["1", "x", None],
    }


def test_images_without_labels(tmp_path: Path) -> None:
    embedding_files.write(tmp_path / "new", ROWS, None, ["a", "b", "c"], config_hash="", step=1)
    parquet.write(tmp_path / "new.parquet", embedding_files.read(tmp_path / "new"))
    assert reader.read_table(tmp_path / "new.parquet").column_names == ["embedding", "id"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "new.parquet"]
