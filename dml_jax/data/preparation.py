"""Preparation of a data set: its images are checked, perhaps resized, and packed.

A preparation is written to a draft beside the output directory, which appears complete or not.
"""

import contextlib
import hashlib
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import simplejpeg
from array_record.python.array_record_module import ArrayRecordWriter

from dml_jax import seal
from dml_jax.console import Console
from dml_jax.data import decode, duplicates, prepared_data, sources, transforms
from dml_jax.data.checked_images import check_counts, check_images
from dml_jax.data.files import Entry, File
from dml_jax.data.read_ahead import ordered_map
from dml_jax.data.sources import Options, Recipe
from dml_jax.data.split import split_rows, write_splits
from dml_jax.data.understand import summarise_doubts, understand
from dml_jax.errors import ConfigError, DataError, counted
from dml_jax.files import cache_dir, name_file, sha256, write_csv
from dml_jax.remote import downloads

MIB = 2**20
JPEG_QUALITY = 90  # for resized images


class Request(NamedTuple):
    """A preparation."""

    name: str
    sources: tuple[Path, ...]  # folders, .csv files and, of published data sets, archives
    output: Path
    options: Options = Options()
    short_side: int = 0  # see `encode`
    pixels: bool = False
    strict: bool = False  # an unusable image is an error
    subset: bool = False  # accept a part of a published data set
    download: bool = False  # whether the sources are `archives` to be downloaded

    def identity(self) -> dict[str, Any]:
        """The values that determine the result."""
        values = self._asdict() | self.options._asdict()
        for key in ("options", "output", "download"):
            del values[key]
        return values | {"sources": [str(path.resolve()) for path in self.sources]}


def prepare(request: Request, recipe: Recipe, console: Console) -> dict[str, Any]:
    """Prepares a data set, unless it is finished; returns what its manifest says about it."""
    output = request.output
    if about := prepared_data.read_about(output):
        identity = request.identity()
        if differing := [key for key in identity if about["request"].get(key) != identity[key]]:
            what = f"was prepared with another {' and '.join(differing)}"
            raise ConfigError(f"--output={output}: {what}; choose another output")
        console.print(f"{output} is already prepared")
        return about
    occupied = output.exists() and (not output.is_dir() or any(output.iterdir()))
    folders = [source.resolve() for source in request.sources if source.is_dir()]
    if occupied or any(output.resolve().is_relative_to(folder) for folder in folders):
        rule = "must be a new or empty directory outside of the sources"
        raise ConfigError(f"--output={output}: {rule}")
    about = {}
    with seal.write(output, prepared_data.KIND, about=about) as draft:
        about |= _prepare(request, recipe, console, draft)
    return about


def summary(about: Mapping[str, Any]) -> list[str]:
    """Lines that summarise a prepared data set."""
    lines = prepared_data.describe_splits(about)
    lines += [f"metadata: {', '.join(about['metadata'])}"] if about["metadata"] else []
    lines += [f"{kind} {place}: {number}" for kind, place, number in about["duplicates"]]
    if count := about["exif_rotated"]:
        lines.append(f"EXIF rotation: {counted(count, 'image')} (data.exif_rotation)")
    return [*lines, f"sha256 {about['sha256']}"]


def archives(name: str, recipe: Recipe) -> tuple[Path, ...]:
    """The paths of downloaded archives; raises ConfigError for a data set without an address."""
    if not recipe.downloads:
        theirs = f"{recipe.terms} ({recipe.home}); get it yourself and"
        why = theirs if recipe.home else "it is your own data;"
        raise ConfigError(f"--download: {name} cannot be downloaded: {why} give it as --source")
    return tuple(cache_dir() / "downloads" / name / archive.name for archive in recipe.downloads)


def _download(recipe: Recipe, targets: Sequence[Path], console: Console) -> None:
    """Downloads the archives that are missing, after printing the terms."""
    console.print(f"terms: {recipe.terms}")
    console.print(f"owners: {recipe.home}")
    console.print(f"please cite: {recipe.citation}")
    remedy = f"download it in a browser, from {recipe.home}, and give it as --source"
    for archive, target in zip(recipe.downloads, targets, strict=True):
        if target.is_file() and sha256(target) == archive.sha256:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        console.print(f"downloading {archive.url}")
        console.start_progress(f"{archive.name}, MiB", archive.size // MIB)
        downloads.fetch(archive, target, remedy, lambda done: console.update_progress(done // MIB))
    size = sum(archive.size for archive in recipe.downloads) // MIB
    console.print(f"the archives ({size} MiB) stay in {targets[0].parent}")


def _prepare(request: Request, recipe: Recipe, console: Console, draft: Path) -> dict[str, Any]:
    names = " ".join(f"--source={source}" for source in request.sources)
    if request.download:
        _download(recipe, request.sources, console)
    scratch = draft / "scratch"  # unpacked and encoded images, deleted at the end
    scratch.mkdir()
    folders = []
    for i, source in enumerate(request.sources):
        if recipe.home and source.is_file() and sources.packing(source.name):
            console.print(f"unpacking {source}")
            source = sources.unpack(source, scratch / f"source-{i}")
        folders.append(source)
    table = understand(recipe, sources.list_files(folders), request.options, names)
    if not request.subset:
        try:
            check_counts(recipe, table.rows)
        except DataError as error:
            remedy = "give all files, or --subset to accept a part of them"
            raise DataError("; ".join([str(error), *table.doubts, remedy])) from error
    for line in summarise_doubts(table.doubts, names):
        console.print(line)
    console.start_progress("checking images", len(table.rows))
    try:
        with storing(scratch / "encoded", request.short_side, request.pixels) as store:
            entries, facts, skipped, note = check_images(
                table.rows,
                recipe,
                console.print,
                strict=request.strict,
                whole=bool(recipe.home) and not request.subset,  # what others measured on
                store=store,
                progress=console.update_progress,
            )
    except DataError as error:
        raise DataError(f"{names}: {error}") from error
    if note:
        note += f" and listed in {duplicates.TABLE}"
        console.print(note)
    console.start_progress("writing images", len(entries))
    about = write_records(draft, entries, not request.pixels, console.update_progress, note)
    pairs = duplicates.find_duplicates(entries, facts)
    write_csv(draft / duplicates.TABLE, [("kind", "where", "first", "second"), *pairs])
    numbers = Counter((kind, place) for kind, place, *_ in pairs)
    shutil.rmtree(scratch)
    return about | {
        "name": request.name,
        "request": request.identity(),
        "skipped": skipped,
        "exif_rotated": sum(fact.rotated for fact in facts),
        "duplicates": [(*what, number) for what, number in numbers.items()],
    }


def encode(data: bytes, image: np.ndarray, short_side: int = 0, pixels: bool = False) -> bytes:
    """The stored form of an image: JPEG (not CMYK) and 8-bit RGB PNG as they are, others as PNG.

    Larger images are resized to the shorter side `short_side` as JPEG; `pixels` stores PPM.
    """
    large = 0 < short_side < min(image.shape[:2])
    if large:
        image = np.ascontiguousarray(transforms.resize_shorter(image, short_side))
    if pixels:
        return decode.encode_ppm(image)
    if large:
        return simplejpeg.encode_jpeg(image, JPEG_QUALITY, colorspace="RGB", colorsubsampling="420")
    return data if decode.is_plain(data) else decode.encode_png(image)


@contextlib.contextmanager
def storing(
    path: Path, short_side: int, pixels: bool
) -> Iterator[Callable[[Entry, bytes, np.ndarray], File]]:
    """`store` of `check_images`, which writes images that are not stored as they are to a file."""
    lock = threading.Lock()
    with name_file(path), path.open("wb") as spool:

        def store(entry: Entry, data: bytes, image: np.ndarray) -> File:
            stored = encode(data, image, short_side, pixels)
            if stored is data:
                return entry.file
            with lock:
                return File(path, spool.tell(), spool.write(stored))

        yield store


def write_records(
    directory: Path,
    entries: Sequence[Entry],
    compressed: bool,
    progress: Callable[[int], None],
    note: str = "",
) -> dict[str, Any]:
    """Writes the images and the index of a data set; returns what is stated about them.

    The `note` is for the users of the data set, see `Split.note`.
    """
    splits = split_rows(entries)
    ordered = [entry for split in splits for entry in entries if entry.split == split]
    digests = list[bytes]()
    records = directory / prepared_data.RECORDS
    records.mkdir()
    for split in splits:
        images = ordered_map(lambda e: e.file.read(), [e for e in ordered if e.split == split])
        path = records / f"{split}.array_record"
        options = "group_size:1" if compressed else "group_size:1,uncompressed"
        with name_file(path), contextlib.closing(ArrayRecordWriter(str(path), options)) as writer:
            for image in images:
                writer.write(image)
                digests.append(hashlib.sha256(image).digest())
                progress(len(digests))
    indexed = {name: split._replace(files=(), note=note) for name, split in splits.items()}
    write_splits(directory / prepared_data.INDEX, indexed)
    return {
        "sha256": prepared_data.digest_content(ordered, digests),
        "splits": {
            name: {"images": len(split.labels), "classes": len(set(split.labels.tolist()))}
            for name, split in splits.items()
        },
        "metadata": sorted({column for split in splits.values() for column in split.metadata}),
    }
