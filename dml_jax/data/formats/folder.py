"""Custom image folders with one subfolder per class.

    photos/oak/1.jpg              the classes are split into training and test classes,

    photos/train/oak/1.jpg        or the split is given by folders train, test (or query), optionally val and gallery
    photos/test/elm/7.jpg

Class folders may be nested; the name of a class is then its whole path. A folder inside a class folder
is a class of its own.
"""

import hashlib
from pathlib import PurePosixPath

from dml_jax.data.prepare.sources import IMAGE_SUFFIXES, SPLIT_NAMES, Entry, Files, Options, Recipe, is_image
from dml_jax.errors import DataError, counted


def find(files: Files, options: Options) -> list[Entry]:
    """Takes every file with the suffix of an image as one; its class is the path of its folder."""
    paths = {path: path.split("/") for path in files if is_image(path)}
    given = {parts[0] for parts in paths.values() if len(parts) > 1} <= set(SPLIT_NAMES)
    labels = {path: "/".join(parts[1 if given else 0 : -1]) for path, parts in paths.items()}
    if stray := [path for path, label in labels.items() if not label]:
        raise DataError(
            f"{len(stray)} images, e.g. {stray[0]}, are in no class folder: put the images of each class into a folder"
        )
    if not paths:
        raise DataError(
            "there is no class folder with images; put the images of each class into a folder, with names that end in "
            f"{', '.join(IMAGE_SUFFIXES)}"
        )
    if options.splits != "classes" and given:
        return [Entry(path, files[path], labels[path], SPLIT_NAMES[parts[0]]) for path, parts in paths.items()]
    tested = test_classes(set(labels.values()), options.test_share)
    return [Entry(path, files[path], label, "test" if label in tested else "train") for path, label in labels.items()]


def test_classes(classes: set[str], share: float) -> set[str]:
    """Chooses the classes with the smallest SHA-256 of their name, so that adding a class moves few others."""
    ranked = sorted(classes, key=lambda name: hashlib.sha256(name.encode(errors="surrogateescape")).digest())
    return set(ranked[: round(share * len(ranked))])


def note(files: Files) -> str:
    """Files that are skipped, and class folders inside another class folder; empty if there are neither."""
    others = [path for path in files if not is_image(path)]
    sentences = [f"skipped {counted(len(others), 'file')} other than images, e.g. {others[0]}"] if others else []
    folders = {path.rpartition("/")[0] for path in files if is_image(path)}
    inside = [
        (outer.as_posix(), inner)
        for inner in sorted(folders)
        for outer in PurePosixPath(inner).parents
        if outer.as_posix() in folders
    ]
    if inside:
        outer, inner = inside[0]
        sentences.append(
            f"warning: the class folder {inner!r} is inside the class folder {outer!r} and counts as another class; if "
            f"it is the same class, move its images to {outer!r}"
            + (f" ({len(inside) - 1} more such folders)" if len(inside) > 1 else "")
        )
    return "; ".join(sentences)


RECIPE = Recipe(find, note=note, in_place=True)
