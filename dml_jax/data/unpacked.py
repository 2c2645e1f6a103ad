"""A folder of images used as it is: checked once, then remembered until a file in it changes."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from dml_jax.data import index, inspection
from dml_jax.data.index import Part
from dml_jax.data.listing import Files, Options, Recipe, mixed, walk
from dml_jax.errors import DataError


def parts(directory: Path, recipe: Recipe) -> Mapping[str, Part]:
    """The splits of a folder; images are decoded where that has not been done before.

    Raises:
      DataError: images that cannot be used; names how many and the first.
    """
    files = dict(sorted(walk(directory)))
    entries = recipe.find(files, Options())
    mixed(entries)
    memory = _memory(directory, files)
    if memory.is_file():
        return index.load(memory)
    facts, reasons = inspection.examine_all(entries, os.cpu_count() or 1)
    reasons |= inspection.misplaced(entries, facts)
    if reasons:
        first = min(reasons)
        raise DataError(
            f"data.path={directory}: {len(reasons)} of {len(entries)} images cannot be used, the first is "
            f"{entries[first].id}: {reasons[first]}; python -m dml_jax.prepare --name=folder --source={directory} "
            "lists them all and can leave them out"
        )
    found = index.number(entries)
    memory.parent.mkdir(parents=True, exist_ok=True)
    temporary = memory.with_suffix(f".{os.getpid()}")
    index.save(temporary, found)
    temporary.replace(memory)
    return found


def _memory(directory: Path, files: Files) -> Path:
    """Where it is noted that the files as they are now have been checked."""
    state = hashlib.sha256(str(directory.resolve()).encode(errors="surrogateescape"))
    for name, file in files.items():
        found = file.path.stat() if file.path.exists() else None
        state.update(
            f"{name}\0{(found.st_size, found.st_mtime_ns) if found else 0}\n".encode(errors="surrogateescape")
        )
    home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return home / "dml_jax" / "folders" / f"{state.hexdigest()}.npz"
