"""One's own photographs: a folder of class folders.

    photos/oak/1.jpg              classes are divided into training and test ones
    photos/train/oak/1.jpg        or as the folders train and test (and gallery) say
    photos/test/elm/7.jpg

Class folders may lie in folders of their own; a class is then called by its whole path.
"""

import hashlib

from dml_jax.config import Data
from dml_jax.data import prepared
from dml_jax.data.prepare.sources import IMAGES, SPLITS, Entry, Files, Options, Recipe
from dml_jax.data.split import Split
from dml_jax.errors import DataError


def find(files: Files, options: Options) -> list[Entry]:
    """Every file in a class folder is taken for an image."""
    paths = {path: path.split("/") for path in files if "/" in path}
    if stray := [path for path in files if "/" not in path and path.lower().endswith(IMAGES)]:
        raise DataError(
            f"{len(stray)} images lie in no class folder, {stray[0]} among them: give each class a folder of its own"
        )
    if not paths:
        raise DataError("there is no class folder with images; give each class a folder of its own")
    if options.splits != "classes" and {parts[0] for parts in paths.values()} <= {*SPLITS, "query"}:
        return [
            Entry(path, files[path], "/".join(parts[1:-1]), "test" if parts[0] == "query" else parts[0])
            for path, parts in paths.items()
            if len(parts) > 2
        ]
    if options.splits == "folders":
        raise DataError(f"--splits=folders: the folders are not called {', '.join(SPLITS)}")
    drop = options.splits == "classes" and {parts[0] for parts in paths.values()} <= {*SPLITS, "query"}
    labels = {path: "/".join(parts[1 if drop else 0 : -1]) for path, parts in paths.items()}
    tested = held_out(set(labels.values()), options.test_share)
    return [Entry(path, files[path], label, "test" if label in tested else "train") for path, label in labels.items()]


def held_out(classes: set[str], share: float) -> set[str]:
    """The test classes: those whose names' SHA-256 are smallest. A class added later moves few others."""
    ranked = sorted(classes, key=lambda name: hashlib.sha256(name.encode(errors="surrogateescape")).digest())
    return set(ranked[: round(share * len(ranked))])


RECIPE = Recipe(find)


def load(data: Data) -> dict[str, Split]:
    """The splits of a prepared data set, or of a folder that was not prepared and is checked the first time."""
    return prepared.load(data.path, "folder", unprepared=RECIPE)
