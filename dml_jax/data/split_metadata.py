"""Labels and names of all splits in one JSON file, so that samplers need not open any image."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from dml_jax import seal
from dml_jax.data.files import SPLITS, Entry
from dml_jax.data.split import Split, unread
from dml_jax.errors import DataError
from dml_jax.files import cache_dir, reading

SCAN = "a list of images"  # kind of a sealed directory in the cache


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
    """Writes all but the images of splits; names that are not UTF-8 are escaped."""
    parts = {
        name: split._asdict() | {"labels": split.labels.tolist(), "read": None}
        for name, split in splits.items()
    }
    path.write_text(json.dumps(parts))


def load(path: Path) -> dict[str, Split]:
    """Reads a file of `save`; raises DataError if it is damaged."""
    with reading(path, "prepare the data set again"):
        parts = json.loads(path.read_bytes())
        return {
            name: Split(**part | {"labels": np.array(part["labels"], np.int64), "read": unread})
            for name, part in parts.items()
        }


def cached(key: bytes, compute: Callable[[], Mapping[str, Split]]) -> Mapping[str, Split]:
    """The result of `compute`, cached in the user's cache directory by the key.

    A damaged cache is replaced; one that cannot be written is not used.
    """
    directory = cache_dir() / "data" / hashlib.sha256(key).hexdigest()
    with contextlib.suppress(DataError, OSError):
        seal.read(directory, SCAN)
        return load(directory / "splits.json")
    splits = compute()
    with contextlib.suppress(OSError), seal.write(directory, SCAN) as draft:
        save(draft / "splits.json", splits)
    return splits
