"""Prepared data sets: a sealed directory with an ArrayRecord file of encoded images per split, and
an index. What its manifest says `about` them is:

    name: of the data set
    sha256: digest of all images with their names and classes
    splits: split -> numbers of "images" and "classes"
    request: the options of the preparation that determine its result
    skipped: the images that were left out, with the reasons
    metadata, exif_rotated, duplicates: see `prepare_dataset.summary`
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
from dml_jax.data import decode, sessions, split_metadata
from dml_jax.data.checked_images import check_images
from dml_jax.data.duplicates import TABLE
from dml_jax.data.files import Entry, File, Record, stamp, walk
from dml_jax.data.sources import Options, Recipe
from dml_jax.data.split import Read, Split
from dml_jax.data.understand import Understood, summarise_doubts, understand
from dml_jax.errors import ConfigError, DataError, counted
from dml_jax.files import cache_dir, locked, reading

KIND, INDEX, RECORDS = "data set", "index.json", "records"
REMEDY = "prepare the data set again"


def records(directory: Path, split: str) -> Callable[[int], bytes]:
    """A function from the index of a packed image of a split to the content of its file."""

    @functools.cache
    def stored() -> ArrayRecordDataSource:
        with reading(directory, REMEDY):
            return ArrayRecordDataSource(sorted(directory.glob(f"*{split}.array_record*")))

    return lambda index: bytes(stored()[index])


def record_reader(directory: Path, split: str, data: Data) -> Read:
    """`Split.read` for packed images."""
    content = records(directory, split)

    def read(index: int, rng: np.random.Generator | None) -> np.ndarray:
        with reading(f"{directory}, image {index} of {split}", REMEDY):
            return decode.rgb(content(index), upright=data.exif_rotation)

    return read


def by_class(directory: Path, name: str, session: str) -> dict[str, list[Record]]:
    """The images of all splits of a prepared data set, by class."""
    found: dict[str, list[Record]] = {}
    data = Data(name=name, path=str(directory))
    for key, split in load(data, plugin_module("data", name).RECIPE).items():
        content = records(directory / RECORDS, key)
        taken = sessions.added(split, session).metadata.get(sessions.COLUMN, [""] * len(split.ids))
        for i, image in enumerate(split.ids):
            record = Record(f"{directory.resolve()}/{image}", partial(content, i), str(taken[i]))
            found.setdefault(split.classes[split.labels[i]], []).append(record)
    return found


def file_reader(files: Sequence[str], data: Data) -> Read:
    """`Split.read` for images in separate files."""

    def read(index: int, rng: np.random.Generator | None) -> np.ndarray:
        with reading(files[index]):
            content = File(Path(files[index])).read()
            return decode.rgb(content, upright=data.exif_rotation)

    return read


def stated(directory: Path) -> dict[str, Any] | None:
    """What the manifest says about a prepared data set; None for another directory."""
    if not (directory / RECORDS).is_dir() or not seal.sealed(directory):
        return None
    return seal.read_manifest(directory, KIND, remedy=REMEDY).about


def load(data: Data, recipe: Recipe) -> dict[str, Split]:
    """The splits of a prepared data set, or of a folder that the recipe reads in place."""
    directory = Path(data.path).expanduser()
    exists = bool(data.path) and directory.is_dir()
    about = stated(directory) if exists else None
    if about is None and exists and recipe.in_place:
        return dict(_read_in_place(directory, recipe, data))
    given = f"data.path={data.path}"
    if about is None:
        what = "not a prepared data set" if exists else "no such directory"
        remedy = f"dml-jax prepare --name={data.name} --source=… --output={data.path} creates one"
        if recipe.in_place:
            content = "one subfolder per class" if data.name == "folder" else "the table"
            remedy = f"give one with --config.data.path, prepared or with {content}"
        raise DataError(f"{given}: {what}; {remedy}")
    if (data.splits, data.classes) != ("auto", "auto"):
        what = "data.splits and data.classes: are for unprepared data sets"
        raise ConfigError(f"{what}; give them to dml-jax prepare")
    if about["name"] != data.name:
        found = f"contains the data set {about['name']!r}"
        raise DataError(f"{given}: {found}, but data.name is {data.name!r}")
    for name, known in seal.read_manifest(directory).files.items():  # the digests take long
        file = directory / name
        if not file.is_file() or file.stat().st_size != known["size"]:
            raise DataError(f"{file}: missing or of the wrong size; {REMEDY}")
    seal.read(directory, KIND, names=[INDEX], remedy=REMEDY)
    splits = split_metadata.load(directory / INDEX)
    for key in splits:
        read = record_reader(directory / RECORDS, key, data)
        splits[key] = splits[key]._replace(read=read, content=about["sha256"])
    return splits


def _read_in_place(directory: Path, recipe: Recipe, data: Data) -> Mapping[str, Split]:
    """The splits of an image folder, cached until the size or time of a file changes.

    `content` does not depend on times, so that a run can be resumed with a copy of the folder.
    """
    source = f"data.path={directory}"
    options = Options(splits=data.splits, session=data.session, classes=data.classes)
    page = understand(recipe, dict(walk(directory.resolve())), options, source)
    # By what is installed and allowed, other images can be used.
    lines = [str(directory.resolve()), f"{decode.LIMIT}, {find_spec('pillow_heif') is not None}"]
    for e in page.entries:
        lines.append(
            "\0".join((e.id, e.split, e.class_name, str(dict(e.metadata)), stamp(e.file.path)))
        )
    key = "\n".join(lines).encode(errors="surrogateescape")
    splits = split_metadata.cached(key, lambda: _check_folder(directory, recipe, page, data.name))
    doubts = summarise_doubts(page.doubts, source)
    return {
        name: split._replace(
            note="\n".join(filter(None, (*doubts, split.note))), read=file_reader(split.files, data)
        )
        for name, split in splits.items()
    }


def _check_folder(
    directory: Path, recipe: Recipe, page: Understood, name: str
) -> Mapping[str, Split]:
    """The splits of a folder after every image has been decoded."""
    lines = list[str]()
    try:
        entries, facts, _, conflicts = check_images(page.entries, recipe, lines.append)
    except DataError as error:
        raise DataError("; ".join([*lines, f"data.path={directory}: {error}"])) from error
    if conflicts:
        source, output = shlex.quote(str(directory)), shlex.quote(f"{directory.resolve()}_prepared")
        command = f"dml-jax prepare --name={name} --source={source} --output={output}"
        lines.append(f"{conflicts}; {command} lists all of them in {TABLE}")
    digest = content_digest(entries, (fact.sha256 for fact in facts))
    splits = split_metadata.from_entries(entries).items()
    return {key: split._replace(content=digest, note="\n".join(lines)) for key, split in splits}


def content_digest(entries: Iterable[Entry], images: Iterable[bytes]) -> str:
    """Digest of a data set: of the SHA-256 of each image, with its split, class and name."""
    found = hashlib.sha256()
    for entry, image in zip(entries, images, strict=True):
        found.update(image)
        found.update(f"{entry.split}\n{entry.class_name}\n{entry.id}\n".encode())
    return found.hexdigest()


def sizes(about: Mapping[str, Any]) -> list[str]:
    """A line about each split of a prepared data set, by what is `stated`."""
    return [
        f"{name}: {counted(size['images'], 'image')} of {counted(size['classes'], 'class')}"
        for name, size in about["splits"].items()
    ]


def staged(url: str) -> Path:
    """A local copy of the directory at a URL, made once for all processes of the machine.

    Files that are changed, added or removed in the bucket lead to another copy. The SHA-256 of a
    prepared data set are checked. Raises DataError if the files cannot be read or are damaged.
    """
    from pyarrow import fs  # every command that reads folders imports this module

    found = buckets.list_files(url)
    if "" in found:
        raise DataError(f"{url}: is not a directory")
    if outside := [name for name in found if ".." in PurePosixPath(name).parts]:
        raise DataError(f"{url}: {outside[0]!r} leads outside")
    listing = "".join(f"{name}\0{info.size}\0{info.mtime_ns}\n" for name, info in found.items())
    caches = cache_dir() / "staged"
    target = caches / hashlib.sha256(f"{url}\n{listing}".encode()).hexdigest()[:32]
    caches.mkdir(parents=True, exist_ok=True)
    with locked(target.with_suffix(".part")):
        if target.is_dir():
            return target
        size = f"{len(found):,} files, {sum(info.size for info in found.values()) / 2**20:,.0f} MiB"
        print(f"copying {size}, from {url} to {caches}", flush=True)
        with seal.replacing(target) as draft, buckets.accessing(url):
            for name in found:  # a bucket need not have directories
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
            system, root = buckets.file_system(url)
            local = fs.LocalFileSystem()
            fs.copy_files(root, str(draft), source_filesystem=system, destination_filesystem=local)
            with reading(url, "prepare and upload it again"):
                if stated(draft):
                    seal.read(draft, KIND, exact=False)
    return target
