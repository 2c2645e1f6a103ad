"""The embeddings of a run, their export as Parquet, and the metrics of every single query."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax import identity as identities
from dml_jax import seal, table
from dml_jax.evaluation.metric_table import PER_QUERY
from dml_jax.files import as_text, atomic_write
from dml_jax.seal import Identity
from dml_jax.table import Table

OF_RUN = "write the run's embeddings again with --mode=export"
COLUMNS = ("embedding", "id", "label")  # of Parquet; metadata have other names


def of_run(workdir: Path, split: str, identity: Identity | None = None) -> Table:
    """The table that a run has stored of a split: the one way to open it.

    Args:
      identity: of the model that must have computed them; by default the reported one of the run.

    Raises:
      DataError: as for `table.read`, or the run's manifest has other files, or the embeddings are
        of another embedding function.
    """
    wanted = identity or (seal.read_manifest(workdir).identity if seal.sealed(workdir) else None)
    directory = seal.part(workdir, f"embeddings/{split}", remedy=OF_RUN)
    return table.read(directory, expect=wanted, remedy=OF_RUN)


def split_off_queries(results: dict[str, Any]) -> dict[str, np.ndarray]:
    """Moves the per-query arrays out of the results, so that these can be written as JSON."""
    keys = [key for key in results if key == "rank" or key.endswith(PER_QUERY)]
    return {key.removesuffix(PER_QUERY): np.asarray(results.pop(key)) for key in keys}


def write_queries(directory: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes `queries.npz`: "rank" (int [N], of the nearest relevant image, 0 if none), and the
    other metrics of each query by their names, such as "map@r" (float [N], NaN without one)."""
    small: dict[str, Any] = {
        name: array.astype(np.int32 if name == "rank" else np.float32)
        for name, array in arrays.items()
    }
    with atomic_write(directory / "queries.npz") as draft, draft.open("wb") as file:
        np.savez(file, **small)


def write_parquet(path: Path, exported: Table) -> None:
    """Writes one row per image as Parquet, for embedding-atlas, LanceDB, DuckDB and pandas,
    completely or not at all.

    The columns are `embedding` (D float32 numbers), `id`, `label` if known, and those of the
    metadata, including the `class_name` of every run. A metadata column whose name is taken gets
    the prefix `metadata_`.
    """
    import pyarrow
    from pyarrow import parquet

    rows = np.ascontiguousarray(exported.embeddings, np.float32)
    flat = pyarrow.array(rows.reshape(-1))
    columns: dict[str, Any] = {
        "embedding": pyarrow.FixedSizeListArray.from_arrays(flat, rows.shape[1]),
        "id": pyarrow.array(map(as_text, exported.ids), pyarrow.string()),
    }
    if exported.labels is not None:
        columns["label"] = pyarrow.array(np.asarray(exported.labels, np.int64))
    for name, values in exported.metadata.items():
        column = name
        while column in COLUMNS or (column != name and column in exported.metadata):
            column = f"metadata_{column}"
        try:
            columns[column] = pyarrow.array(values)
        except (ValueError, TypeError, OverflowError):  # mixed types, or names that are not UTF-8
            texts = [None if value is None else as_text(str(value)) for value in values]
            columns[column] = pyarrow.array(texts)
    stated = json.dumps(exported.seal.identity and asdict(exported.seal.identity))
    content = pyarrow.table(columns).replace_schema_metadata({identities.KEY: stated})
    with atomic_write(path) as draft:
        parquet.write_table(content, draft, write_page_checksum=True)
