"""Enrolls new classes without training, classifies images, and measures how well that works:

    dml-jax enroll --model=runs/birds --index=birds.npz gallery/ [--session=date]
    dml-jax enroll --model=runs/birds --index=birds.npz --check=later/ [--session=date]
    dml-jax enroll --model=runs/birds --index=birds.npz --classify photos/

The first creates the index from class folders, or adds images that it does not hold yet;
--remove=wren removes a class, --restore=wren enrolls it again, --purge deletes removed classes for
good, --rename=wren:"house wren" renames one; --list prints the number of images and the name of
each class. Images of unknown classes are rejected by a threshold. It is measured for
--false_accept_rate on the unseen classes of the run, or on --calibrate=others/, class folders of
other classes, which published weights need; classes that are enrolled do not take part.

A table says what to expect of photographs to come, with 95 % intervals, from whole sessions that
are left out (--session says which photographs were taken together). The second command measures it:
on class folders of enrolled and of other classes. The third prints one tab-separated line per
image: class or "unknown", the margin of the class over all others, the image, and the nearest image
of that class.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from functools import partial
from pathlib import Path

from dml_jax.class_names import normalised
from dml_jax.commands import cli, jax_setup
from dml_jax.errors import printable


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command line, after checking all of them."""
    flags = cli.Parser(__doc__)
    add = flags.add_argument
    add("paths", nargs="*", metavar="DIRECTORY|IMAGE", help="folders of class folders, or images")
    cli.add_model(flags, versions=True, runtime=True)
    add("--index", default="", help=".npz file with the enrolled classes")
    add("--classify", action="store_true", help="classify images instead of enrolling classes")
    several = partial(add, metavar="CLASS", action="append", type=normalised, default=[])
    several("--remove", help="class to remove; repeatable")
    several("--restore", help="removed class; repeatable")
    text = "delete the embeddings of all removed classes for good"
    add("--purge", action="store_true", help=text)
    several("--rename", metavar="OLD:NEW", type=str, help="new name; repeatable")
    text = "print the enrolled classes and their numbers of images"
    add("--list", action="store_true", help=text)
    text = "class folders of other classes, for the threshold"
    add("--calibrate", metavar="DIRECTORY", help=text)
    add("--check", metavar="FOLDER", help="class folders to compare with what is expected")
    add("--session", metavar="date|folder|REGEX|COLUMN", default="", help=cli.SESSION)
    add("--splits", default="auto", metavar="auto|classes|none|A:B:C", help=cli.SPLITS)
    cli.add_decision(flags)
    add("--skip_bad", action="store_true", help="leave out unusable images instead of stopping")
    options = flags.read_plain(arguments)
    from dml_jax.evaluation import open_set

    open_set.check_rate(options.false_accept_rate)
    problem = f"--index={options.index}: give a file that ends in .npz, e.g. --index=birds.npz"
    cli.require(options.index.endswith(".npz"), problem)
    names = ("remove", "restore", "purge", "rename", "calibrate", "check")
    changes = any(getattr(options, name) for name in names)
    problem = "--list and --classify: change and check nothing; leave the other options out"
    cli.require(not (changes and (options.list or options.classify)), problem)
    cli.refuse(
        f"--rename={pair}: must be OLD:NEW, e.g. --rename=wren:robin"
        for pair in options.rename
        if pair.count(":") != 1
    )
    cli.require(
        options.paths or (not options.classify and (changes or options.list)),
        "DIRECTORY|IMAGE: missing; give directories of class folders or, with --classify, images",
    )
    return options


def execute(arguments: list[str]) -> None:
    """Reads the command line; enrolls classes or classifies images."""
    options = parse(arguments)
    path = cli.file_to_write("--index", options.index)
    adds = options.paths and not options.classify
    problem = f"--index={path}: there is no such file; enroll classes first"
    cli.require(adds or path.is_file(), problem)
    from dml_jax.data import formats, sessions
    from dml_jax.inference import enrollment, inputs
    from dml_jax.inference.index import Index

    warn = partial(print, file=sys.stderr)
    files = inputs.image_files(options.paths, warn) if options.classify else []
    read = partial(formats.class_folders, session=options.session, splits=options.splits)
    classes = read(options.paths) if adds else {}
    others = read([options.calibrate]) if options.calibrate else {}
    labelled = read([options.check]) if options.check else {}
    model = jax_setup.load(options)
    taken: dict[Path, str] = {}
    for folders in (classes, others, labelled):
        taken |= sessions.by_file(folders, options.session)
    rate, on_bad = options.false_accept_rate, warn if options.skip_bad else None
    if options.list:
        index = Index.load(model, path)
        counts = Counter(index.labels.tolist())
        for label, name in enumerate(index.classes):
            print(f"{counts[label]}\t{printable(name)}")
    elif options.classify:
        index = Index.load(model, path)
        files = enrollment.usable(model, {"": files}, on_bad)[""] if on_bad else files
        found = index.nearest(files, threshold=options.threshold, false_accept_rate=rate)
        for name, margin, nearest, file in zip(*found, files, strict=True):
            print("\t".join(map(printable, (name, f"{margin:.4f}", file, index.images[nearest]))))
    else:
        split = (map(normalised, pair.split(":")) for pair in options.rename)
        pairs = [(old, new) for old, new in split]
        changed = options.remove, options.restore, pairs, options.purge
        changes = enrollment.Changes(*changed, classes, others, taken)
        index = enrollment.update(model, path, changes, false_accept_rate=rate, on_bad=on_bad)
        if labelled:
            labelled = enrollment.usable(model, labelled, on_bad) if on_bad else labelled
            print(enrollment.comparison(index, labelled, options.check, rate))
