"""Data sets prepared by tensorflow_datasets in the array_record format, read in place.

`data.path` is the directory of one version, e.g. ~/tensorflow_datasets/cars196/2.1.0. The splits
"train" and "test", and "validation" if it exists, are kept if no class is in two of them; if there
are only two, the second may have another name. Other splits, such as those for classification, are
merged, and the first half of the classes becomes the training split, as is usual for CUB-200-2011
(caltech_birds2011) and Cars196 (cars196).
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax.config import Data
from dml_jax.data import decode
from dml_jax.data.split import Split, cache_splits, subset, unread
from dml_jax.errors import DataError
from dml_jax.files import reading

LABELS = ("label", "class_id")  # features that may contain the label


def _read(
    directory: str, ids: Sequence[str], data: Data, index: int, rng: np.random.Generator | None
) -> np.ndarray:
    """`Split.read` for images with ids "<split>/<row>"."""
    split, row = ids[index].split("/")
    with reading(f"{directory}, {ids[index]}"):
        stored = _source(directory, split)[int(row)]["image"]
        return decode.rgb(stored, upright=data.exif_rotation)


def load(data: Data) -> dict[str, Split]:
    """The splits "train", "test" and, if given, "validation"; labels are read once, then cached."""
    directory = Path(data.path).expanduser().resolve()
    info = directory / "dataset_info.json"
    if not data.path or not info.is_file():
        needed = "give a directory with the dataset_info.json of tensorflow_datasets"
        raise DataError(f"data.path={data.path}: {needed}")
    key = f"{directory}\0{info.stat().st_mtime_ns}".encode()
    return {
        name: split._replace(read=partial(_read, str(directory), split.ids, data))
        for name, split in cache_splits(key, lambda: _scan(str(directory))).items()
    }


def _scan(directory: str) -> Mapping[str, Split]:
    """Reads all labels and divides the classes, unless the splits do."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(directory)
    label = next((name for name in LABELS if name in builder.info.features), "")
    random_access = builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD
    if not random_access or not label or "image" not in builder.info.features:
        raise DataError(
            f"data.path={directory}: must have a feature image and a feature "
            f"{' or '.join(LABELS)}, and be stored as array_record; prepare it with tfds build "
            "--file_format=array_record"
        )
    rows = {}
    for split in builder.info.splits:
        source = _source(directory, split)
        rows[split] = np.array([source[i][label] for i in range(len(source))], np.int64)
    names, labels = np.unique(np.concatenate([*rows.values()]), return_inverse=True)
    ids = [f"{split}/{row}" for split, values in rows.items() for row in range(len(values))]
    every = Split(labels.astype(np.int64), ids, unread, [str(name) for name in names])
    classes = {split: np.flatnonzero(np.isin(names, values)) for split, values in rows.items()}
    disjoint = sum(map(len, classes.values())) == len(names)
    others = [split for split in rows if split != "train"]
    if disjoint and len(rows) == 2 and len(others) == 1:
        classes = {"train": classes["train"], "test": classes[others[0]]}
    elif not disjoint or set(rows) != {"train", "validation", "test"}:
        half = len(names) // 2
        classes = {"train": np.arange(half), "test": np.arange(half, len(names))}
    return {split: subset(every, chosen) for split, chosen in classes.items()}


@cache
def _source(directory: str, split: str) -> Sequence[dict[str, Any]]:
    """The examples of a split, with images still encoded; opened once by each process."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(directory)
    return builder.as_data_source(split=split, decoders={"image": tfds.decode.SkipDecoding()})
