"""Prepared data sets: packed images, an index of labels and names, and a marker file that is written last.

Version 2 of the format, which is written, has the encoded images as the records of an ArrayRecord file for each split
and an Arrow file as its index. Version 1, which is still read, was a directory of tensorflow_datasets and a .npz file.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource
from pydantic import StrictInt

from dml_jax.config import Data
from dml_jax.data import decode, split_metadata, unprepared_folder
from dml_jax.data.formats import tfds
from dml_jax.data.prepare.sources import File, Recipe
from dml_jax.data.split import Split, check_disjoint
from dml_jax.errors import ConfigError, DataError
from dml_jax.files import read_json, reading, sha256

FORMAT = 2
MARKER, INDEX, INDEX_1 = "prepared.json", "index.arrow", "index.npz"
REMEDY = "prepare the data set again"


@dataclass
class Marker:
    """The fields of the marker file."""

    format: Literal[1, 2]
    name: str
    sha256: str  # digest of all images with their names and classes
    splits: dict[str, dict[str, StrictInt]]  # split -> numbers of "images" and "classes"
    records: str  # directory of the packed images
    files: dict[str, tuple[StrictInt, str]]  # path -> (size in bytes, SHA-256)
    request: dict[str, Any]  # the options of the preparation that determine its result
    skipped: list[Any]  # images that were left out, with the reasons


@dataclass(eq=False)
class RecordReader:
    """`Split.read` for packed images. When pickled for a worker process, it opens the files there."""

    directory: str
    split: str
    examples: bool = False  # whether the records are those of version 1
    min_side: int = 0
    upright: bool = True

    @functools.cached_property
    def records(self) -> ArrayRecordDataSource:
        with reading(Path(self.directory), REMEDY):
            return ArrayRecordDataSource(sorted(Path(self.directory).glob(f"*{self.split}.array_record*")))

    def __call__(self, index: int, rng: np.random.Generator | None) -> np.ndarray:
        records = self.records
        with reading(f"{self.directory}, image {index} of {self.split}", REMEDY):
            record = records[index]
            data = tfds.encoded_image(record) if self.examples else record
            return decode.rgb(data, self.min_side, upright=self.upright)


@dataclass(eq=False)
class FileReader:
    """`Split.read` for images in separate files."""

    files: Sequence[str]
    min_side: int = 0
    upright: bool = True

    def __call__(self, index: int, rng: np.random.Generator | None) -> np.ndarray:
        with reading(self.files[index]):
            return decode.rgb(File(Path(self.files[index])).read(), self.min_side, upright=self.upright)


def read_marker(directory: Path) -> dict[str, Any] | None:
    """The content of the marker file, None if it does not exist; raises DataError if a field is damaged."""
    path = directory / MARKER
    if not path.is_file():
        return None
    content: dict[str, Any] = read_json(path, Marker, REMEDY)
    return content


def verify(directory: Path) -> None:
    """Raises DataError unless the SHA-256 of every file of a prepared data set is the recorded one."""
    marker = read_marker(directory)
    if marker is None:
        raise DataError(f"{directory}: not a prepared data set")
    for name, (_, digest) in marker["files"].items():
        with reading(directory / name, REMEDY):
            if sha256(directory / name) != digest:
                raise DataError(f"differs from what was written; {REMEDY}")


def load(data: Data, name: str, unprepared: Recipe | None = None) -> dict[str, Split]:
    """The splits of a prepared data set; with a recipe, also of an unprepared folder, whose images it finds.

    Raises DataError if `data.path` is no such directory, not prepared, another data set, or damaged.
    """
    path, how = data.path, (data.decoded_side, data.exif_rotation)
    if not path:
        raise ConfigError("data.path: missing; give the directory of a data set prepared by dml-jax prepare")
    directory = Path(path).expanduser()
    remedy = f"dml-jax prepare --name={name} --source=… --output={path} creates one"
    if unprepared is not None:
        remedy = "give one with --config.data.path, prepared or with one subfolder per class"
    if not directory.is_dir():
        raise DataError(f"data.path={path}: no such directory; {remedy}")
    marker = read_marker(directory)
    if marker is None and unprepared is not None:
        scanned = unprepared_folder.scan(directory, unprepared)
        return _with_gallery({name: split.read_by(FileReader(split.files, *how)) for name, split in scanned.items()})
    if marker is None:
        raise DataError(f"data.path={path}: not a prepared data set; {remedy}")
    if marker["name"] != name:
        raise DataError(f"data.path={path}: contains the data set {marker['name']!r}, but data.name is {name!r}")
    for file, (size, _) in marker["files"].items():
        if not (directory / file).is_file() or (directory / file).stat().st_size != size:
            raise DataError(f"{directory / file}: missing or of the wrong size; {REMEDY}")
    records, old = str(directory / marker["records"]), marker["format"] == 1
    splits = split_metadata.load(directory / (INDEX_1 if old else INDEX))
    read = {name: split.read_by(RecordReader(records, name, old, *how)) for name, split in splits.items()}
    return _with_gallery({name: split._replace(content=marker["sha256"]) for name, split in read.items()})


def _with_gallery(loaded: dict[str, Split]) -> dict[str, Split]:
    if "gallery" in loaded:
        loaded["test"] = loaded["test"]._replace(gallery=loaded["gallery"])
    check_disjoint(loaded)
    return loaded
