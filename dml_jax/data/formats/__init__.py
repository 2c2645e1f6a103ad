"""The data sets: `config.data.name` is the name of a module here; there is no other registry.

A data set that `dml-jax prepare` converts defines `RECIPE: sources.Recipe`, whose `read` makes a
table of images, classes and splits from the original files, as in `cub.py`. Any other defines

    load(data: config.Data) -> dict[str, Split]

such as `digits.py`; `load` raises DataError or ConfigError if `data.path` is not what it expects.
The splits are "train" and "test", whose classes are disjoint, and optionally "validation", which
shares no class with "test". If the test images are queries, they search the split "gallery".

Its test is a miniature of the original files in `tests/data/layouts.py` and an entry in `LAYOUTS`
of `tests/data/test_datasets.py`. The table in `docs/topics/data.md` gets a row.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dml_jax.class_names import near_equal
from dml_jax.config import Data, plugin_module
from dml_jax.data import prepared_data, sessions
from dml_jax.data.files import Record
from dml_jax.data.sources import AUTO, Options, list_files
from dml_jax.data.split import Split, redrawn, together, with_gallery
from dml_jax.data.understand import recognise, summarise_doubts
from dml_jax.errors import DataError, printable
from dml_jax.files import expand_path, is_url


def load(data: Data) -> dict[str, Split]:
    """Loads the splits of the data set `data.name`; from a bucket, by a copy on this machine."""
    if is_url(data.path):
        data = replace(data, path=str(prepared_data.copy_from_bucket(data.path)))
    module = plugin_module("data", data.name)
    if hasattr(module, "load"):
        splits = dict(module.load(data))
    else:
        splits = prepared_data.load(data, module.RECIPE)
    if data.session:
        splits = {
            name: sessions.add_sessions(split, data.session) for name, split in splits.items()
        }
    if data.class_split:
        splits = redrawn(splits, data.class_split)
    if data.split == "all":
        splits["train"] = together(list(splits.values()))
    if data.session:
        sessions.check_sessions(with_gallery(splits), data.session)
    return splits


def class_folders(paths: list[str], options: Options = AUTO) -> dict[str, list[Path | Record]]:
    """Images by class, from all splits: the records of prepared data sets, and image files as
    `understand` reads other directories and tables; prints what is doubtful.

    With the session "folder", the folders in a class folder are not classes.
    """
    classes: dict[str, list[Path | Record]] = {}
    directory_of: dict[str, str] = {}
    for name in paths:
        path = expand_path("DIRECTORY", name)
        if not path.is_dir() and not path.is_file():
            remedy = "give a directory with one folder of images per class"
            raise DataError(f"{name}: there is no such directory; {remedy}")
        images: Mapping[str, Sequence[Path | Record]]
        if about := prepared_data.read_about(path):
            images = prepared_data.records_by_class(path, about["name"], options.session)
        else:
            images = _files_by_class(path, name, options)
        for label in images:
            other = directory_of.setdefault(label, name)
            if other != name:
                raise DataError(f"{name}: {other} also has a class {label}; rename one")
            classes[label] = list(images[label])
    for group in near_equal(classes):
        if len({directory_of[label] for label in group}) > 1:  # others are doubts of their source
            names = " and ".join(map(printable, group))
            print(f"near-equal names of classes: {names}; rename those that are the same")
    return classes


def _files_by_class(path: Path, name: str, options: Options) -> dict[str, list[Path]]:
    """The images of a directory or a table, which messages call `name`; prints doubts."""
    _, table = recognise(list_files([path]), options, name)
    if options.splits == "auto" and table.refused:
        remedy = "or give --splits=none to take its folders for classes"
        raise DataError(f"{name}: {table.refused[0]}; {remedy}")
    for line in summarise_doubts([*table.refused, *table.doubts], name):
        print(line)
    classes, counts = defaultdict[str, list[Path]](list), Counter(row.id for row in table.rows)
    for row in table.rows:
        if counts[row.id] > 1:
            raise DataError(f"{name}: {row.id} is listed {counts[row.id]} times; list it once")
        classes[row.class_name].append(row.file.path)
    return classes


def load_labelled(path: Path, data: Data, options: Options = AUTO) -> dict[str, Split]:
    """Labelled images for a model that was not trained on them, as the split "test".

    These are the test split of a prepared data set, with its "gallery" if it has one, or all images
    of a folder of classes. The column "session" holds known sessions, see `data.sessions`.
    """
    if path.is_dir() and (about := prepared_data.read_about(path)):
        if data.class_split and Path(data.path).expanduser().resolve() != path.resolve():
            print(f"{path}: is not the data set of the run, so its data.class_split is not applied")
            data = replace(data, class_split=0)
        data = replace(data, name=about["name"], path=str(path), session=options.session)
        return with_gallery(load(data))
    classes = class_folders([str(path)], options)
    files = [str(image) for images in classes.values() for image in images]
    labels = np.repeat(np.arange(len(classes)), [len(images) for images in classes.values()])
    read = prepared_data.file_reader(files, data)
    split = Split(labels, files, read, list(classes), files=files)
    return {"test": sessions.add_sessions(split, options.session)}
