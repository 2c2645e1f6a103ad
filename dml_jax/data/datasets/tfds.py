"""A data set that tensorflow_datasets has prepared elsewhere, in the array_record format, read where it lies.

`data.path` is the directory of one version, as ~/tensorflow_datasets/cars196/2.1.0. Where its splits share classes, as
those made for classification do, they are joined and divided by class: the first half is trained on, as is usual for
CUB-200-2011 (caltech_birds2011) and Cars196 (cars196).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax.config import Data
from dml_jax.data import decode, labels
from dml_jax.data.labels import Part
from dml_jax.data.split import Split, disjoint
from dml_jax.errors import ConfigError, DataError

LABELS = ("label", "class_id")  # features that may hold the class


class Images:
    """Reads images by their ids, "<split>/<position>"; worker processes open the files for themselves."""

    def __init__(self, directory: str, ids: Sequence[str]) -> None:
        self.directory, self.ids = directory, ids
        self._sources: dict[str, Any] = {}

    def __call__(self, position: int, rng: np.random.Generator | None) -> np.ndarray:
        split, row = self.ids[position].split("/")
        if split not in self._sources:
            self._sources[split] = _source(self.directory, split)
        try:
            return decode.rgb(self._sources[split][int(row)]["image"])
        except DataError as error:
            raise DataError(f"{self.directory}, {self.ids[position]}: {error}") from error

    def __reduce__(self) -> tuple[type["Images"], tuple[str, Sequence[str]]]:
        return Images, (self.directory, self.ids)


def load(data: Data) -> dict[str, Split]:
    """The splits "train" and "test"; labels are read once and then remembered."""
    if not data.path:
        raise ConfigError("data.path: missing; give a directory that tensorflow_datasets has prepared")
    directory = Path(data.path).expanduser().resolve()
    info = directory / "dataset_info.json"
    if not info.is_file():
        raise DataError(f"data.path={data.path}: holds no dataset_info.json of tensorflow_datasets")
    parts = labels.cached(f"{directory}\0{info.stat().st_mtime_ns}".encode(), lambda: _parts(str(directory)))
    return disjoint(
        {name: Split(p.labels, p.ids, Images(str(directory), p.ids), p.classes) for name, p in parts.items()}
    )


def _parts(directory: str) -> Mapping[str, Part]:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(directory)
    if builder.info.file_format != tfds.core.FileFormat.ARRAY_RECORD:
        found = builder.info.file_format
        raise DataError(
            f"data.path={directory}: is stored as {found.value if found else 'unknown'}; random access needs "
            "array_record, which tfds build --file_format=array_record writes"
        )
    label = next((name for name in LABELS if name in builder.info.features), None)
    if label is None or "image" not in builder.info.features:
        raise DataError(f"data.path={directory}: has no feature image with a feature {' or '.join(LABELS)}")
    rows = {split: _labels(directory, split, label) for split in builder.info.splits}
    seen = [set(values.tolist()) for values in rows.values()]
    if len(rows) == 2 and not seen[0] & seen[1] and "train" in rows:
        groups = {"train" if split == "train" else "test": {split: values} for split, values in rows.items()}
        classes = {name: sorted(set().union(*(set(v.tolist()) for v in of.values()))) for name, of in groups.items()}
    else:
        every = sorted(set().union(*seen))
        classes = {"train": every[: len(every) // 2], "test": every[len(every) // 2 :]}
        groups = {"train": rows, "test": rows}
    return {name: _part(groups[name], classes[name]) for name in groups}


def _part(rows: Mapping[str, np.ndarray], classes: Sequence[int]) -> Part:
    """The images of some classes from all splits."""
    number = {label: i for i, label in enumerate(classes)}
    kept = [
        (f"{split}/{i}", number[v])
        for split, values in rows.items()
        for i, v in enumerate(values.tolist())
        if v in number
    ]
    return Part(
        np.array([label for _, label in kept], np.int64),
        [name for name, _ in kept],
        [str(c) for c in classes],
    )


def _labels(directory: str, split: str, label: str) -> np.ndarray:
    source = _source(directory, split)
    return np.array([source[i][label] for i in range(len(source))], np.int64)


def _source(directory: str, split: str) -> Any:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(directory)
    return builder.as_data_source(split=split, decoders={"image": tfds.decode.SkipDecoding()})
