"""Cars196 (Stanford Cars): the first 98 of 196 classes for training, the last 98 for test.

The official split, which is for classification, is ignored. The original site is gone, so the
layouts in circulation are read: the original archives (cars_train, cars_test and a devkit with .mat
files), all images in car_ims with one cars_annos.mat, and class folders. Sorting the titles of the
classes gives the official order of the makes, but not of all models: 143 of 196 classes would have
another number, though the same split.
"""

import io
import re

import numpy as np

from dml_jax.data import official
from dml_jax.data.files import Entry, Files, is_image
from dml_jax.data.sources import AUTO, Options, Recipe, Table
from dml_jax.errors import DataError
from dml_jax.files import reading

CLASSES, TRAINING_CLASSES = 196, 98
TRAIN, TEST, JOINED = "cars_train_annos.mat", "cars_test_annos_withlabels.mat", "cars_annos.mat"
FOLDERS = {TRAIN: "cars_train/", TEST: "cars_test/"}
EXPECTED = (
    f"expected cars_train and cars_test with {TRAIN} and {TEST}, or car_ims with {JOINED}, or "
    "class folders such as 'Acura TL Sedan 2012', '003 Acura TL Sedan 2012' or '3'"
)
# car_ims/000001.jpg is another image than cars_train/00001.jpg, and no table connects the two.
OTHER_NUMBERS = (
    "give car_ims as another --source, or for cars_train and cars_test, whose images are numbered "
    f"in another order, {TRAIN} and {TEST} of the devkit"
)
SIX_DIGITS = re.compile(r"\d{6}\.jpg")
NUMBERED = re.compile(r"(\d{1,3})(?:[ ._-]+(.*))?")
YEAR = re.compile(r"[^\d].*[ _](19|20)\d\d")  # every title ends with one
BODY = re.compile(
    r".*(sedan|coupe|suv|convertible|hatchback|wagon|minivan|van|cab)[ _](19|20)\d\d", re.IGNORECASE
)


def read(files: Files, options: Options = AUTO) -> Table:
    """Reads any layout; of the original one also a half, as the test labels are often missing."""
    tables, titles, entries = _tables(files), _titles(files), []
    for table in tables:
        path, rows = _annotations(files, table)
        names = rows["relative_im_path" if table == JOINED else "fname"]
        listed = [
            (FOLDERS.get(table, "") + str(name), *_class(number, titles.get(number, "")))
            for name, number in zip(names, map(int, rows["class"]), strict=True)
        ]
        how = ("car_ims/", OTHER_NUMBERS) if table == JOINED else ()
        entries += official.find_images(files, path, listed, *how)
    if not tables:
        doubt = (
            "class folders of Cars196: as in the papers, the classes 1 to 98 (AM General to Eagle) "
            "are for training, 99 to 196 (FIAT to smart) for test"
        )
        return Table(_folders(files, titles), [doubt])
    left_out = [table for table in FOLDERS if table not in tables] if JOINED not in tables else []
    doubts = [
        f"{FOLDERS[table]} is left out, because its images or their labels in {table} are missing; "
        "the classes are divided as in the papers"
        for table in left_out
    ]
    return Table(entries, doubts)


def matches(files: Files) -> bool:
    """Whether there are its tables, or most images are in folders named like its classes."""
    folders = [path.split("/")[-2] for path in files if "/" in path and is_image(path)]
    titled = sum(bool(BODY.fullmatch(name)) for name in folders)
    return bool(_tables(files)) or titled > len(folders) / 2


def _tables(files: Files) -> list[str]:
    """The tables to read, preferably those with images; the devkit may lie beside car_ims, whose
    image names have six digits."""
    names = {path.split("/")[-1] for path in files}
    original = [table for table in FOLDERS if table in names]
    if JOINED in names and (not original or any(map(SIX_DIGITS.fullmatch, names))):
        return [JOINED]
    return [t for t in original if any(f"/{FOLDERS[t]}" in f"/{p}" for p in files)] or original


def _class(number: int, title: str) -> tuple[str, str]:
    """The name of a class, and its split."""
    return f"{number:03d} {title}".strip(), "train" if number <= TRAINING_CLASSES else "test"


def _folders(files: Files, titles: dict[int, str]) -> list[Entry]:
    """Reads class folders; those of the same name in train/ and test/ are one class.

    A number in a name is the official one. Without it, the make is enough: up to Eagle, classes are
    for training, and from FIAT on for test.
    """
    number_of = {_plain(title): number for number, title in titles.items()}
    entries = []
    for path in filter(is_image, files):
        folder = f"/{path}".split("/")[-2]
        match = NUMBERED.fullmatch(folder)
        number = int(match[1]) if match else number_of.get(_plain(folder), 0)
        if 1 <= number <= CLASSES:
            title = titles.get(number) or (match and match[2]) or ""
            entries.append(Entry(path, files[path], *_class(number, title)))
        elif YEAR.fullmatch(folder):
            split = "train" if folder[0].lower() < "f" else "test"
            entries.append(Entry(path, files[path], folder, split))
        else:
            where = f"{path} is in no class folder of Cars196"
            raise DataError(f"{where}; {EXPECTED}; {official.describe_files(files)}")
    if not entries:
        raise DataError(f"{EXPECTED}; {official.describe_files(files)}; {official.ANOTHER}")
    return entries


def _plain(title: str) -> str:
    """A title without the characters in which tables and folders differ, as in "Ram C/V"."""
    return "".join(filter(str.isalnum, title)).lower()


def _annotations(files: Files, table: str) -> tuple[str, np.ndarray]:
    path, content = _mat(files, table)
    with reading(path, "give the official file with labels"):
        rows = content["annotations"]
        rows["class"]  # which the test annotations without labels lack
        return path, rows


def _titles(files: Files) -> dict[int, str]:
    names = {path.split("/")[-1] for path in files}
    for table in ("cars_meta.mat", JOINED):
        if table in names and "class_names" in (content := _mat(files, table)[1]):
            return {i: str(title) for i, title in enumerate(content["class_names"], start=1)}
    return {}


def _mat(files: Files, table: str) -> tuple[str, dict[str, np.ndarray]]:
    from scipy.io import loadmat

    path = official.find_table(files, table, "Cars196")
    with reading(path):
        content = loadmat(io.BytesIO(files[path].read()), squeeze_me=True)
        return path, {key: np.atleast_1d(value) for key, value in content.items()}


RECIPE = Recipe(
    read,
    counts={"train": (8_054, 98), "test": (8_131, 98)},
    home="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    citation="Krause, Stark, Deng, Fei-Fei: 3D Object Representations for Fine-Grained "
    "Categorization, 3dRR 2013",
    terms="its owners have not published it since 2023, when their addresses began to answer 404",
    matches=matches,
)
