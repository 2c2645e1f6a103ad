"""Unprepared image folders: every image is checked once; the result is cached until a file changes."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from dml_jax.data import metadata
from dml_jax.data.metadata import SplitMetadata
from dml_jax.data.prepare import inspect
from dml_jax.data.prepare.sources import Files, Options, Recipe, check_disjoint_classes, walk
from dml_jax.errors import DataError


def scan(directory: Path, recipe: Recipe) -> Mapping[str, SplitMetadata]:
    """Finds the images of a folder and decodes each once, unless that was done before.

    Raises:
      DataError: no classes, or unusable images (how many, and the first of them).
    """
    files = dict(sorted(walk(directory.resolve())))
    return metadata.cached(_fingerprint(directory, files), lambda: _scan(directory, files, recipe))


def _scan(directory: Path, files: Files, recipe: Recipe) -> Mapping[str, SplitMetadata]:
    try:
        entries = recipe.find(files, Options())
        check_disjoint_classes(entries)
    except DataError as error:
        raise DataError(f"data.path={directory}: {error}") from error
    facts, reasons = inspect.inspect_images(entries, os.cpu_count() or 1)
    reasons |= inspect.find_invalid(entries, facts)
    if reasons:
        first = min(reasons)
        source, output = shlex.quote(str(directory)), shlex.quote(f"{directory.resolve()}_prepared")
        raise DataError(
            f"data.path={directory}: {len(reasons)} of {len(entries)} images cannot be used, the first is "
            f"{entries[first].id}: {reasons[first]}; python -m dml_jax.prepare --name=folder --source={source} "
            f"--output={output} lists all of them, and with --skip_bad leaves them out"
        )
    return metadata.from_entries(entries)


def _fingerprint(directory: Path, files: Files) -> bytes:
    """Names, sizes and modification times of the files."""
    lines = [str(directory.resolve())]
    for name, file in files.items():
        stat = file.path.stat() if file.path.exists() else None
        lines.append(f"{name}\0{(stat.st_size, stat.st_mtime_ns) if stat else 0}")
    return "\n".join(lines).encode(errors="surrogateescape")
