"""Export of embeddings as NumPy arrays with a manifest, or as Parquet, and of the metrics of every
single query."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dml_jax import identity as identities
from dml_jax import seal
from dml_jax.data import split_metadata
from dml_jax.data.files import Scalar
from dml_jax.errors import DataError
from dml_jax.evaluation.metric_table import PER_QUERY
from dml_jax.files import (
    OBSTRUCTED,
    as_text,
    atomic_write,
    obstructed,
    read_json,
    reading,
)
from dml_jax.seal import Identity, Seal

ARRAYS = ("embeddings.npy", "labels.npy")
WRITTEN = {*ARRAYS, "ids.json", "metadata.json", "manifest.json"}
REMEDY, KIND = "export it again", "embeddings"
OF_RUN = "write the run's embeddings again with --mode=export"
COLUMNS = ("embedding", "id", "label")  # of Parquet; metadata have other names


def check_replaceable(directory: Path, exported: Collection[str] = WRITTEN) -> None:
    """Raises `DataError` unless `directory` is new or holds only exported files, so that they may
    be replaced."""
    remedy = "give another directory"
    if obstructed(directory):
        raise DataError(f"{directory}: {OBSTRUCTED}; {remedy}")
    there = {entry.name for entry in directory.iterdir()} if directory.exists() else set()
    drafts = {name for name in there if name.startswith(".") and name.endswith(".tmp")}
    if foreign := sorted(there - drafts - {*exported}):
        what = f"contains {foreign[0]}, which is not an exported file"
        raise DataError(f"{directory}: {what}; {remedy}")


class Exported(NamedTuple):
    """The contents of a directory written by `write`.

    Attributes:
      embeddings: float32 [N, D], rows of unit length.
      labels: int64 [N], or None for unlabelled images.
      ids: names of the N images.
      seal: digests and the identity of the embedding function; shapes and dtypes in `about`.
      metadata: further columns of the data set: name -> N values.
    """

    embeddings: np.ndarray
    labels: np.ndarray | None
    ids: list[str]
    seal: Seal
    metadata: Mapping[str, Sequence[Scalar]] = {}


def read(directory: Path) -> Exported:
    """Reads a directory written by `write`, memory-mapped.

    Raises `DataError` if a checksum differs, or the files are not finite embeddings with one name
    and label for each.
    """
    if not seal.sealed(directory):
        raise DataError(
            f"{directory}: contains no embeddings (no manifest.json); export them with "
            "--mode=export"
        )
    from dml_jax.evaluation import validation  # imports JAX

    content = seal.read(directory, KIND, exact=False, remedy=REMEDY)
    there = {path.name for path in directory.iterdir()}
    if unknown := sorted(there & WRITTEN - {*content.files, seal.MANIFEST}):
        raise DataError(f"{directory / unknown[0]}: is not in the manifest; {REMEDY}")
    ids = read_json(directory / "ids.json", list[str], REMEDY)
    rows, labels = (directory / name for name in ARRAYS)
    with reading(directory, REMEDY):
        embeddings = validation.embeddings(validation.load(rows, name="array"), name=rows.name)
        if embeddings.dtype != np.float32 or len(embeddings) != len(ids):
            raise DataError(
                f"{rows.name}: holds {embeddings.dtype} of shape {list(embeddings.shape)} for "
                f"{len(ids)} names in ids.json; must be float32 with a row for each; {REMEDY}"
            )
        classes = None
        if labels.exists():
            given = validation.load(labels, name="array")
            classes = validation.labels(given, len(ids), name=labels.name, of=rows.name)
            if given.dtype != np.int64:
                raise DataError(f"{labels.name}: holds {given.dtype}; must be int64; {REMEDY}")
    metadata = {}
    if (path := directory / "metadata.json").exists():
        with reading(path, REMEDY):
            columns = json.loads(path.read_text(encoding="utf-8"))
            metadata = split_metadata.checked_columns(columns, len(ids))
    return Exported(embeddings, classes, ids, content, metadata)


def of_run(workdir: Path, split: str, identity: Identity | None = None) -> Exported:
    """The embeddings that a run has stored of a split: the one way to open them.

    Args:
      identity: of the model that must have computed them; by default the reported one of the run.

    Raises:
      DataError: as for `read`, or the run's manifest has other files, or the embeddings are of
        another embedding function.
    """
    found = read(seal.part(workdir, f"embeddings/{split}", remedy=OF_RUN))
    if wanted := identity or _identity_of(workdir):
        seal.read(workdir / "embeddings" / split, KIND, names=(), expect=wanted, remedy=OF_RUN)
    return found


def _identity_of(workdir: Path) -> Identity | None:
    return seal.stated(workdir).identity if seal.sealed(workdir) else None


def save_rows(path: Path, parts: Iterable[np.ndarray], count: int) -> None:
    """Writes arrays [_, D] with `count` rows in all as one array float32 [count, D]."""
    start = 0
    with path.open("wb") as file:
        for part in parts:
            if file.tell() == 0:  # `start` is still 0 after an empty part
                header = {"descr": "<f4", "fortran_order": False, "shape": (count, part.shape[1])}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(part, "<f4").data)
            start += len(part)
    assert start == count


def write(
    directory: Path,
    embeddings: np.ndarray | Iterable[np.ndarray],
    labels: np.ndarray | None,
    ids: Sequence[str],
    *,
    identity: Identity | None = None,
    metadata: Mapping[str, Sequence[Scalar]] = {},
    **further: Any,
) -> Exported:
    """Writes `embeddings.npy`, `labels.npy`, `ids.json`, `manifest.json` and, if there is any,
    `metadata.json`.

    The directory is written completely or not at all. It may hold only files of an earlier export,
    which are replaced.

    Args:
      embeddings: float [N, D], rows of unit length; or consecutive blocks of them, which need not
        fit in memory together.
      labels, ids, metadata: see `Exported`.
      identity: of the embedding function; None for an ensemble, or if `plan` has it.
      further: entries of the manifest, unless they are None: "finished", whether the run (or all
        runs of an ensemble) had finished; "data_hash" of the run, see `split.digest`; "members",
        the manifests of the runs of an ensemble; "plan", see `inference.embedding_shards`.

    Returns:
      The result of `read`.
    """
    check_replaceable(directory)
    about, directory = dict[str, Any](), directory.resolve()  # "." would be the replaced one
    with seal.write(directory, KIND, identity=identity, about=about) as draft:
        parts = [embeddings] if isinstance(embeddings, np.ndarray) else embeddings
        save_rows(draft / "embeddings.npy", parts, len(ids))
        if labels is not None:
            np.save(draft / "labels.npy", labels.astype(np.int64))
        arrays = {path.name: np.load(path, mmap_mode="r") for path in sorted(draft.glob("*.npy"))}
        (draft / "ids.json").write_text(json.dumps(list(ids)), encoding="utf-8")
        if metadata:
            (draft / "metadata.json").write_text(json.dumps(dict(metadata)), encoding="utf-8")
        about |= {
            "shapes": {name: list(array.shape) for name, array in arrays.items()},
            "dtypes": {name: str(array.dtype) for name, array in arrays.items()},
            "normalised": True,
            "distance": "cosine",
        }
        about |= {key: value for key, value in further.items() if value is not None}
    found = arrays["embeddings.npy"], arrays.get("labels.npy")
    return Exported(*found, list(ids), seal.stated(directory), metadata)


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


def write_parquet(path: Path, exported: Exported) -> None:
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
    table = pyarrow.table(columns).replace_schema_metadata({identities.KEY: stated})
    with atomic_write(path) as draft:
        parquet.write_table(table, draft)
