"""Cars196 (Stanford Cars): the first 98 of 196 classes for training, the last 98 for test.

The data set's own split, which is for classification, is ignored. The original site is gone, so the three layouts in
circulation are read: the original archives (cars_train, cars_test and a devkit with .mat files), all images in car_ims
with one cars_annos.mat, and class folders.
"""

import io

import numpy as np

from dml_jax.data.prepare.sources import Entry, File, Files, Options, Recipe, file_at, find_folder
from dml_jax.errors import DataError
from dml_jax.files import reading

CLASSES, TRAINING_CLASSES = 196, 98


def find(files: Files, options: Options) -> list[Entry]:
    """Reads any of the three layouts."""
    short = {"/".join(path.split("/")[-2:]): path for path in files}  # folder and file name -> path
    names = {path.split("/")[-1] for path in files}
    if "cars_train_annos.mat" in names:
        rows = []
        for folder, table in (("cars_train", "cars_train_annos.mat"), ("cars_test", "cars_test_annos_withlabels.mat")):
            for row in _annotations(files, table):
                rows.append((f"{folder}/{row['fname']}", int(row["class"])))
    elif "cars_annos.mat" in names:
        rows = [(str(row["relative_im_path"]), int(row["class"])) for row in _annotations(files, "cars_annos.mat")]
    else:
        return _folders(files)
    title = _titles(files, names)
    return [_entry(path, file_at(files, short.get(path, path)), number, title.get(number, "")) for path, number in rows]


def _entry(name: str, file: File, number: int, title: str) -> Entry:
    split = "train" if number <= TRAINING_CLASSES else "test"
    return Entry(name, file, f"{number:03d} {title}".strip(), split)


def _folders(files: Files) -> list[Entry]:
    """Reads the class folders of train/ and test/ and merges them; sorted by name they are in the official order."""
    images = {path: path.split("/")[-2] for path in files if path.count("/") and path.lower().endswith(".jpg")}
    titles = sorted(set(images.values()))
    if not titles:
        raise DataError("neither cars_train_annos.mat nor cars_annos.mat nor class folders found: not Cars196")
    half = TRAINING_CLASSES if len(titles) == CLASSES else len(titles) // 2
    number = {title: i + 1 if i < half else i + 1 + TRAINING_CLASSES - half for i, title in enumerate(titles)}
    return [_entry(path, files[path], number[title], title) for path, title in images.items()]


def _annotations(files: Files, table: str) -> np.ndarray:
    with reading(table, "give the official file with labels"):
        rows = _mat(files, table)["annotations"]
        rows["class"]  # which the test annotations without labels lack
        return rows


def _titles(files: Files, names: set[str]) -> dict[int, str]:
    for table in ("cars_meta.mat", "cars_annos.mat"):
        if table in names and "class_names" in (content := _mat(files, table)):
            return {i: str(title) for i, title in enumerate(content["class_names"], start=1)}
    return {}


def _mat(files: Files, table: str) -> dict[str, np.ndarray]:
    from scipy.io import loadmat

    path = find_folder(files, table, "Cars196") + table
    with reading(path):
        content = loadmat(io.BytesIO(files[path].read()), squeeze_me=True)
        return {key: np.atleast_1d(value) for key, value in content.items()}


RECIPE = Recipe(
    find,
    counts={"train": (8_054, 98), "test": (8_131, 98)},
    home="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    citation="Krause, Stark, Deng, Fei-Fei: 3D Object Representations for Fine-Grained Categorization, 3dRR 2013",
    terms="its owners have not published it since 2023, when their addresses began to answer 404",
)
