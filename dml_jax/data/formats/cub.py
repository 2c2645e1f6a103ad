"""Caltech-UCSD Birds 200-2011: the first 100 species are the training classes, the last 100 the test classes."""

from dml_jax.data.prepare.sources import Entry, Files, Options, Recipe, file_at, find_folder, read_rows
from dml_jax.files import reading
from dml_jax.remote.downloads import Source

TRAINING_CLASSES = 100


def find(files: Files, options: Options) -> list[Entry]:
    """Reads `images.txt` and `image_class_labels.txt` of the official archive, CUB_200_2011.tgz."""
    base = find_folder(files, "images.txt", "CUB-200-2011")
    entries = []
    with reading(f"{base}images.txt"):
        labels = {row[0]: int(row[-1]) for row in read_rows(files, f"{base}image_class_labels.txt")}
        for number, name in read_rows(files, f"{base}images.txt"):
            split = "train" if labels[number] <= TRAINING_CLASSES else "test"
            label = name.split("/")[0]  # begins with the class number, three digits
            entries.append(Entry(name, file_at(files, f"{base}images/{name}"), label, split))
    return entries


RECIPE = Recipe(
    find,
    counts={"train": (5_864, 100), "test": (5_924, 100)},
    home="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    citation="Wah, Branson, Welinder, Perona, Belongie: The Caltech-UCSD Birds-200-2011 Dataset, 2011",
    downloads=(  # length and SHA-256 are those in tensorflow_datasets
        Source(
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz?download=1",
            1_150_585_339,
            "0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
        ),
    ),
    terms="no licence is known; the photographs are from Flickr and belong to their photographers",
)
