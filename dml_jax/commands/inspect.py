"""Shows how images are understood before anything is done with them:

    dml-jax inspect photos/
    dml-jax inspect photos/ [--splits=train:valid:test]

SOURCE is a folder of images, a .csv file, or the folder of a data set. Prints splits, classes,
missing and skipped files, near-equal names of classes and everything else that is doubtful, and the
command that reads the images like this. No image is opened, unless you ask for

    dml-jax inspect photos/ --look

which embeds up to 200 images with lite0, in about half a minute on two cores, and says whether
their pixels agree with the reading: which folders are alike, which classes mix, and near-copies in
two splits.
"""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dml_jax.commands import cli
from dml_jax.errors import DataError, counted, printable
from dml_jax.files import expand_path

if TYPE_CHECKING:
    from dml_jax.data.files import Entry
    from dml_jax.data.sources import Options, Survey, Table


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__, epilog=cli.LARGE)
    flags.add_argument("source", metavar="SOURCE", help="folder or .csv file")
    cli.add_layout(flags, sessions=("folder",))
    flags.add_argument("--look", action="store_true", help="embed up to 200 images with lite0")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line and prints the page of a source."""
    options = parser().read_plain(arguments)
    from dml_jax.data import prepared_data, understand
    from dml_jax.data.sources import list_files

    layout = cli.layout(options)
    path = expand_path("SOURCE", options.source)
    if about := prepared_data.read_about(path):
        cli.require(not options.look, "--look: is for sources that are not prepared; remove it")
        name, where = about["name"], shlex.quote(options.source)
        print(
            f"read as: {name}, a prepared data set", *prepared_data.describe_splits(about), sep="\n"
        )
        print(printable(f"use it: --config.data.name={name} --config.data.path={where}"))
        return
    contents, entries, problem = list_files([path], "SOURCE"), [], None
    try:
        name, table = understand.recognise(contents, layout, options.source)
        entries = list(table.rows)
        for line in _page(name, table, path, layout):
            print(printable(line), flush=True)
    except DataError as error:
        problem = error
    if options.look:
        for line in _look(contents, layout, options.source, entries):
            print(printable(line), flush=True)
    if problem:
        raise problem


def _page(name: str, table: Table, path: Path, options: Options) -> Iterator[str]:
    """The lines that say how a source is understood, and the commands that read it like this."""
    from dml_jax.data import checked_images, understand
    from dml_jax.data.files import MISSING, SPLITS, is_missing

    recipe, entries = understand.recipes()[name], table.rows
    owners = f"the layout of its owners ({recipe.home})" if recipe.home else "your own data"
    divided = f"none given, so {100 * options.test_share:g} % of the classes are for test"
    yield from table.refused
    yield f"read as: {name}, {owners}"
    yield from [f"columns: {table.columns}"] if table.columns else []
    yield f"splits: {'given' if table.undecided < len(entries) else divided}"
    for split in SPLITS:
        images = Counter(entry.class_name for entry in entries if entry.split == split)
        if names := sorted(images):
            least, most = min(images.values()), max(images.values())
            size = f"{least:,} to {most:,} images" if least < most else counted(most, "image")
            ends = repr(names[0]) + (f" to {names[-1]!r}" if names[1:] else "")
            total = f"{counted(images.total(), 'image')} of {counted(len(names), 'class')}"
            yield f"{split}: {total}, {ends}; {size} each"
    classes = {entry.class_name for entry in entries}
    yield f"in all: {counted(len(entries), 'image')} of {counted(len(classes), 'class')}"
    yield from (f"doubt: {line}" for line in table.doubts)
    reasons = {i: MISSING for i, entry in enumerate(entries) if is_missing(entry.file)}
    reasons |= checked_images.find_invalid(entries, {*range(len(entries))} - reasons.keys())
    if reasons:
        first = f"the first is {entries[min(reasons)].id!r}: {reasons[min(reasons)]}"
        count = f"{len(reasons):,} of {counted(len(entries), 'image')}"
        yield f"doubt: training and prepare leave out {count}, {first}"
    try:
        understand.check_splits(entries, options)
        checked_images.check_classes([e for i, e in enumerate(entries) if i not in reasons])
    except DataError as error:
        yield f"error in training: {error}"
        if "--splits=classes" not in str(error) or len(classes) < 4:  # two for each split
            return
        options = options._replace(splits="classes")
    source, defaults = shlex.quote(str(path)), options._field_defaults
    flags = "".join(
        f" --{key}={shlex.quote(value)}"
        for key, value in options._asdict().items()
        if value != defaults[key]
    )
    try:
        checked_images.check_counts(recipe, entries)
    except DataError:
        flags += " --subset"
    output = shlex.quote(f"data/{path.absolute().name.split('.')[0]}")
    what = "fix that, or read it like this anyway" if table.refused else "prepare it"
    yield f"{what}: dml-jax prepare --name={name} --source={source}{flags} --output={output}"
    if path.is_dir() and recipe.in_place and not flags and not table.refused:
        yield f"or use it in place: --config.data.name={name} --config.data.path={source}"


def _look(contents: Survey, layout: Options, source: str, entries: list[Entry]) -> list[str]:
    """The lines of `look`; about the folders only if there are no `entries`, because the source can
    be read in several ways."""
    from dml_jax.commands import jax_setup
    from dml_jax.data import look, understand

    every = layout._replace(splits="none", classes="path", session="")
    name, table = understand.recognise(contents, every, source)
    folders = table.rows
    if name != "folder":
        folders = [e._replace(class_name=f"{e.split}/{e.class_name}") for e in entries]
    print(f"embedding {min(look.MOST, len(folders))} images with lite0", flush=True)
    options = argparse.Namespace(checkpoint="reported", trust_code=False)
    return look.look(jax_setup.load(options, "lite0"), folders, entries)
