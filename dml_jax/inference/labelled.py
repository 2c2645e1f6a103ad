"""Labelled images for a model that was not trained on them: a folder of class folders, or a prepared data set."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from dml_jax.config import Data
from dml_jax.data import formats, sessions, store
from dml_jax.data.formats import folder
from dml_jax.data.prepare.sources import Options, walk
from dml_jax.data.split import Split
from dml_jax.errors import DataError
from dml_jax.files import expand_path, reading


def class_folders(paths: list[str], session: str = "") -> dict[str, list[Path]]:
    """Image files by class, with the classes that training finds in each directory (`formats.folder`).

    With the session "folder", the folders in a class folder are no classes of their own.
    """
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
            label = entry.class_name
            if session == sessions.FOLDER:
                label = label.rpartition("/")[0] or label
            if directory_of.setdefault(label, name) != name:
                raise DataError(f"{name}: {directory_of[label]} also has a class {label}; rename one")
            classes.setdefault(label, []).append(entry.file.path)
    return classes


def sessions_of(classes: dict[str, list[Path]], session: str) -> dict[Path, str]:
    """The session of each image, see `data.sessions`."""
    files = [file for images in classes.values() for file in images]
    return dict(zip(files, sessions.find(session, [str(file) for file in files], files), strict=True)) if files else {}


def load(path: Path, data: Data, session: str = "") -> Split:
    """The test split of a prepared data set, with its gallery if it has one, or all images of a folder of classes.

    The column "session" holds the sessions of the images if they are known, see `data.sessions`.
    """
    if path.is_dir() and (prepared := store.read_marker(path)):
        return formats.load(replace(data, name=prepared["name"], path=str(path), session=session))["test"]
    classes = class_folders([str(path)], session)
    files = [str(file) for found in classes.values() for file in found]
    labels = np.repeat(np.arange(len(classes)), [len(found) for found in classes.values()])
    split = Split(labels, files, store.file_reader(files, data.decoded_side), list(classes), files=files)
    return sessions.added(split, session)
