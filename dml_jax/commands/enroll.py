"""Enrolls new classes without training, classifies images, and measures how well that works:

    dml-jax enroll --model=lite0 --index=birds.npz gallery/ [--session=date]
    dml-jax enroll --model=lite0 --index=birds.npz --classify photos/ [--top=3] [--format=json]
    dml-jax enroll --model=lite0 --index=birds.npz --check=later/ [--session=date]

The first creates the index from class folders, a CSV file or a prepared data set, or adds images
that it does not hold yet, and fits its classifier; --remove=wren removes a class, --restore=wren
enrolls it again, --purge deletes removed classes for good, --rename=wren:"house wren" renames one,
--merge=wren:robin gives the images of wren to robin; --list prints the number of images and the
name of each class.

The second prints a table (CSV with a header, or JSON): for each image the answer, the most probable
classes, and the probability that each is right if the class of the image is enrolled. Probabilities
are calibrated on sessions that are left out (--session says which photographs were taken together).
Every image gets a name unless you ask for "unknown", with one of --reject=0.05 (the share of images
of other classes that may get a name), --min_probability=0.8 and --threshold (a margin).

A table says what to expect of photographs to come with each of these, with 95 % intervals. The
third command measures it on class folders of enrolled and of other classes. Images of other classes
are those of the unseen classes of the run or of --calibrate=others/; without any, each enrolled
class is left out in turn.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dml_jax.class_names import normalised
from dml_jax.commands import cli, jax_setup
from dml_jax.errors import printable
from dml_jax.files import write_rows

if TYPE_CHECKING:
    from dml_jax.data.files import Record
    from dml_jax.inference.index import Answer, Index


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command line, after checking all of them."""
    flags = cli.Parser(__doc__)
    add = flags.add_argument
    add("paths", nargs="*", metavar="DIRECTORY|IMAGE", help="folders of class folders, or images")
    cli.add_model(flags, versions=True, runtime=True)
    add("--index", default="", help=".npz file with the enrolled classes")
    add("--classify", action="store_true", help="classify images instead of enrolling classes")
    add("--format", choices=("csv", "json"), default="csv", help="of the answers")
    several = partial(add, metavar="CLASS", action="append", type=normalised, default=[])
    several("--remove", help="class to remove; repeatable")
    several("--restore", help="removed class; repeatable")
    text = "delete the embeddings of all removed classes for good"
    add("--purge", action="store_true", help=text)
    several("--rename", metavar="OLD:NEW", type=str, help="new name; repeatable")
    text = "give the images of class A to class B; repeatable"
    several("--merge", metavar="A:B", type=str, help=text)
    text = "print the enrolled classes and their numbers of images"
    add("--list", action="store_true", help=text)
    text = "class folders of other classes, to tell strangers from enrolled classes"
    add("--calibrate", metavar="DIRECTORY", help=text)
    add("--check", metavar="FOLDER", help="class folders to compare with what is expected")
    cli.add_layout(flags)
    cli.add_decision(flags)
    add("--skip_bad", action="store_true", help="leave out unusable images instead of stopping")
    options = flags.read_plain(arguments)
    problem = f"--index={options.index}: give a file that ends in .npz, e.g. --index=birds.npz"
    cli.require(options.index.endswith(".npz"), problem)
    names = ("remove", "restore", "purge", "rename", "merge", "calibrate", "check")
    changes = any(getattr(options, name) for name in names)
    problem = "--list and --classify: change and check nothing; leave the other options out"
    cli.require(not (changes and (options.list or options.classify)), problem)
    problem = "--list: reads no images; leave DIRECTORY|IMAGE and --classify out"
    cli.require(not (options.list and (options.paths or options.classify)), problem)
    cli.refuse(
        f"--{option}={pair}: must be {form}, e.g. --{option}=wren:robin"
        for option, form in (("rename", "OLD:NEW"), ("merge", "A:B"))
        for pair in getattr(options, option)
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
    limit = cli.decision(options)
    path = cli.file_to_write("--index", options.index)
    adds = options.paths and not options.classify
    problem = f"--index={path}: there is no such file; enroll classes first"
    cli.require(adds or path.is_file(), problem)
    from dml_jax.data import formats, sessions
    from dml_jax.evaluation import promises
    from dml_jax.inference import enrollment, inputs
    from dml_jax.inference.index import Index

    warn = partial(print, file=sys.stderr)
    files = inputs.image_files(options.paths, warn) if options.classify else []
    read = partial(formats.class_folders, session=options.session, splits=options.splits)
    classes = read(options.paths) if adds else {}
    others = read([options.calibrate]) if options.calibrate else {}
    labelled = read([options.check]) if options.check else {}
    model = jax_setup.load(options)
    taken: dict[Path | Record, str] = {}
    for folders in (classes, others, labelled):
        taken |= sessions.by_file(folders, options.session)
    if options.session == sessions.DATE and taken and not any(taken.values()):
        warn(
            f"warning: --session=date: none of {len(taken):,} images has an EXIF date, so sessions "
            "are unknown; give folder or a regular expression of the file names instead"
        )
    on_bad = warn if options.skip_bad else None
    if options.list:
        index = Index.load(model, path)
        counts = Counter(index.labels.tolist())
        for label, name in enumerate(index.classes):
            print(f"{counts[label]}\t{printable(name)}")
    elif options.classify:
        index = Index.load(model, path)
        files = enrollment.usable(model, {"": files}, on_bad)[""] if on_bad else files
        answers = index.classify(files, top=options.top, **limit)
        _show(index, files, answers, options)
    else:
        renamed, merged = (
            [
                (normalised(old), normalised(new))
                for old, _, new in (p.partition(":") for p in pairs)
            ]
            for pairs in (options.rename, options.merge)
        )
        changed = options.remove, options.restore, renamed, merged, options.purge
        changes = enrollment.Changes(*changed, classes, others, taken)
        choice = promises.choice(**limit)
        index = enrollment.update(model, path, changes, choice=choice, on_bad=on_bad)
        if labelled:
            labelled = enrollment.usable(model, labelled, on_bad) if on_bad else labelled
            print(enrollment.comparison(index, labelled, options.check, choice))


def _show(
    index: Index, files: list[str], answers: list[Answer], options: argparse.Namespace
) -> None:
    """Prints the answers as CSV or JSON."""
    both = list(zip(files, answers, strict=True))
    if options.format == "json":
        images = [
            {"image": printable(file)}
            | found.as_json()
            | {"nearest": printable(index.images[found.nearest])}
            for file, found in both
        ]
        about = {"model": options.model, "index": options.index}
        print(json.dumps(about | {"images": images}, indent=1))
        return
    count = min(options.top, len(index.classes))
    columns = [f"{name}_{i}" for i in range(1, count + 1) for name in ("class", "probability")]
    rows = [["image", "answer", *columns, "margin", "nearest"]]
    for file, found in both:
        pairs = [text for name, p in found.classes for text in (printable(name), f"{p:.4f}")]
        cells = printable(file), printable(found.name), *pairs, f"{found.margin:.4f}"
        rows.append([*cells, printable(index.images[found.nearest])])
    write_rows(sys.stdout, rows)
