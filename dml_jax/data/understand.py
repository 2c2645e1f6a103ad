"""One table of a source: the class and split of every image.

Training, `prepare`, `evaluate`, `enroll`, `catalogue` and `inspect` read images by `understand`.
A reader of `formats` makes the table; here is what all tables have in common: equal and near-equal
names, classes without a split, missing images. What is doubtful becomes a sentence; what certainly
misleads, or can be read in several ways, is an error that names the option to decide.
"""

import hashlib
import pkgutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from dml_jax.class_names import likeness, near_equal, normalised
from dml_jax.config import plugin_module
from dml_jax.data.files import Entry, Files, is_image, is_missing
from dml_jax.data.sources import (
    SHOWN,
    Options,
    Recipe,
    Survey,
    Table,
    list_skipped,
    packed_files,
)
from dml_jax.errors import DataError, counted, listed

DIVIDE = "divide the classes with dml-jax prepare --splits=classes"


@cache
def recipes() -> Mapping[str, Recipe]:
    """The recipes: data sets with official files, then tables, then folders, which read most."""
    modules = pkgutil.iter_modules([str(Path(__file__).parent / "formats")])
    every = {m.name: getattr(plugin_module("data", m.name), "RECIPE", None) for m in modules}
    readers = {name: recipe for name, recipe in every.items() if recipe}
    order = sorted(readers, key=lambda name: (not readers[name].home, name == "folder", name))
    return {name: readers[name] for name in order}


def understand(
    recipe: Recipe, contents: Survey, options: Options, source: str, *, labelled: bool = False
) -> Table:
    """Reads a source by a recipe; `source` stands for it in messages.

    With `labelled`, the images are to be compared with each other, whatever their split, so no
    class is held out. Raises DataError if the files can be read in several ways, no image exists,
    or test classes are also classes of training or validation, or near-equal to one.
    """
    try:
        table = _complete(recipe.read(contents.files, options), recipe, contents, options)
        if not labelled:
            check_splits(table.rows, options)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error
    return table


def recognise(contents: Survey, options: Options, source: str) -> tuple[str, Table]:
    """The data set that a source is, and its labelled images; `source` is for messages."""
    refused = list[str]()
    for name, recipe in recipes().items():
        if recipe.matches(contents.files):
            try:
                table = understand(recipe, contents, options, f"not read as {name}", labelled=True)
                return name, table._replace(refused=refused)
            except DataError as error:
                refused.append(str(error))
    no_images = "no images: give a folder with one folder of images per class, or with a table"
    reasons = refused or packed_files(contents.files) or [no_images]
    raise DataError(f"{source}: {'; '.join(reasons)}")


def _complete(table: Table, recipe: Recipe, contents: Survey, options: Options) -> Table:
    """The table with the final names of classes, a split in every row, and all doubts."""
    spellings = defaultdict[str, set[str]](set)
    for row in table.rows:
        spellings[normalised(row.class_name)].add(row.class_name)
    names = {spelling: name for name, group in spellings.items() for spelling in group}
    rows = [row._replace(class_name=names[row.class_name]) for row in table.rows]
    if options.splits in ("classes", "none"):
        rows = [row._replace(split="") for row in rows]
    undecided = [row.class_name for row in rows if not row.split]
    tested = choose_test_classes({*undecided}, options.test_share)
    rows = [
        row._replace(split=row.split or ("test" if row.class_name in tested else "train"))
        for row in rows
    ]
    doubts = list(table.doubts)
    if several := sorted(sorted(group) for group in spellings.values() if len(group) > 1):
        verb = "is" if len(several) == 1 else "are"
        example = " and ".join(map(ascii, several[0]))
        what = f"{counted(len(several), 'class')} {verb} written in several ways"
        doubts.append(f"{what}, e.g. {example}")
    if near := near_equal(spellings):
        pairs = listed([" and ".join(map(ascii, group)) for group in near], 3)
        doubts.append(f"near-equal names of classes: {pairs}; rename those that are the same")
    if 0 < len(undecided) < len(rows):
        share = f"{100 * options.test_share:g} % of their classes are for test"
        doubts.append(f"{counted(len(undecided), 'image')} of {len(rows):,} have no split; {share}")
    doubts += _unmatched(rows, contents.files, recipe) + contents.doubts
    doubts += list_skipped(contents.files, recipe.reads)
    return table._replace(rows=rows, doubts=doubts, undecided=len(undecided))


def choose_test_classes(classes: Collection[str], share: float) -> set[str]:
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
        if pairs and not options.parse_splits():
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
        present = [path for path in images if not is_missing(files[path])]
        content = f"{counted(len(present), 'image')}, e.g. {present[0]}" if present else ""
        raise DataError(
            f"all {len(missing):,} listed images are missing, e.g. {missing[0]!r}; the source "
            f"holds {content or 'no images; give their folder as well'}"
        )
    if missing:
        share = f"{100 * len(missing) / len(entries):.3g} % of the listed images"
        doubts.append(f"{share} ({len(missing):,}) are missing, e.g. {missing[0]!r}")
    used = {entry.file for entry in entries}
    unused = [path for path in images if files[path] not in used] if recipe.reads else []
    if unused:
        images_left = f"{counted(len(unused), 'image')}, e.g. {unused[0]!r}"
        doubts.append(f"left out, because the table does not list them: {images_left}")
    return doubts
