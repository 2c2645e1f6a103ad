"""Export of embeddings as one Parquet file, for embedding-atlas, LanceDB, DuckDB and pandas."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from dml_jax.export.embedding_files import Exported
from dml_jax.files import atomic_write

OWN = ("embedding", "id", "label")


def write(path: Path, exported: Exported) -> None:
    """Writes one row per image, completely or not at all.

    The columns are `embedding` (D float32 numbers), `id`, `label` if known, and those of the metadata, including the
    `class_name` of every run. A metadata column whose name is taken gets the prefix `metadata_`.
    """
    rows = np.ascontiguousarray(exported.embeddings, np.float32)
    columns: dict[str, Any] = {
        "embedding": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.reshape(-1)), rows.shape[1]),
        "id": pyarrow.array(exported.ids, pyarrow.string()),
    }
    if exported.labels is not None:
        columns["label"] = pyarrow.array(np.asarray(exported.labels, np.int64))
    for name, values in exported.metadata.items():
        column = name
        while column in OWN or (column != name and column in exported.metadata):
            column = f"metadata_{column}"
        columns[column] = _column(values)
    with atomic_write(path) as draft:
        parquet.write_table(pyarrow.table(columns), draft)


def _column(values: Sequence[Any]) -> Any:
    """An Arrow array; as text if the values have several types."""
    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):
        return pyarrow.array([None if value is None else str(value) for value in values])
