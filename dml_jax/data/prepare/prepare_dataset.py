"""Preparing a data set from archives or folders, in steps that can be resumed after an interruption."""

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dml_jax.console import Console
from dml_jax.data import store
from dml_jax.data.prepare import archives, check, known_archives, near_duplicates, records
from dml_jax.data.prepare.check import ImageHashes
from dml_jax.data.prepare.sources import (
    SPLITS,
    Entry,
    File,
    Files,
    Options,
    Recipe,
    check_disjoint_classes,
    is_ignored,
    walk,
)
from dml_jax.errors import ConfigError, DataError
from dml_jax.files import read_json, write_csv, write_json

UNFINISHED = ".unfinished"  # temporary folder inside the output directory
MOVED = "moved.json"  # in it: the names of what is moved from it to the output directory
NEAR_DUPLICATES = "near_duplicates.csv"


class Request(NamedTuple):
    """A preparation.

    Attributes:
      name: of the data set.
      sources: archives, folders, .csv and .parquet files.
      output: directory to create.
      options: how classes are split.
      short_side, pixels: see `writer.encode`.
      skip_bad: leave out unusable images instead of stopping.
      subset: accept other counts than those of the complete data set.
      threads: number of threads that decode.
      download: whether the sources are archives to be downloaded, see `published`.
    """

    name: str
    sources: tuple[Path, ...]
    output: Path
    options: Options = Options()
    short_side: int = 0
    pixels: bool = False
    skip_bad: bool = False
    subset: bool = False
    threads: int = os.cpu_count() or 1
    download: bool = False

    def identity(self) -> dict[str, Any]:
        """The values that determine the result."""
        sources = [str(path.resolve()) for path in self.sources]
        decisive = {
            "test_share": self.options.test_share,
            "splits": self.options.splits,
            "short_side": self.short_side,
            "pixels": self.pixels,
            "skip_bad": self.skip_bad,
            "subset": self.subset,
        }
        return {"name": self.name, "sources": sources, **decisive}


def prepare(request: Request, recipe: Recipe, console: Console) -> dict[str, Any]:
    """Prepares a data set. A finished one is left unchanged, an interrupted preparation is resumed.

    Returns:
      Content of the marker file.

    Raises:
      ConfigError: the output directory is in use for something else.
      DataError: the sources are not the data set, or images cannot be used; all of those have been printed.
    """
    done = store.read_marker(request.output)
    if done is not None:
        differing = [key for key, value in request.identity().items() if done["request"].get(key) != value]
        if differing:
            raise ConfigError(
                f"--output={request.output}: was prepared with another {' and '.join(differing)}; choose another output"
            )
        console.print(f"{request.output} is already prepared")
        return done
    temporary = _temporary_folder(request, console)
    try:
        return _prepare(request, recipe, console, temporary)
    except (ConfigError, DataError):  # invalid input: leave no unfinished files behind
        shutil.rmtree(temporary)
        if not any(request.output.iterdir()):
            request.output.rmdir()
        raise


def _temporary_folder(request: Request, console: Console) -> Path:
    """Creates the folder for unfinished work, or returns the one of an interrupted run of the same request."""
    output, temporary = request.output, request.output / UNFINISHED
    record = temporary / "request.json"
    try:
        if record.is_file():
            for path in _begun(output, temporary):
                _remove(path)
            _remove(temporary / "data")
            with contextlib.suppress(DataError):
                if read_json(record, dict) == request.identity():
                    console.print("resuming an interrupted preparation")
                    return temporary
            _remove(temporary)
        elif output.exists() and any(output.iterdir()):
            raise ConfigError(
                f"--output={output}: is not empty and contains no interrupted preparation; choose another directory"
            )
        temporary.mkdir(parents=True)
        write_json(record, request.identity())
    except OSError as error:
        raise ConfigError(
            f"--output={output}: cannot be written ({error.strerror}); choose another directory"
        ) from error
    return temporary


def _begun(output: Path, temporary: Path) -> list[Path]:
    """What an interrupted run has moved into the output directory.

    Raises:
      ConfigError: the directory also holds something else, which is not for us to remove.
    """
    moved: list[str] = []
    with contextlib.suppress(DataError):  # absent, if nothing was moved
        moved = read_json(temporary / MOVED, list[str])
    found = [path for path in sorted(output.iterdir()) if path != temporary]
    for path in found:
        if path.name not in moved and not path.name.startswith(f".{store.MARKER}."):  # a draft of the marker
            raise ConfigError(
                f"--output={output}: holds {path.name} beside an interrupted preparation; move it away, or choose "
                "another directory"
            )
    return found


def _prepare(request: Request, recipe: Recipe, console: Console, temporary: Path) -> dict[str, Any]:
    if request.download:
        known_archives.fetch(recipe, request.sources, console)
    files = _list_files(request, recipe.nested, console, temporary)
    sources = " ".join(f"--source={source}" for source in request.sources)
    try:
        entries = recipe.find(files, request.options._replace(scratch=temporary))
        check_disjoint_classes(entries)
    except DataError as error:
        raise DataError(f"{sources}: {error}") from error
    if recipe.counts and not request.subset and (wrong := check.count_mismatches(entries, recipe.counts)):
        raise DataError(f"{'; '.join(wrong)}: use --subset to accept a part of {request.name}")
    if note := recipe.skipped(files):
        console.print(note)
    _check_number_of_classes(entries, sources)
    console.start_progress("checking images", len(entries))
    entries, hashes, reasons = records.check(
        entries, temporary / "encoded", request.short_side, request.pixels, request.threads, console.update_progress
    )
    if recipe.counts is None:
        reasons |= check.find_invalid(entries, hashes)
    for i in sorted(reasons):
        console.print(f"{entries[i].id}: {reasons[i]}")
    if reasons and not request.skip_bad:
        raise DataError(
            f"{len(reasons)} of {len(entries)} images cannot be used (all are listed above); fix them, or leave them "
            "out with --skip_bad"
        )
    usable = [i for i in range(len(entries)) if i not in reasons]
    kept = [entries[i] for i in usable]
    _check_number_of_classes(kept, sources)
    console.start_progress("writing images", len(kept))
    about = {
        "name": request.name,
        "home": recipe.home,
        "citation": recipe.citation,
        "description": f"{request.name}, split by class for deep metric learning",
    }
    data = temporary / "data"
    data.mkdir()
    content = records.write(
        data, kept, about, compressed=not request.pixels, threads=request.threads, progress=console.update_progress
    )
    pairs = _near_duplicates(kept, [hashes[i] for i in usable])
    _report_near_duplicates(data / NEAR_DUPLICATES, pairs, console)
    content |= {
        "request": request.identity(),
        "skipped": [[entries[i].id, reasons[i]] for i in sorted(reasons)],
        "near_duplicates": len(pairs),
    }
    finished = sorted(data.iterdir())
    write_json(temporary / MOVED, [path.name for path in finished])
    for path in finished:
        path.replace(request.output / path.name)
    store.write_marker(request.output, content)
    shutil.rmtree(temporary)
    return content


def _check_number_of_classes(entries: Sequence[Entry], sources: str) -> None:
    """Raises DataError unless there are at least two classes for training, two for test and none or two to validate."""
    classes = {split: {entry.class_name for entry in entries if entry.split == split} for split in SPLITS}
    if len(classes["validation"]) == 1:
        raise DataError(f"{sources}: the validation images are of one class only; at least 2 classes are needed")
    if min(len(classes["train"]), len(classes["test"])) < 2:
        names = sorted({entry.class_name for entry in entries})
        listed = f" ({', '.join(map(repr, names[:3]))}{', …' if len(names) > 3 else ''})" if names else ""
        raise DataError(
            f"{sources}: {len(entries)} images of {len(names)} class{'' if len(names) == 1 else 'es'}{listed}: "
            f"{len(classes['train'])} training and {len(classes['test'])} test classes; at least 2 of each are needed"
        )


def _list_files(request: Request, nested: bool, console: Console, temporary: Path) -> Files:
    """All files of the sources by their relative path; archives are unpacked.

    Raises:
      DataError: a source is missing, hostile or damaged, or two sources contain the same path.
    """
    files: dict[str, File] = {}
    for i, source in enumerate(request.sources):
        if source.is_dir():
            if request.output.resolve().is_relative_to(source.resolve()):
                raise ConfigError(f"--output={request.output}: is inside the source {source}; choose another directory")
            found = dict(walk(source))
        elif source.is_file() and archives.is_archive(source.name):
            found = _unpack(source, temporary / f"source-{i}", console)
        elif source.is_file() and source.suffix.lower() == ".csv":
            others = (pair for pair in walk(source.parent) if not pair[0].lower().endswith(".csv"))
            found = {source.name: File(source), **dict(others)}
        elif source.is_file() and source.suffix.lower() == ".parquet":
            found = {source.name: File(source)}
        else:
            raise DataError(
                f"--source={source}: must be an existing folder, .csv or .parquet file or archive "
                f"({', '.join(archives.ENDINGS)})"
            )
        if nested:
            found |= _unpack_nested(found, temporary / f"source-{i}", console)
        if shared := set(files) & set(found):
            raise DataError(f"--source={source}: {min(shared)!r} is also in another source; give each file only once")
        files |= found
    return dict(sorted(files.items()))


def _unpack(archive: Path, target: Path, console: Console) -> dict[str, File]:
    """Unpacks an archive into the file `target`, unless an interrupted run has done so."""
    if not archive.is_file():
        raise DataError(f"{archive}: not a regular file")
    stat, record = archive.stat(), target.with_name(f"{target.name}.json")
    state = [stat.st_size, stat.st_mtime_ns]
    known = None
    with contextlib.suppress(DataError):  # absent or damaged
        known = read_json(record, archives.Unpacked)
    if known is None or known["archive"] != state:
        console.print(f"unpacking {archive}")
        known = {"archive": state, "members": archives.unpack(archive, target)}
        write_json(record, known)
    return {name: File(target, offset, size) for name, offset, size in known["members"] if not is_ignored(name)}


def _unpack_nested(files: Files, target: Path, console: Console) -> dict[str, File]:
    """Unpacks the archives among the files, one level deep; their members appear in the folder of the archive."""
    members: dict[str, File] = {}
    for j, path in enumerate(sorted(path for path in files if archives.is_archive(path))):
        archive = files[path]
        if archive.size >= 0:
            ending = next(ending for ending in archives.ENDINGS if path.lower().endswith(ending))
            archive = File(_extract(archive, target.with_name(f"{target.name}-{j}{ending}")))
        parent = path.rpartition("/")[0]
        inner = _unpack(archive.path, target.with_name(f"{target.name}-{j}"), console)
        members |= {f"{parent}/{name}" if parent else name: file for name, file in inner.items()}
    return members


def _extract(file: File, target: Path) -> Path:
    """Copies a member of an unpacked archive to a file of its own."""
    if not target.exists() or target.stat().st_size != file.size:
        with file.path.open("rb") as source, target.open("wb") as copy:
            source.seek(file.offset)
            left = file.size
            while chunk := source.read(min(left, archives.CHUNK)):
                left -= copy.write(chunk)
    return target


def _near_duplicates(entries: Sequence[Entry], hashes: Sequence[ImageHashes]) -> list[tuple[Entry, Entry]]:
    """Pairs of a training image and a similar test or gallery image, see `near_duplicates.find_pairs`."""
    indices = {split: [i for i, entry in enumerate(entries) if entry.split == split] for split in SPLITS}
    train, test = indices["train"], indices["test"] + indices["gallery"]
    stacked = np.stack([image.difference for image in hashes])
    pairs = near_duplicates.find_pairs(stacked[train], stacked[test])
    return [(entries[train[i]], entries[test[j]]) for i, j in pairs]


def _report_near_duplicates(path: Path, pairs: Sequence[tuple[Entry, Entry]], console: Console) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        write_csv(file, [("train", "test"), *((a.id, b.id) for a, b in pairs)])
    if pairs:
        console.print(
            f"near-duplicates between training and test: {len(pairs)} pairs, each image with the first it resembles, "
            f"see {NEAR_DUPLICATES}; examples:"
        )
        for a, b in pairs[:3]:
            console.print(f"  {a.id} and {b.id}")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def summary(content: Mapping[str, Any]) -> list[str]:
    """Lines that summarise a prepared data set."""
    splits = [f"{name}: {of['images']} images of {of['classes']} classes" for name, of in content["splits"].items()]
    metadata = [f"metadata: {', '.join(content['metadata'])}"] if content.get("metadata") else []
    skipped = [f"{len(content['skipped'])} images were left out"] if content["skipped"] else []
    return [*splits, *metadata, *skipped, f"sha256 {content['sha256']}"]
