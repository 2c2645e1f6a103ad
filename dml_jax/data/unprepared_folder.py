"""Unprepared image folders: every image is checked and hashed once; the result is cached until a file changes.

A changed file is recognised by its size, modification time or change time (which a program that restores the
modification time cannot restore). The hash of the data set, which must be the same for a run to be resumed, covers the
names, classes and contents of the images but not the times, so that a copy of the folder has the same hash. Changes
while a run reads the folder are not recognised.
"""

import hashlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from dml_jax.data import split_metadata
from dml_jax.data.prepare import check
from dml_jax.data.prepare.sources import Files, Options, Recipe, stamp, walk
from dml_jax.data.split_metadata import SplitMetadata
from dml_jax.errors import DataError


def scan(directory: Path, recipe: Recipe) -> Mapping[str, SplitMetadata]:
    """The splits of a folder, each of whose images is decoded once; DataError if some are unusable, or no classes.

    `content` is a SHA-256 of the split, class, name and file content of all images.
    """
    files = dict(sorted(walk(directory.resolve())))
    splits = split_metadata.cached(_fingerprint(directory, files), lambda: _scan(directory, files, recipe))
    return {name: split._replace(note=recipe.skipped(files)) for name, split in splits.items()}


def _scan(directory: Path, files: Files, recipe: Recipe) -> Mapping[str, SplitMetadata]:
    entries = check.find_entries(recipe, files, Options(), f"data.path={directory}")
    facts, reasons = check.inspect_images(entries, os.cpu_count() or 1)
    reasons |= check.find_invalid(entries, facts)
    if reasons:
        first = min(reasons)
        source, output = shlex.quote(str(directory)), shlex.quote(f"{directory.resolve()}_prepared")
        raise DataError(
            f"data.path={directory}: {len(reasons)} of {len(entries)} images cannot be used, the first is "
            f"{entries[first].id}: {reasons[first]}; dml-jax prepare --name=folder --source={source} "
            f"--output={output} lists all of them, and with --skip_bad leaves them out"
        )
    content = hashlib.sha256()
    for i, entry in enumerate(entries):
        content.update(facts[i].sha256)
        content.update(f"{entry.split}\n{entry.class_name}\n{entry.id}\n".encode())
    splits = split_metadata.from_entries(entries)
    return {name: split._replace(content=content.hexdigest()) for name, split in splits.items()}


def _fingerprint(directory: Path, files: Files) -> bytes:
    """Names, sizes, modification and change times of the files."""
    lines = ["splits: 3", str(directory.resolve())]  # the number rises when folders are read as other splits
    lines += [f"{name}\0{stamp(file.path)}" for name, file in files.items()]
    return "\n".join(lines).encode(errors="surrogateescape")
