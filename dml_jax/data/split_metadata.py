"""Labels and names of all splits in one Arrow file, so that samplers need not open any image."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from dml_jax.data.files import SPLITS, Entry, Scalar
from dml_jax.data.split import Split, unread
from dml_jax.errors import DataError
from dml_jax.files import atomic_write, cache_dir, reading

# Followed by the metadata.
COLUMNS = [("label", pa.int64()), ("id", pa.large_binary()), ("file", pa.large_binary())]


def from_entries(entries: Sequence[Entry]) -> dict[str, Split]:
    """Images by split, with classes numbered by name; test and gallery share one numbering."""
    splits = {}
    for split in SPLITS:
        numbered = ("test", "gallery") if split in ("test", "gallery") else (split,)
        classes = sorted({entry.class_name for entry in entries if entry.split in numbered})
        if members := [entry for entry in entries if entry.split == split]:
            label_of = {name: label for label, name in enumerate(classes)}
            labels = np.array([label_of[entry.class_name] for entry in members], np.int64)
            columns = dict.fromkeys(name for entry in members for name in entry.metadata)
            metadata = {name: [entry.metadata.get(name) for entry in members] for name in columns}
            files = [str(entry.file.path) for entry in members]
            names = [entry.id for entry in members]
            splits[split] = Split(labels, names, unread, classes, files=files, metadata=metadata)
    return splits


def save(path: Path, splits: Mapping[str, Split]) -> None:
    """Writes an Arrow IPC file: a record batch for each split, and the class names in the schema.

    Names are binary, as they need not be UTF-8, and metadata, of any type, is stored as JSON.
    """
    columns = dict.fromkeys(name for split in splits.values() for name in split.metadata)
    header = [
        {"name": name, "classes": list(split.classes), "content": split.content, "note": split.note}
        for name, split in splits.items()
    ]
    fields = [*COLUMNS, *((name, pa.large_string()) for name in columns)]
    schema = pa.schema(fields, {"splits": json.dumps(header)})
    with path.open("wb") as file, pa.ipc.new_file(file, schema) as writer:
        for split in splits.values():
            absent = [None] * len(split.labels)
            labels, files = pa.array(split.labels, pa.int64()), _encoded(split.files or absent)
            arrays = [labels, _encoded(split.ids), files]
            for column in columns:  # null if only other splits have it
                values = split.metadata.get(column)
                texts = absent if values is None else [json.dumps(value) for value in values]
                arrays.append(pa.array(texts, pa.large_string()))
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def _encoded(names: Iterable[str | None]) -> pa.LargeBinaryArray:
    raw = [None if name is None else name.encode("utf-8", "surrogateescape") for name in names]
    return pa.array(raw, pa.large_binary())


def load(path: Path) -> dict[str, Split]:
    """Reads a file of `save`; raises DataError if it is damaged."""
    with reading(path, "prepare the data set again"):
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        header = json.loads(reader.schema.metadata[b"splits"])
        splits = {}
        for i, about in enumerate(header):
            batch = reader.get_batch(i)
            batch.validate(full=True)
            labels, ids, files, *others = batch.columns
            columns = dict(zip(batch.schema.names[len(COLUMNS) :], others, strict=True))
            known = {k: column for k, column in columns.items() if column.null_count < len(column)}
            name = about.pop("name")
            splits[name] = Split(
                labels=labels.to_numpy(),
                ids=_decoded(ids),
                read=unread,
                files=() if files.null_count else _decoded(files),
                metadata={k: list(map(json.loads, x.to_pylist())) for k, x in known.items()},
                **about,
            )
        return splits


def _decoded(names: pa.LargeBinaryArray) -> list[str]:
    return [name.decode("utf-8", "surrogateescape") for name in names.to_pylist()]


def checked_columns(metadata: Any, count: int) -> dict[str, list[Scalar]]:
    """Metadata read from a file; raises ValueError unless it is columns of `count` values each."""
    table = TypeAdapter(dict[str, list[Scalar]])
    columns: dict[str, list[Scalar]] = table.validate_python(metadata, strict=True)
    for name, values in columns.items():
        if len(values) != count:
            raise ValueError(f"the column {name!r} has {len(values)} values for {count} images")
    return columns


def cached(key: bytes, compute: Callable[[], Mapping[str, Split]]) -> Mapping[str, Split]:
    """The result of `compute`, cached in the user's cache directory by the key.

    A damaged file in the cache is replaced; a cache that cannot be written is not used.
    """
    path = cache_dir() / "data" / f"{hashlib.sha256(key).hexdigest()}.arrow"
    if path.is_file():
        with contextlib.suppress(DataError):
            return load(path)
    splits = compute()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            save(draft, splits)
    return splits
