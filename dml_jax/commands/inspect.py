"""Tells how images are understood before anything is done with them:

    dml-jax inspect photos/
    dml-jax inspect photos/ [--splits=train:valid:test]

SOURCE is also a .csv file, or the folder of a data set. Prints splits, classes, missing
and skipped files, names of classes that are nearly equal and everything else that had to be
guessed, and the command that reads the images like this. No image is opened, unless you ask for

    dml-jax inspect photos/ --look

which embeds up to 200 images with lite0, in about half a minute on two cores, and says whether
their pixels agree with the reading: which folders are alike, which classes mix, and near-copies in
two splits.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from dml_jax.commands import cli
from dml_jax.errors import DataError, printable
from dml_jax.files import expand_path

if TYPE_CHECKING:
    from dml_jax.data.sources import Options


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__, epilog=cli.LARGE)
    flags.add_argument("source", metavar="SOURCE", help="folder or .csv file")
    cli.add_layout(flags, sessions=("folder",))
    flags.add_argument("--look", action="store_true", help="embed up to 200 images with lite0")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line and prints the page of a source."""
    options = parser().read_plain(arguments)
    from dml_jax.data import prepared_data, recognise

    how = cli.layout(options)
    path, problem = expand_path("SOURCE", options.source), None
    if about := prepared_data.stated(path):
        cli.require(not options.look, "--look: is for sources that are not prepared; remove it")
        name, where = about["name"], shlex.quote(options.source)
        lines = [f"read as: {name}, a prepared data set"]
        lines += prepared_data.sizes(about)
        lines.append(f"use it: --config.data.name={name} --config.data.path={where}")
    else:
        try:
            lines = recognise.page(path, how, options.source)
        except DataError as error:
            if not options.look:
                raise
            lines, problem = [], error
    for line in lines:
        print(printable(line), flush=True)
    if options.look:
        for line in _look(path, how, options.source, certain=not problem):
            print(printable(line))
    if problem:
        raise problem


def _look(path: Path, how: Options, source: str, *, certain: bool) -> list[str]:
    """The lines of `look`; if a source can be read in several ways, about its folders only."""
    from dml_jax.commands import jax_setup
    from dml_jax.data import look, recognise
    from dml_jax.data.sources import list_files

    files = list_files([path], "SOURCE")
    read = recognise.recognised(files, how, source)[1].entries if certain else ()
    every = how._replace(splits="none", classes="path", session="")
    name, found = recognise.recognised(files, every, source)
    folders = found.entries
    if name != "folder":
        folders = [e._replace(class_name=f"{e.split}/{e.class_name}") for e in read]
    options = argparse.Namespace(checkpoint="reported", trust_code=False)
    print(f"embedding {min(look.MOST, len(folders))} images with lite0", flush=True)
    return look.look(jax_setup.load(options, "lite0"), folders, read)
