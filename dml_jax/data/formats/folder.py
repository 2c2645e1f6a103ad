"""Image folders with one subfolder per class.

    photos/oak/1.jpg              the classes are split into training and test classes,

    photos/train/oak/1.jpg        or folders named like train, test (or query), and optionally
    photos/test/elm/7.jpg         validation and gallery give the split, at any level

`understand` tells what the folders are.
"""

from dml_jax.data.files import IMAGE_SUFFIXES, Entry, Files, is_image
from dml_jax.data.sources import Recipe, Table, packed_files
from dml_jax.errors import DataError


def read(files: Files) -> Table:
    """Takes every file with the suffix of an image as one."""
    rows = [Entry(path, file, "", "") for path, file in files.items() if is_image(path)]
    if not rows:
        reasons = packed_files(files) or [
            "there is no class folder with images; put the images of each class into a folder, "
            f"with names that end in {', '.join(IMAGE_SUFFIXES)}"
        ]
        raise DataError("; ".join(reasons))
    return Table(rows)


def recognised(files: Files) -> bool:
    return any(map(is_image, files))


RECIPE = Recipe(read, reads=(), in_place=True, recognised=recognised)
