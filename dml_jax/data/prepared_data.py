"""Prepared data sets: a sealed directory with an ArrayRecord file of encoded images per split, and
an index. What its manifest says `about` them is:

    name: of the data set
    sha256: digest of all images with their names and classes
    splits: split -> numbers of "images" and "classes"
    request: the options of the preparation that determine its result
    skipped: the images that were left out, with the reasons
    metadata, exif_rotated, duplicates: see `preparation.summary`

Folders and tables that a run reads in place are checked once, and have the same splits.
"""

import functools
import hashlib
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource

from dml_jax import buckets, seal
from dml_jax.config import Data, plugin_module
from dml_jax.data import decode, sessions
from dml_jax.data.checked_images import check_images
from dml_jax.data.duplicates import TABLE
from dml_jax.data.files import Entry, File, Record, stamp, walk
from dml_jax.data.sources import Options, Recipe, Table, survey
from dml_jax.data.split import Read, Split, cache_splits, read_splits, split_rows
from dml_jax.data.understand import summarise_doubts, understand
from dml_jax.errors import ConfigError, DataError, counted
from dml_jax.files import cache_dir, locked, reading

KIND, INDEX, RECORDS = "data set", "index.json", "records"
REMEDY = "prepare the data set again"


def open_records(directory: Path, split: str) -> Callable[[int], bytes]:
    """A function from the index of a packed image of a split to the content of its file."""

    @functools.cache
    def records() -> ArrayRecordDataSource:
        with reading(directory, REMEDY):
            return ArrayRecordDataSource(sorted(directory.glob(f"*{split}.array_record*")))

    return lambda index: bytes(records()[index])


def record_reader(directory: Path, split: str, data: Data) -> Read:
    """`Split.read` for packed images."""
    content = open_records(directory, split)

    def read(index: int, rng: np.random.Generator | None) -> np.ndarray:
        with reading(f"{directory}, image {index} of {split}", REMEDY):
            return decode.rgb(content(index), upright=data.exif_rotation)

    return read


def file_reader(files: Sequence[str], data: Data) -> Read:
    """`Split.read` for images in separate files."""

    def read(index: int, rng: np.random.Generator | None) -> np.ndarray:
        with reading(files[index]):
            return decode.rgb(File(Path(files[index])).read(), upright=data.exif_rotation)

    return read


def records_by_class(directory: Path, name: str, session: str) -> dict[str, list[Record]]:
    """The images of all splits of a prepared data set, by class."""
    classes: dict[str, list[Record]] = {}
    data = Data(name=name, path=str(directory))
    for key, split in load(data, plugin_module("data", name).RECIPE).items():
        content = open_records(directory / RECORDS, key)
        columns = sessions.add_sessions(split, session).metadata
        session_of = columns.get(sessions.COLUMN, [""] * len(split.ids))
        for i, image in enumerate(split.ids):
            name = f"{directory.resolve()}/{image}"
            record = Record(name, partial(content, i), str(session_of[i]))
            classes.setdefault(split.classes[split.labels[i]], []).append(record)
    return classes


def read_about(directory: Path) -> dict[str, Any] | None:
    """What the manifest says about a prepared data set; None for another directory."""
    if not (directory / RECORDS).is_dir() or not seal.sealed(directory):
        return None
    return seal.read_manifest(directory, KIND, remedy=REMEDY).about


def describe_splits(about: Mapping[str, Any]) -> list[str]:
    """A line on each split of a prepared data set."""
    return [
        f"{name}: {counted(size['images'], 'image')} of {counted(size['classes'], 'class')}"
        for name, size in about["splits"].items()
    ]


def load(data: Data, recipe: Recipe) -> dict[str, Split]:
    """The splits of a prepared data set, or of a folder that the recipe reads in place."""
    directory, option = Path(data.path).expanduser(), f"data.path={data.path}"
    exists = bool(data.path) and directory.is_dir()
    about = read_about(directory) if exists else None
    if about is None and exists and recipe.in_place:
        return _read_in_place(directory, recipe, data)
    if about is None:
        what = "not a prepared data set" if exists else "no such directory"
        remedy = f"dml-jax prepare --name={data.name} --source=… --output={data.path} creates one"
        if recipe.in_place:
            content = "one subfolder per class" if data.name == "folder" else "the table"
            remedy = f"give one with --config.data.path, prepared or with {content}"
        raise DataError(f"{option}: {what}; {remedy}")
    if (data.splits, data.classes) != ("auto", "auto"):
        what = "data.splits and data.classes: are for unprepared data sets"
        raise ConfigError(f"{what}; give them to dml-jax prepare")
    if about["name"] != data.name:
        what = f"contains the data set {about['name']!r}, but data.name is {data.name!r}"
        raise DataError(f"{option}: {what}")
    for name, expected in seal.read_manifest(directory).files.items():  # the digests take long
        file = directory / name
        if not file.is_file() or file.stat().st_size != expected["size"]:
            raise DataError(f"{file}: missing or of the wrong size; {REMEDY}")
    seal.read(directory, KIND, names=[INDEX], remedy=REMEDY)
    return {
        key: split._replace(
            read=record_reader(directory / RECORDS, key, data), content=about["sha256"]
        )
        for key, split in read_splits(directory / INDEX).items()
    }


def _read_in_place(directory: Path, recipe: Recipe, data: Data) -> dict[str, Split]:
    """The splits of an image folder, cached until the size or time of a file changes.

    `content` does not depend on times, so that a run can be resumed with a copy of the folder.
    """
    source = f"data.path={directory}"
    options = Options(splits=data.splits, session=data.session, classes=data.classes)
    table = understand(recipe, survey(walk(directory.resolve())), options, source)
    # What is installed and allowed decides which images can be used.
    lines = [str(directory.resolve()), f"{decode.LIMIT}, {find_spec('pillow_heif') is not None}"]
    for row in table.rows:
        fields = row.id, row.split, row.class_name, str(dict(row.metadata)), stamp(row.file.path)
        lines.append("\0".join(fields))
    key = "\n".join(lines).encode(errors="surrogateescape")
    splits = cache_splits(key, lambda: _check_folder(directory, recipe, table, data.name))
    doubts = summarise_doubts(table.doubts, source)
    return {
        name: split._replace(
            note="\n".join([*doubts, split.note] if split.note else doubts),
            read=file_reader(split.files, data),
        )
        for name, split in splits.items()
    }


def _check_folder(directory: Path, recipe: Recipe, table: Table, name: str) -> dict[str, Split]:
    """The splits of a folder after every image has been decoded."""
    lines = list[str]()
    try:
        images = check_images(table.rows, recipe, lines.append)
    except DataError as error:
        raise DataError("; ".join([*lines, f"data.path={directory}: {error}"])) from error
    if images.conflicts:
        source, output = shlex.quote(str(directory)), shlex.quote(f"{directory.resolve()}_prepared")
        command = f"dml-jax prepare --name={name} --source={source} --output={output}"
        lines.append(f"{images.conflicts}; {command} lists all of them in {TABLE}")
    digest = digest_content(images.entries, (fact.sha256 for fact in images.facts))
    splits = split_rows(images.entries).items()
    return {key: split._replace(content=digest, note="\n".join(lines)) for key, split in splits}


def digest_content(entries: Iterable[Entry], images: Iterable[bytes]) -> str:
    """Digest of a data set: of the SHA-256 of each image, with its split, class and name."""
    sha256 = hashlib.sha256()
    for entry, image in zip(entries, images, strict=True):
        sha256.update(image)
        sha256.update(f"{entry.split}\n{entry.class_name}\n{entry.id}\n".encode())
    return sha256.hexdigest()


def copy_from_bucket(url: str) -> Path:
    """A local copy of the directory at a URL, made once for all processes of the machine.

    Files that are changed, added or removed in the bucket lead to another copy. The SHA-256 of a
    prepared data set are checked. Raises DataError if the files cannot be read or are damaged.
    """
    from pyarrow import fs  # every command that reads folders imports this module

    files = buckets.list_files(url)
    if "" in files:
        raise DataError(f"{url}: is not a directory")
    if outside := [name for name in files if ".." in PurePosixPath(name).parts]:
        raise DataError(f"{url}: {outside[0]!r} leads outside")
    listing = "".join(f"{name}\0{info.size}\0{info.mtime_ns}\n" for name, info in files.items())
    copies = cache_dir() / "staged"
    target = copies / hashlib.sha256(f"{url}\n{listing}".encode()).hexdigest()[:32]
    copies.mkdir(parents=True, exist_ok=True)
    with locked(target.with_suffix(".part")):
        if target.is_dir():
            return target
        size = f"{len(files):,} files, {sum(info.size for info in files.values()) / 2**20:,.0f} MiB"
        print(f"copying {size}, from {url} to {copies}", flush=True)
        with seal.replacing(target) as draft, buckets.accessing(url):
            for name in files:  # a bucket need not have directories
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
            system, root = buckets.file_system(url)
            local = fs.LocalFileSystem()
            fs.copy_files(root, str(draft), source_filesystem=system, destination_filesystem=local)
            with reading(url, "prepare and upload it again"):
                if read_about(draft):
                    seal.read(draft, KIND, exact=False)
    return target
