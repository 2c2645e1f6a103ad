"""Prepared data sets: packed images, the index of labels beside them, and the marker that is written last."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax.data import decode, labels
from dml_jax.data.labels import Part
from dml_jax.data.prepare.sources import File, Recipe
from dml_jax.data.split import Split, disjoint
from dml_jax.errors import ConfigError, DataError
from dml_jax.files import sha256

FORMAT = 1
MARKER, INDEX = "prepared.json", "index.npz"


class Records:
    """Reads the packed images of a split; worker processes open the files for themselves."""

    def __init__(self, directory: str, split: str) -> None:
        self.directory, self.split = directory, split
        self._source: Any = None

    def __call__(self, position: int, rng: np.random.Generator | None) -> np.ndarray:
        if self._source is None:
            from dml_jax.data.prepare import tfds_builder  # imports tensorflow_datasets, which takes a second

            self._source = tfds_builder.source(self.directory, self.split)
        return decode.rgb(self._source(position))

    def __reduce__(self) -> tuple[type["Records"], tuple[str, str]]:
        return Records, (self.directory, self.split)


class ImageFiles:
    """Reads images from files of their own."""

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files

    def __call__(self, position: int, rng: np.random.Generator | None) -> np.ndarray:
        try:
            return decode.rgb(File(Path(self.files[position])).read())
        except DataError as error:
            raise DataError(f"{self.files[position]}: {error}") from error


def mark(directory: Path, content: Mapping[str, Any]) -> None:
    """Declares a prepared data set complete: the marker appears whole or not at all."""
    temporary = directory / f".{MARKER}"
    with temporary.open("w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / MARKER)


def read_marker(directory: Path) -> dict[str, Any] | None:
    """The marker's content; None where there is none.

    Raises:
      DataError: it is damaged or of another version.
    """
    path = directory / MARKER
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise DataError(f"{path}: was written by another version; prepare the data set again")
        return content
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is damaged; prepare the data set again") from error


def verify(directory: Path) -> None:
    """Reads every file of a prepared data set and compares its hash.

    Raises:
      DataError: naming the first that differs.
    """
    marker = read_marker(directory)
    if marker is None:
        raise DataError(f"{directory}: holds no prepared data set")
    for name, (_, digest) in marker["files"].items():
        if sha256(directory / name) != digest:
            raise DataError(f"{directory / name}: differs from what was written; prepare the data set again")


def load(path: str, name: str, unprepared: Recipe | None = None) -> dict[str, Split]:
    """The splits of a prepared data set.

    Args:
      path: its directory.
      name: the data set that is expected there.
      unprepared: how to read a directory that was not prepared, image by image, once all have been checked.

    Raises:
      ConfigError: no path is given.
      DataError: nothing prepared there, something else, or damaged.
    """
    if not path:
        raise ConfigError("data.path: missing; give the directory that dml_jax.prepare made")
    directory = Path(path).expanduser()
    making = f"python -m dml_jax.prepare --name={name} --source=… --output={path} makes one"
    if not directory.is_dir():
        raise DataError(f"data.path={path}: there is no such directory; {making}")
    marker = read_marker(directory)
    if marker is None and unprepared is not None:
        from dml_jax.data import raw_folder

        return _splits(raw_folder.parts(directory, unprepared), lambda split, part: ImageFiles(part.files))
    if marker is None:
        raise DataError(f"data.path={path}: holds no prepared data set; {making}")
    if marker["name"] != name:
        raise DataError(f"data.path={path}: holds the data set {marker['name']!r}; data.name is {name!r}")
    for file, (size, _) in marker["files"].items():
        if not (directory / file).is_file() or (directory / file).stat().st_size != size:
            raise DataError(f"{directory / file}: is missing or has lost bytes; prepare the data set again")
    records = str(directory / marker["records"])
    return _splits(
        labels.load(directory / INDEX), lambda split, part: Records(records, split), content=marker["sha256"]
    )


def _splits(parts: Mapping[str, Part], reader: Callable[[str, Part], Any], content: str = "") -> dict[str, Split]:
    splits = {
        name: Split(part.labels, part.ids, reader(name, part), part.classes, content=content)
        for name, part in parts.items()
    }
    if "gallery" in splits:
        splits["test"] = splits["test"]._replace(gallery=splits["gallery"])
    return disjoint(splits)
