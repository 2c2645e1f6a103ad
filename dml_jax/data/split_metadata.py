"""Labels and names of every split in one Arrow file, apart from the pixels: samplers need not open a single image."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa
from flatbuffers.table import Table
from pydantic import TypeAdapter

from dml_jax.data.prepare.sources import SPLITS, Entry, Scalar
from dml_jax.data.split import Read, Split
from dml_jax.errors import DataError
from dml_jax.files import atomic_write, cache_dir, reading

BLOCK = 2**16  # names decoded at a time
COLUMNS = [("label", pa.int64()), ("id", pa.large_binary()), ("file", pa.large_binary())]  # then the metadata


class Names(Sequence[str]):
    """Strings in a memory-mapped column, decoded on access: ten million of them as a list would take a gigabyte."""

    def __init__(self, column: pa.LargeBinaryArray) -> None:
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [_decode(name) for name in self.column[index].to_pylist()]
        return _decode(self.column[int(index)].as_py())

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), BLOCK):
            yield from self[start : start + BLOCK]


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")  # file names need not be UTF-8


class SplitMetadata(NamedTuple):
    """One split without its pixels."""

    labels: np.ndarray  # int64 [N], in 0..C-1
    ids: Sequence[str]  # N image names
    classes: Sequence[str]  # C class names
    files: Sequence[str] = ()  # N absolute paths of image files; empty if the images are packed
    content: str = ""  # SHA-256 of all images of the data set, the same for all splits; empty if not computed
    metadata: Mapping[str, Sequence[Scalar]] = {}  # further columns: name -> N values
    note: str = ""  # a sentence for the user on how the data set was read; not stored

    def read_by(self, read: Read) -> Split:
        """The split whose pixels a function reads, see `Split.read`."""
        return Split(
            self.labels, self.ids, read, self.classes, content=self.content, metadata=self.metadata, note=self.note
        )


def from_entries(entries: Sequence[Entry]) -> dict[str, SplitMetadata]:
    """Groups images by split and numbers the classes of each split by name; test and gallery share one numbering."""
    by_split: dict[str, list[Entry]] = {split: [] for split in SPLITS}
    for entry in entries:
        by_split[entry.split].append(entry)
    test_classes = sorted({entry.class_name for split in ("test", "gallery") for entry in by_split[split]})
    classes = {split: sorted({entry.class_name for entry in by_split[split]}) for split in ("train", "validation")}
    classes |= {"test": test_classes, "gallery": test_classes}
    splits = {}
    for split, members in by_split.items():
        if members:
            label_of = {name: label for label, name in enumerate(classes[split])}
            columns = dict.fromkeys(name for entry in members for name in entry.metadata)
            splits[split] = SplitMetadata(
                labels=np.array([label_of[entry.class_name] for entry in members], np.int64),
                ids=[entry.id for entry in members],
                classes=classes[split],
                files=[str(entry.file.path) for entry in members],
                metadata={name: [entry.metadata.get(name) for entry in members] for name in columns},
            )
    return splits


def save(path: Path, splits: Mapping[str, SplitMetadata]) -> None:
    """Writes an Arrow IPC file: a record batch for each split, and class names and a SHA-256 in the schema.

    Names are binary, as they need not be UTF-8; a value of metadata, which can be of any type, is stored as JSON.
    """
    columns = dict.fromkeys(name for split in splits.values() for name in split.metadata)
    schema = pa.schema([*COLUMNS, *((name, pa.large_string()) for name in columns)])
    batches, header = [], []
    for name, split in splits.items():
        absent = [None] * len(split.labels)
        files = _encode(split.files) if split.files else pa.array(absent, pa.large_binary())
        arrays = [pa.array(split.labels, pa.int64()), _encode(split.ids), files]
        for column in columns:  # null if it is one of other splits
            values = split.metadata.get(column)
            texts = absent if values is None else [json.dumps(value) for value in values]
            arrays.append(pa.array(texts, pa.large_string()))
        batches.append(pa.record_batch(arrays, schema=schema))
        header.append({"name": name, "classes": list(split.classes), "content": split.content})
    text = json.dumps(header).encode()
    schema = schema.with_metadata({"splits": text, "sha256": _digest(text, schema, batches)})
    with path.open("wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _encode(names: Iterable[str]) -> pa.LargeBinaryArray:
    return pa.array((name.encode("utf-8", "surrogateescape") for name in names), pa.large_binary())


def _digest(header: bytes, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    digest = hashlib.sha256(header + json.dumps(schema.names).encode())
    for buffer in (buffer for batch in batches for column in batch.columns for buffer in column.buffers()):
        if buffer is not None:
            digest.update(buffer)
    return digest.hexdigest().encode()


def load(path: Path) -> dict[str, SplitMetadata]:
    """Reads what `save` wrote, memory-mapped, or the .npz file of version 1; raises DataError if it is damaged."""
    with reading(path, "prepare the data set again"):
        splits = _load_npz(path) if path.suffix == ".npz" else _load_arrow(path)
        for split in splits.values():
            _check(split)
        return splits


def _load_arrow(path: Path) -> dict[str, SplitMetadata]:
    source = pa.memory_map(str(path))
    source.seek(8)  # after its magic number, the file is a stream of messages
    described, *messages = pa.ipc.MessageReader.open_stream(source)
    schema = pa.ipc.read_schema(described)
    header = schema.metadata[b"splits"]
    if list(zip(schema.names, schema.types, strict=True))[: len(COLUMNS)] != COLUMNS:
        raise ValueError("it has other columns")
    if any(_is_compressed(message) for message in messages):
        raise ValueError("it is compressed")
    batches = [pa.ipc.read_record_batch(message, schema) for message in messages]
    for batch in batches:
        batch.validate(full=True)
    if _digest(header, schema, batches) != schema.metadata[b"sha256"]:
        raise ValueError("it differs from what was written")
    splits = {}
    for about, batch in zip(json.loads(header), batches, strict=True):
        labels, ids, files, *others = batch.columns
        if labels.null_count or ids.null_count or 0 < files.null_count < len(files):
            raise ValueError("a label or name is missing")
        columns = {
            name: [json.loads(value) for value in column.to_pylist()]
            for name, column in zip(schema.names[len(COLUMNS) :], others, strict=True)
            if column.null_count < len(column)
        }
        splits[about["name"]] = SplitMetadata(
            labels=labels.to_numpy(),
            ids=Names(ids),
            classes=about["classes"],
            files=() if files.null_count else Names(files),
            content=about["content"],
            metadata=checked_columns(columns, len(labels)),
        )
    return splits


def _is_compressed(message: pa.ipc.Message) -> bool:
    """Whether a record batch is compressed, as hostile ones are: a small file could fill the memory."""
    content = message.metadata.to_pybytes()
    root = Table(content, int.from_bytes(content[:4], "little"))
    batch = Table(content, root.Indirect(root.Pos + root.Offset(8)))  # Message.header
    return bool(batch.Offset(10) != 0)  # RecordBatch.compression


def _load_npz(path: Path) -> dict[str, SplitMetadata]:
    with path.open("rb") as file:
        arrays = dict(np.load(file, allow_pickle=False))

    def names(key: str) -> Any:
        text = arrays[key].tobytes()
        if f"{key}_ends" not in arrays:
            return json.loads(text)
        return [_decode(text[start:end]) for start, end in pairwise([0, *arrays[f"{key}_ends"].tolist()])]

    splits = {}
    for split in SPLITS:
        if f"{split}/labels" in arrays:
            labels = arrays[f"{split}/labels"]
            columns = names(f"{split}/metadata") if f"{split}/metadata" in arrays else {}
            splits[split] = SplitMetadata(
                labels,
                names(f"{split}/ids"),
                names(f"{split}/classes"),
                metadata=checked_columns(columns, len(labels)),
            )
    return splits


def _check(split: SplitMetadata) -> None:
    """Raises DataError unless there is one valid label and name for each image."""
    for names in (split.classes, *(() if isinstance(split.ids, Names) else (split.ids,))):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError("its names are not text; prepare the data set again")
    labels = split.labels
    if labels.dtype != np.int64 or labels.shape != (len(split.ids),):
        raise DataError("does not have one label for each image; prepare the data set again")
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(split.classes):
        raise DataError(f"has labels outside of its {len(split.classes)} classes; prepare the data set again")


def checked_columns(metadata: Any, count: int) -> dict[str, list[Scalar]]:
    """Metadata read from a file; raises ValueError unless it is columns of `count` values each.

    To be called in `files.reading`, which names the file.
    """
    columns: dict[str, list[Scalar]] = TypeAdapter(dict[str, list[Scalar]]).validate_python(metadata, strict=True)
    if wrong := [name for name, values in columns.items() if len(values) != count]:
        raise ValueError(f"the column {wrong[0]!r} has {len(columns[wrong[0]])} values for {count} images")
    return columns


def cached(fingerprint: bytes, compute: Callable[[], Mapping[str, SplitMetadata]]) -> Mapping[str, SplitMetadata]:
    """The result of `compute`, from the user's cache directory if it was computed for the same fingerprint before.

    A damaged file in the cache is replaced; a cache that cannot be written is not used.
    """
    path = cache_dir() / "data" / f"{hashlib.sha256(fingerprint).hexdigest()}.arrow"
    if path.is_file():
        with contextlib.suppress(DataError):
            return load(path)
    splits = compute()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            save(draft, splits)
    return splits
