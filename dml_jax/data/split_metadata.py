"""Labels and names of every split, stored apart from the pixels so that samplers need not open a single image."""

import contextlib
import hashlib
import json
import math
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter

from dml_jax.data.names import Names
from dml_jax.data.prepare.sources import SPLITS, Entry, Scalar
from dml_jax.errors import DataError
from dml_jax.files import atomic_write, cache_dir, reading

ENDS = "_ends"


class SplitMetadata(NamedTuple):
    """One split without its pixels.

    Attributes:
      labels: int64 [N], in 0..C-1.
      ids: N image names.
      classes: C class names.
      files: N absolute paths of image files; empty if the images are packed.
      content: SHA-256 of all images of the data set, the same for all splits; empty if not computed.
      metadata: further columns: name -> N values.
      note: a sentence for the user on how the data set was read; not stored.
    """

    labels: np.ndarray
    ids: Sequence[str]
    classes: Sequence[str]
    files: Sequence[str] = ()
    content: str = ""
    metadata: Mapping[str, Sequence[Scalar]] = {}
    note: str = ""


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
            splits[split] = SplitMetadata(
                labels=np.array([label_of[entry.class_name] for entry in members], np.int64),
                ids=[entry.id for entry in members],
                classes=classes[split],
                files=[str(entry.file.path) for entry in members],
                metadata=_columns(members),
            )
    return splits


def _columns(entries: Sequence[Entry]) -> dict[str, list[Scalar]]:
    """The metadata of N images by column; None where an image has no value."""
    names = dict.fromkeys(name for entry in entries for name in entry.metadata)
    return {name: [entry.metadata.get(name) for entry in entries] for name in names}


def save(path: Path, splits: Mapping[str, SplitMetadata]) -> None:
    """Writes an npz file without pickled objects, uncompressed, so that what there is for each image can be mapped.

    Other text is stored as JSON in UTF-8.
    """
    arrays = {}
    for name, split in splits.items():
        arrays[f"{name}/labels"] = split.labels
        for key in ("ids", "files"):
            names = Names.of(getattr(split, key))
            arrays[f"{name}/{key}"], arrays[f"{name}/{key}{ENDS}"] = names.text, names.ends
        arrays[f"{name}/classes"] = np.frombuffer(json.dumps(list(split.classes)).encode(), np.uint8)
        for key in ("content", "metadata"):
            if value := getattr(split, key):
                arrays[f"{name}/{key}"] = np.frombuffer(json.dumps(value).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load(path: Path) -> dict[str, SplitMetadata]:
    """Reads what `save` wrote.

    Raises:
      DataError: missing, damaged, or labels that are not those of its classes and images.
    """
    with reading(path, "prepare the data set again"):
        arrays = mapped_arrays(path)

        def text(key: str, default: Any = None) -> Any:
            return default if default is not None and key not in arrays else json.loads(arrays[key].tobytes())

        def names(key: str) -> Any:
            # Data that were prepared before names were mapped have them as JSON.
            return Names(arrays[key], arrays[key + ENDS]) if key + ENDS in arrays else text(key)

        splits = {
            split: SplitMetadata(
                labels=arrays[f"{split}/labels"],
                ids=names(f"{split}/ids"),
                classes=text(f"{split}/classes"),
                files=names(f"{split}/files"),
                content=text(f"{split}/content", ""),
                metadata=checked_columns(text(f"{split}/metadata", {}), len(arrays[f"{split}/labels"])),
            )
            for split in SPLITS
            if f"{split}/labels" in arrays
        }
        for split in splits.values():
            _check(split)
        return splits


def mapped_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file, which is read once to compare its checksums; uncompressed ones are memory-mapped."""
    arrays = {}
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if info.compress_type != zipfile.ZIP_STORED:
                with archive.open(info) as member:
                    arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
                continue
            with archive.open(info) as member:
                np.lib.format.read_magic(member)
                shape, _, dtype = np.lib.format.read_array_header_1_0(member)
                header = member.tell()
                while member.read(2**20):
                    pass
            size = math.prod(shape)
            if dtype.hasobject or size * dtype.itemsize != info.file_size - header:
                raise ValueError(f"{name} has another size than its header says")
            file.seek(info.header_offset + 26)
            lengths = struct.unpack("<HH", file.read(4))  # of the name and of what follows it, before the content
            offset = info.header_offset + 30 + sum(lengths) + header
            arrays[name] = np.asarray(np.memmap(file, dtype, "r", offset, shape)) if size else np.empty(shape, dtype)
    return arrays


def _check(split: SplitMetadata) -> None:
    """Raises DataError unless there is one valid label and name for each image."""
    for names in (split.ids, split.classes, split.files):
        if isinstance(names, Names):
            continue
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError("its names are not text; prepare the data set again")
    labels = split.labels
    if labels.dtype != np.int64 or labels.shape != (len(split.ids),) or len(split.files) not in (0, len(labels)):
        raise DataError("does not have one label for each image; prepare the data set again")
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(split.classes):
        raise DataError(f"has labels outside of its {len(split.classes)} classes; prepare the data set again")


def checked_columns(metadata: Any, count: int) -> dict[str, list[Scalar]]:
    """Metadata read from a file; call it in `files.reading`, which names the file.

    Raises:
      ValueError: not columns of `count` values each.
    """
    columns: dict[str, list[Scalar]] = TypeAdapter(dict[str, list[Scalar]]).validate_python(metadata, strict=True)
    if wrong := [name for name, values in columns.items() if len(values) != count]:
        raise ValueError(f"the column {wrong[0]!r} has {len(columns[wrong[0]])} values for {count} images")
    return columns


def cached(fingerprint: bytes, compute: Callable[[], Mapping[str, SplitMetadata]]) -> Mapping[str, SplitMetadata]:
    """The result of `compute`, from the user's cache directory if it was computed for the same fingerprint before.

    A damaged file in the cache is replaced; a cache that cannot be written is not used.
    """
    path = cache_dir() / "data" / f"{hashlib.sha256(fingerprint).hexdigest()}.npz"
    if path.is_file():
        with contextlib.suppress(DataError):
            return load(path)
    splits = compute()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            save(draft, splits)
    return splits
