"""Custom image folders with one subfolder per class.

    photos/oak/1.jpg              the classes are split into training and test classes,

    photos/train/oak/1.jpg        or the split is given by folders train, test (or query), optionally val and gallery
    photos/test/elm/7.jpg

Class folders may be nested; the name of a class is then its whole path.
"""

import hashlib

from dml_jax.config import Data
from dml_jax.data import prepared
from dml_jax.data.prepare.source_files import IMAGE_SUFFIXES, SPLIT_NAMES, Entry, Files, Options, Recipe
from dml_jax.data.split import Split
from dml_jax.errors import DataError


def find(files: Files, options: Options) -> list[Entry]:
    """Takes every file in a class folder as an image."""
    paths = {path: path.split("/") for path in files if "/" in path}
    if stray := [path for path in files if "/" not in path and path.lower().endswith(IMAGE_SUFFIXES)]:
        raise DataError(
            f"{len(stray)} images, e.g. {stray[0]}, are in no class folder: put the images of each class into a folder"
        )
    if not paths:
        raise DataError("there is no class folder with images; put the images of each class into a folder")
    given = {parts[0] for parts in paths.values()} <= set(SPLIT_NAMES)
    if options.splits != "classes" and given:
        return [
            Entry(path, files[path], "/".join(parts[1:-1]), SPLIT_NAMES[parts[0]])
            for path, parts in paths.items()
            if len(parts) > 2
        ]
    if options.splits == "folders":
        raise DataError(f"--splits=folders: the folders must be called {', '.join(SPLIT_NAMES)}")
    labels = {path: "/".join(parts[1 if given else 0 : -1]) for path, parts in paths.items()}
    tested = test_classes(set(labels.values()), options.test_share)
    return [Entry(path, files[path], label, "test" if label in tested else "train") for path, label in labels.items()]


def test_classes(classes: set[str], share: float) -> set[str]:
    """Chooses the classes with the smallest SHA-256 of their name, so that adding a class moves few others."""
    ranked = sorted(classes, key=lambda name: hashlib.sha256(name.encode(errors="surrogateescape")).digest())
    return set(ranked[: round(share * len(ranked))])


RECIPE = Recipe(find)


def load(data: Data) -> dict[str, Split]:
    """The splits of a prepared data set, or of an unprepared folder, whose images are checked the first time."""
    return prepared.load(data, "folder", unprepared=RECIPE)
