"""Tells how images are understood before anything is done with them:

    dml-jax inspect photos/
    dml-jax inspect photos/ [--splits=train:valid:test]

SOURCE is also a .csv file, or the folder of a data set. Prints splits, classes, missing
and skipped files, names of classes that are nearly equal and everything else that had to be
guessed, and the command that reads the images like this. No image is opened.
"""

from __future__ import annotations

import shlex

from dml_jax.commands import cli
from dml_jax.errors import counted, printable
from dml_jax.files import expand_path


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__)
    flags.add_argument("source", metavar="SOURCE", help="folder or .csv file")
    cli.add_layout(flags, sessions=("folder",))
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line and prints the page of a source."""
    options = parser().read_plain(arguments)
    from dml_jax.data import prepared_data, recognise

    how = cli.layout(options)
    path = expand_path("SOURCE", options.source)
    if marker := prepared_data.read_marker(path):
        name, where = marker["name"], shlex.quote(options.source)
        lines = [f"read as: {name}, a prepared data set"]
        for split, sizes in marker["splits"].items():
            images, classes = counted(sizes["images"], "image"), counted(sizes["classes"], "class")
            lines.append(f"{split}: {images} of {classes}")
        lines.append(f"use it: --config.data.name={name} --config.data.path={where}")
    else:
        lines = recognise.page(path, how, options.source)
    for line in lines:
        print(printable(line))
