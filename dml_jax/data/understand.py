"""What the table of a source means: the class, split and role of every image.

Training, `prepare`, `evaluate`, `enroll`, `catalogue` and `inspect` read images by `understand`.
`columns` reads tables and `folders` reads paths. What is doubtful is a sentence; what certainly
misleads, or can be read in several ways, is an error that names the option to decide.
"""

import hashlib
import pkgutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from dml_jax.class_names import likeness, near_equal, normalised
from dml_jax.config import plugin_module
from dml_jax.data.columns import read_columns
from dml_jax.data.files import Entry, Files, is_image, is_missing
from dml_jax.data.folders import read_folders
from dml_jax.data.sources import SHOWN, Options, Recipe, Survey, Table, packed_files, survey
from dml_jax.errors import DataError, counted, listed

DIVIDE = "divide the classes with dml-jax prepare --splits=classes"


class Understood(NamedTuple):
    """How a source is understood."""

    entries: Sequence[Entry]
    doubts: Sequence[str]  # sentences
    stated: Sequence[str]  # the doubts of the reader
    columns: str  # what the columns of a table are, "" without one
    undecided: int  # images without a split, for which `Options.test_share` decides
    refused: Sequence[str] = ()  # data sets that the files look like, with why they are not read so


def understand(
    recipe: Recipe, files: Files, options: Options, source: str, *, labelled: bool = False
) -> Understood:
    """Reads files by a recipe; `source` stands for them in messages. See `_understand`."""
    found = survey(files.items())
    try:
        return _understand(recipe, recipe.read(found.files), found, options, labelled=labelled)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error


@cache
def recipes() -> Mapping[str, Recipe]:
    """The recipes: data sets with official files, then tables, then folders, which read most."""
    modules = pkgutil.iter_modules([str(Path(__file__).parent / "formats")])
    every = {m.name: getattr(plugin_module("data", m.name), "RECIPE", None) for m in modules}
    some = {name: recipe for name, recipe in every.items() if recipe}
    order = sorted(some, key=lambda name: (not some[name].home, name == "folder", name))
    return {name: some[name] for name in order}


def recognise(files: Files, options: Options, source: str) -> tuple[str, Understood]:
    """The data set that files are, with all images understood; `source` is for messages."""
    found, refused = survey(files.items()), list[str]()
    for name, recipe in recipes().items():
        if not recipe.recognised(found.files):
            continue
        try:
            table = recipe.read(found.files)
        except DataError as error:
            refused.append(f"not read as {name}: {error}")
            continue
        try:
            page = _understand(recipe, table, found, options, labelled=True)
        except DataError as error:
            raise DataError(f"{source}: {'; '.join([*refused, str(error)])}") from error
        return name, page._replace(refused=refused)
    no_images = "no images: give a folder with one folder of images per class, or with a table"
    raise DataError(f"{source}: {'; '.join(refused or packed_files(files)) or no_images}")


def _understand(
    recipe: Recipe, table: Table, contents: Survey, options: Options, *, labelled: bool
) -> Understood:
    """What a table that a recipe has read means.

    With `labelled`, the images are to be compared with each other, whatever their split, so no
    class is held out. Raises DataError if the table can be read in several ways, none of the images
    exists, or test classes are also classes of training or validation, or near-equal to one.
    """
    columns, rows, doubts = "", list(table.rows), list(table.doubts)
    if rows and rows[0].metadata:
        columns, rows = read_columns(rows, options, doubts)
    if not all(row.class_name for row in rows):
        rows = read_folders(rows, options, doubts)
    spellings = defaultdict[str, set[str]](set)
    for row in rows:
        spellings[normalised(row.class_name)].add(row.class_name)
    names = {spelling: name for name, group in spellings.items() for spelling in group}
    if options.splits in ("classes", "none"):
        rows = [row._replace(split="") for row in rows]
    undecided = [names[row.class_name] for row in rows if not row.split]
    tested = test_classes(set(undecided), options.test_share)
    entries = [
        row._replace(
            class_name=(name := names[row.class_name]),
            split=row.split or ("test" if name in tested else "train"),
        )
        for row in rows
    ]
    if several := sorted(sorted(group) for group in spellings.values() if len(group) > 1):
        verb = "is" if len(several) == 1 else "are"
        shown = " and ".join(map(ascii, several[0]))
        what = f"{counted(len(several), 'class')} {verb} written in several ways"
        doubts.append(f"{what}, e.g. {shown}")
    if near := near_equal(names.values()):
        shown = listed([" and ".join(map(ascii, group)) for group in near], 3)
        doubts.append(f"near-equal names of classes: {shown}; rename those that are the same")
    if 0 < len(undecided) < len(entries):
        share = f"{100 * options.test_share:g} % of their classes are for test"
        number = counted(len(undecided), "image")
        doubts.append(f"{number} of {len(entries):,} have no split; {share}")
    doubts += _unmatched(entries, contents.files, recipe) + contents.doubts(recipe.reads)
    if not labelled:
        check_splits(entries, options)
    return Understood(entries, doubts, table.doubts, columns, len(undecided))


def test_classes(classes: Collection[str], share: float) -> set[str]:
    """The classes with the smallest SHA-256 of their names, so that a new class moves few others.

    Near-equal names, which may be one class, stay together.
    """
    groups = defaultdict[str, list[str]](list)
    for name in sorted(classes):
        groups[likeness(name)].append(name)

    def digest(group: list[str]) -> bytes:
        return hashlib.sha256(group[0].encode(errors="surrogateescape")).digest()

    tested = set[str]()
    for group in sorted((groups[key] for key in sorted(groups)), key=digest):
        if len(tested) < round(share * len(classes)):
            tested |= {*group}
    return tested


def summarise_doubts(doubts: Sequence[str], source: str = "") -> list[str]:
    """The lines that a command prints about its source, at most `SHOWN`."""
    more = f"{len(doubts) - SHOWN + 1} further doubts: dml-jax inspect lists them"
    lines = list(doubts) if len(doubts) <= SHOWN else [*doubts[: SHOWN - 1], more]
    return [f"{source}: {line}" if source else line for line in lines]


def check_splits(entries: Iterable[Entry], options: Options) -> None:
    """Raises DataError if test classes are in other splits or, unless these are named, alike."""
    classes = defaultdict[str, set[str]](set)
    for entry in entries:
        classes["test" if entry.split == "gallery" else entry.split].add(entry.class_name)
    test = classes["test"]
    for name, seen in (("training", classes["train"]), ("validation", classes["validation"])):
        if shared := sorted(seen & test):
            verb = "is" if len(shared) == 1 else "are"
            raise DataError(
                f"{counted(len(shared), 'class')} {verb} in both {name} and test "
                f"({listed(shared)}): test classes must be new to the model; {DIVIDE}, or train "
                "with data.splits=classes"
            )
        pairs = [group for group in near_equal(seen | test) if seen & {*group} and test & {*group}]
        if pairs and not options.split_names():
            first, second = min(seen & {*pairs[0]}), min(test & {*pairs[0]})
            more = f" ({len(pairs) - 1} more such pairs)" if pairs[1:] else ""
            raise DataError(
                f"the classes {first!r} in {name} and {second!r} in test look like the same "
                f"one{more}; rename one, {DIVIDE} or, if they differ, name the splits, e.g. "
                "--splits=train:valid:test"
            )


def _unmatched(entries: Sequence[Entry], files: Files, recipe: Recipe) -> list[str]:
    """Doubts about images that a table lists and the source lacks, or the other way round; raises
    DataError if all are missing."""
    doubts, images = list[str](), [path for path in files if is_image(path)]
    missing = [entry.id for entry in entries if is_missing(entry.file)]
    if missing and len(missing) == len(entries):
        there = [path for path in images if not is_missing(files[path])]
        has = f"{counted(len(there), 'image')}, e.g. {there[0]}" if there else ""
        raise DataError(
            f"all {len(missing):,} listed images are missing, e.g. {missing[0]!r}; the source "
            f"holds {has or 'no images; give their folder as well'}"
        )
    if missing:
        share = f"{100 * len(missing) / len(entries):.3g} % of the listed images"
        doubts.append(f"{share} ({len(missing):,}) are missing, e.g. {missing[0]!r}")
    used = {entry.file for entry in entries}
    unused = [path for path in images if files[path] not in used] if recipe.reads else []
    if unused:
        shown = f"{counted(len(unused), 'image')}, e.g. {unused[0]!r}"
        doubts.append(f"left out, because the table does not list them: {shown}")
    return doubts
