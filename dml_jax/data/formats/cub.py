"""Caltech-UCSD Birds 200-2011: the first 100 species for training, the last 100 for test.

Class folders begin with their numbers. `images.txt` lists the images; without it, all are taken.
"""

import re

from dml_jax.data import official
from dml_jax.data.files import Entry, File, Files, is_image, read_rows
from dml_jax.data.sources import AUTO, Options, Recipe, Table
from dml_jax.errors import DataError
from dml_jax.files import reading
from dml_jax.remote.downloads import Download

CLASSES, TRAINING_CLASSES = 200, 100
CLASS = re.compile(r"(\d{3})\.(.+)")
EXPECTED = "expected images.txt, or class folders such as 001.Black_footed_Albatross"


def read(files: Files, options: Options = AUTO) -> Table:
    """Reads the official CUB_200_2011.tgz or the class folders in `images`, wherever they are."""
    entries = []
    for name, file in (_listed(files) or _unlisted(files)).items():
        label = name.rpartition("/")[0]
        match = CLASS.fullmatch(label)
        if not match or not 1 <= int(match[1]) <= CLASSES:
            where = "is in no folder that begins with the number of a class"
            raise DataError(f"{name} {where}; {EXPECTED}")
        split = "train" if int(match[1]) <= TRAINING_CLASSES else "test"
        entries.append(Entry(name, file, label, split))
    if not entries:
        raise DataError(f"{EXPECTED}; {official.describe_files(files)}; {official.ANOTHER}")
    return Table(entries)


def _listed(files: Files) -> dict[str, File]:
    """The images in `images.txt`, by name; empty if there is no such table."""
    if not official.find_paths(files, "images.txt"):
        return {}
    table = official.find_table(files, "images.txt", "CUB-200-2011")
    with reading(table):
        rows = [(name, "", "") for _, name in read_rows(files, table)]
    return {entry.id: entry.file for entry in official.find_images(files, table, rows)}


def _unlisted(files: Files) -> dict[str, File]:
    """The images in class folders, by name."""
    images: dict[str, File] = {}
    for path in _images(files):
        name = "/".join(path.split("/")[-2:])
        if name in images:
            what = f"another folder also contains {name}"
            raise DataError(f"{path}: {what}; give only one of them as --source")
        images[name] = files[path]
    return images


def _images(files: Files) -> list[str]:
    """All images but the masks, which are a separate download with folders of the same names."""
    return [path for path in files if is_image(path) and "segmentations" not in path.split("/")]


def matches(files: Files) -> bool:
    """Whether most images are in numbered folders, and named like them."""
    images = [path.split("/")[-2:] for path in _images(files)]
    matches = [(CLASS.fullmatch(parts[0]), parts[-1].lower()) for parts in images]
    named = [name for match, name in matches if match and name.startswith(match[2].lower())]
    return len(named) > len(images) / 2


RECIPE = Recipe(
    read,
    counts={"train": (5_864, 100), "test": (5_924, 100)},
    home="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    citation="Wah, Branson, Welinder, Perona, Belongie: The Caltech-UCSD Birds-200-2011 Dataset, "
    "2011",
    downloads=(  # length and SHA-256 are those in tensorflow_datasets
        Download(
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz?download=1",
            1_150_585_339,
            "0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
        ),
    ),
    terms="no licence is known; the photographs are from Flickr and belong to their photographers",
    matches=matches,
)
