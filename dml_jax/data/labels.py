"""The sidecar of a data set: labels and names of every split, so that nothing has to be opened to draw batches."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dml_jax.data.prepare.sources import SPLITS, Entry
from dml_jax.errors import DataError
from dml_jax.files import atomic_write, cache_dir


class Part(NamedTuple):
    """One split.

    Attributes:
      labels: int64 [N].
      ids: N names of images.
      classes: C names of classes.
      files: N paths of image files, absolute; empty where the images are packed.
    """

    labels: np.ndarray
    ids: Sequence[str]
    classes: Sequence[str]
    files: Sequence[str] = ()


def number(entries: Sequence[Entry]) -> dict[str, Part]:
    """Numbers the classes of each split by name; test and gallery share one numbering."""
    of_split: dict[str, list[Entry]] = {split: [] for split in SPLITS}
    for entry in entries:
        of_split[entry.split].append(entry)
    tested = sorted({entry.label for split in ("test", "gallery") for entry in of_split[split]})
    classes = {
        "train": sorted({entry.label for entry in of_split["train"]}),
        "test": tested,
        "gallery": tested,
    }
    parts = {}
    for split, members in of_split.items():
        if members:
            ids = {label: i for i, label in enumerate(classes[split])}
            labels = np.array([ids[entry.label] for entry in members], np.int64)
            parts[split] = Part(
                labels, [entry.id for entry in members], classes[split], [str(e.file.path) for e in members]
            )
    return parts


def save(path: Path, parts: Mapping[str, Part]) -> None:
    """Writes the splits as an npz file without pickles: strings are JSON in UTF-8."""
    arrays = {}
    for split, part in parts.items():
        arrays[f"{split}/labels"] = part.labels
        for key in ("ids", "classes", "files"):
            arrays[f"{split}/{key}"] = np.frombuffer(json.dumps(list(getattr(part, key))).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def cached(state: bytes, make: Callable[[], Mapping[str, Part]]) -> Mapping[str, Part]:
    """What `make` found when everything it depends on was as `state` says, kept in the user's cache directory."""
    path = cache_dir() / "data" / f"{hashlib.sha256(state).hexdigest()}.npz"
    if path.is_file():
        return load(path)
    parts = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as draft:
        save(draft, parts)
    return parts


def load(path: Path) -> dict[str, Part]:
    """Reads the splits again.

    Raises:
      DataError: missing or damaged.
    """
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        strings = {key: json.loads(value.tobytes()) for key, value in arrays.items() if not key.endswith("/labels")}
        return {
            split: Part(arrays[f"{split}/labels"], *(strings[f"{split}/{key}"] for key in ("ids", "classes", "files")))
            for split in SPLITS
            if f"{split}/labels" in arrays
        }
    except Exception as error:  # NumPy and zipfile fail in many ways on damaged files
        raise DataError(f"{path}: cannot be read, {error}; prepare the data set again") from error
