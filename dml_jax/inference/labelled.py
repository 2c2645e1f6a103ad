"""Labelled images for a model that was not trained on them: a folder of class folders, or a prepared data set."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from dml_jax.config import Data
from dml_jax.data import formats, store
from dml_jax.data.formats import folder
from dml_jax.data.prepare.sources import Options, walk
from dml_jax.data.split import Split
from dml_jax.errors import DataError
from dml_jax.files import expand_path, reading


def class_folders(paths: list[str]) -> dict[str, list[Path]]:
    """Image files by class, with the classes that training finds in each directory (`formats.folder`)."""
    classes: dict[str, list[Path]] = {}
    directory_of: dict[str, str] = {}
    for name in paths:
        path = expand_path("DIRECTORY", name)
        if not path.is_dir():
            raise DataError(f"{name}: there is no such directory; give a directory with one folder of images per class")
        with reading(name):
            found = dict(sorted(walk(path)))
            entries = folder.find(found, Options())
        if note := folder.note(found):
            print(note)
        for entry in entries:
            if directory_of.setdefault(entry.class_name, name) != name:
                raise DataError(
                    f"{name}: {directory_of[entry.class_name]} also has a class {entry.class_name}; rename one"
                )
            classes.setdefault(entry.class_name, []).append(entry.file.path)
    return classes


def load(path: Path, data: Data) -> Split:
    """The test split of a prepared data set, with its gallery if it has one, or all images of a folder of classes."""
    if path.is_dir() and (prepared := store.read_marker(path)):
        return formats.load(replace(data, name=prepared["name"], path=str(path)))["test"]
    classes = class_folders([str(path)])
    files = [str(file) for found in classes.values() for file in found]
    labels = np.repeat(np.arange(len(classes)), [len(found) for found in classes.values()])
    return Split(labels, files, store.file_reader(files, data.decoded_side), list(classes))
