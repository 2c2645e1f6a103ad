"""Preparing a data set from archives or folders: `sources` lists, `check` decodes and `records` writes its images.

Everything unfinished is in one folder of the output directory, from which an interrupted preparation is resumed.
"""

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dml_jax.console import Console
from dml_jax.data import store
from dml_jax.data.prepare import check, duplicates, known_archives, records, sources
from dml_jax.data.prepare.sources import Options, Recipe
from dml_jax.errors import ConfigError, DataError, counted
from dml_jax.files import read_json, write_json

UNFINISHED = ".unfinished"  # temporary folder inside the output directory
QUANTILES = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)  # of the sides of images
EXAMPLES = 100  # copies in the marker; the table has all
MOVED = "moved.json"  # in it: the names of what is moved from it to the output directory


class Request(NamedTuple):
    """A preparation."""

    name: str
    sources: tuple[Path, ...]  # archives, folders, .csv and .parquet files
    output: Path
    options: Options = Options()
    # short_side, pixels: see `records.encode`
    short_side: int = 0
    pixels: bool = False
    skip_bad: bool = False  # leave out unusable images instead of stopping
    subset: bool = False  # accept other counts than those of the complete data set
    threads: int = os.cpu_count() or 1
    download: bool = False  # whether the sources are archives to be downloaded, see `known_archives`
    drop: str | None = None  # "duplicates" to leave out copies, see `duplicates.to_drop`

    def identity(self) -> dict[str, Any]:
        """The values that determine the result."""
        sources = [str(path.resolve()) for path in self.sources]
        facts = {"name": self.name, "sources": sources, "test_share": self.options.test_share}
        own = {key: getattr(self, key) for key in ("short_side", "pixels", "skip_bad", "subset", "drop")}
        return facts | {"splits": self.options.splits} | own


def prepare(request: Request, recipe: Recipe, console: Console) -> dict[str, Any]:
    """Prepares a data set and returns its marker. A finished one is left unchanged, an interrupted one is resumed.

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
    for source in request.sources:
        if source.is_dir() and request.output.resolve().is_relative_to(source.resolve()):
            raise ConfigError(f"--output={request.output}: is inside the source {source}; choose another directory")
    temporary = _temporary_folder(request, console)
    try:
        return _prepare(request, recipe, console, temporary)
    except (ConfigError, DataError):  # invalid input: leave no unfinished files behind
        shutil.rmtree(temporary)
        if not any(request.output.iterdir()):
            request.output.rmdir()
        raise


def summary(content: Mapping[str, Any]) -> list[str]:
    """Lines that summarise a prepared data set."""
    splits = [
        f"{name}: {counted(of['images'], 'image')} of {counted(of['classes'], 'class')}"
        for name, of in content["splits"].items()
    ]
    metadata = [f"metadata: {', '.join(content['metadata'])}"] if content.get("metadata") else []
    skipped = [f"left out: {counted(len(content['skipped']), 'image')}"] if content["skipped"] else []
    rotated = (
        [f"EXIF rotation: {counted(n, 'image')} (data.exif_rotation)"] if (n := content.get("exif_rotated")) else []
    )
    copies = [f"{kind} copies {place}: {number}" for kind, place, number in content.get("copies", [])]
    return [*splits, *metadata, *skipped, *copies, *rotated, f"sha256 {content['sha256']}"]


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
    """What an interrupted run has moved into the output; raises ConfigError if the directory holds anything else."""
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
    """The steps of a preparation: list, check, write."""
    named = " ".join(f"--source={source}" for source in request.sources)
    if request.download:
        known_archives.fetch(recipe, request.sources, console)
    files = sources.list_files(request.sources, recipe.nested, temporary, console.print)
    entries = check.find_entries(recipe, files, request.options._replace(scratch=temporary), named)
    if recipe.counts and not request.subset and (wrong := check.count_mismatches(entries, recipe.counts)):
        raise DataError(f"{'; '.join(wrong)}: use --subset to accept a part of {request.name}")
    if note := recipe.skipped(files):
        console.print(note)
    check.check_number_of_classes(entries, named)

    console.start_progress("checking images", len(entries))
    entries, facts, reasons = records.check(
        entries, temporary / "encoded", request.short_side, request.pixels, request.threads, console.update_progress
    )
    dropped = duplicates.to_drop(entries, facts, duplicates.find(entries, facts)) if request.drop else {}
    if recipe.counts is None:
        reasons |= check.find_invalid(entries, {i: facts[i] for i in facts if i not in dropped})
    skipped = [(entries[i].id, (reasons | dropped)[i]) for i in sorted(reasons | dropped)]
    for name, reason in skipped:
        console.print(f"{name}: {reason}")
    if reasons and not request.skip_bad:
        raise DataError(
            f"{len(reasons)} of {len(entries)} images cannot be used (all are listed above); fix them, or leave them "
            "out with --skip_bad"
        )
    usable = [i for i in range(len(entries)) if i not in reasons and i not in dropped]
    kept = [entries[i] for i in usable]
    check.check_number_of_classes(kept, named)

    console.start_progress("writing images", len(kept))
    data = temporary / "data"
    data.mkdir()
    written = records.write(
        data, kept, compressed=not request.pixels, threads=request.threads, progress=console.update_progress
    )
    copies = duplicates.table(entries, duplicates.find(entries, {i: facts[i] for i in usable}))
    duplicates.write(data, copies)
    sides = np.sort([(facts[i].height, facts[i].width) for i in usable], axis=1)
    marker = written | {
        "name": request.name,
        "request": request.identity(),
        "skipped": skipped,
        "formats": Counter(facts[i].format for i in usable),
        "sides": np.quantile(sides, QUANTILES, axis=0, method="nearest").T.tolist(),
        "exif_rotated": sum(facts[i].rotated for i in usable),
        "copies": [(kind, place, number) for (kind, place), number in Counter(row[:2] for row in copies).items()],
        "examples": copies[:EXAMPLES],
    }
    records.publish(data, request.output, temporary / MOVED, marker)
    shutil.rmtree(temporary)
    return marker


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
