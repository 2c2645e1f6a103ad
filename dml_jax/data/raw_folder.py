"""A folder of images used as it is: checked once, then remembered until a file in it changes."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from dml_jax.data import labels
from dml_jax.data.labels import Part
from dml_jax.data.prepare import inspect
from dml_jax.data.prepare.sources import Files, Options, Recipe, mixed, walk
from dml_jax.errors import DataError


def parts(directory: Path, recipe: Recipe) -> Mapping[str, Part]:
    """The splits of a folder; images are decoded where that has not been done before.

    Raises:
      DataError: no classes in it, or images that cannot be used; names how many and the first.
    """
    files = dict(sorted(walk(directory.resolve())))
    return labels.cached(_state(directory, files), lambda: _checked(directory, files, recipe))


def _checked(directory: Path, files: Files, recipe: Recipe) -> Mapping[str, Part]:
    try:
        entries = recipe.find(files, Options())
        mixed(entries)
    except DataError as error:
        raise DataError(f"data.path={directory}: {error}") from error
    facts, reasons = inspect.examine_all(entries, os.cpu_count() or 1)
    reasons |= inspect.misplaced(entries, facts)
    if reasons:
        first = min(reasons)
        source, output = shlex.quote(str(directory)), shlex.quote(f"{directory.resolve()}_prepared")
        raise DataError(
            f"data.path={directory}: {len(reasons)} of {len(entries)} images cannot be used, the first is "
            f"{entries[first].id}: {reasons[first]}; python -m dml_jax.prepare --name=folder --source={source} "
            f"--output={output} lists them all, and leaves them out with --skip_bad"
        )
    return labels.number(entries)


def _state(directory: Path, files: Files) -> bytes:
    """What changes when a file does."""
    lines = [str(directory.resolve())]
    for name, file in files.items():
        found = file.path.stat() if file.path.exists() else None
        lines.append(f"{name}\0{(found.st_size, found.st_mtime_ns) if found else 0}")
    return "\n".join(lines).encode(errors="surrogateescape")
