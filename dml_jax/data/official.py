"""Finds the tables and images of published data sets, which people unpack, rename and repack."""

from collections import Counter
from collections.abc import Sequence

from dml_jax.data.files import Entry, Files, file_at, is_image
from dml_jax.errors import DataError, counted, listed

ANOTHER = "give the folder or archive that contains them as another --source"


def describe_files(files: Files) -> str:
    """What the files are, for an error message."""
    images = [path for path in files if is_image(path)]
    others = [path for path in files if not is_image(path)]
    parts = [f"{counted(len(images), 'image')}, e.g. {images[0]}"] if images else ["no image"]
    return f"found {' and '.join([*parts, listed(others)] if others else parts)}"


def find_paths(files: Files, *names: str) -> list[str]:
    """The paths of the files with one of these names, in any folder."""
    return [path for path in files if path.split("/")[-1] in names]


def find_table(files: Files, name: str, expected: str) -> str:
    """The path of the file of this name in any folder; DataError if it is missing or copies differ.

    `expected` says what the whole data set consists of.
    """
    paths = find_paths(files, name)
    if not paths:
        raise DataError(
            f"{name} is missing: expected {expected}; {describe_files(files)}; {ANOTHER}"
        )
    if len(paths) > 1 and len({files[path].read() for path in paths}) > 1:
        remedy = "give only the files of one data set as --source"
        raise DataError(f"{paths[0]} and {paths[1]} differ: {remedy}")
    return paths[0]


def find_images(
    files: Files,
    table: str,
    rows: Sequence[tuple[str, str, str]],
    below: str = "",
    remedy: str = ANOTHER,
) -> list[Entry]:
    """The images that a table names, relative to the folder that contains most of them.

    Each row is name, class and split. The folder `below` may have another name. DataError if there
    are no images; those that are missing in the folder raise DataError when they are read.
    """
    names = [name for name, *_ in rows]
    paths = [name.removeprefix(below) for name in names]
    searched, depths = set(paths), {path.count("/") + 1 for path in paths}
    folders: Counter[str] = Counter()
    for path in files:
        parts = path.split("/")
        ends = (n for n in depths if "/".join(parts[-n:]) in searched)
        folders.update("/".join([*parts[:-n], ""]) for n in ends)
    if not folders:
        images = f"none of its {counted(len(names), 'image')}, e.g. {', '.join(names[:1])},"
        raise DataError(f"{table}: {images} is among the files; {describe_files(files)}; {remedy}")
    parent = table.rpartition("/")[0]
    folder = max(folders, key=lambda name: (folders[name], name.rstrip("/") == parent))
    return [
        Entry(name, file_at(files, folder + path), label, split)
        for path, (name, label, split) in zip(paths, rows, strict=True)
    ]
