"""Enrolls new classes without training, classifies images, and measures how well that works:

    dml-jax enroll --model=lite0 --index=birds gallery/ [--session=date]
    dml-jax enroll --model=lite0 --index=birds --classify photos/ [--top=3] [--format=json]
    dml-jax enroll --model=lite0 --index=birds --check=later/ [--session=date]

The first creates the index from class folders, a CSV file or a prepared data set, or adds images
that it does not hold yet, and fits its classifier; --remove=wren forgets a class,
--rename=wren:"house wren" renames one, --merge=wren:robin gives the images of wren to robin; --list
prints the number of images and the name of each class.

The second prints a table (CSV with a header, or JSON): for each image the answer, the most probable
classes, and the probability that each is right if the class of the image is enrolled. Probabilities
are calibrated on sessions that are left out (--session says which photographs were taken together).
Every image gets a name unless you ask for "unknown", with --reject=0.05 (the share of the measured
strangers, images of other classes, that gets a name) or --min_probability=0.8.

A line says what to expect of photographs to come with the chosen one, with 95 % intervals. The
third command measures it on class folders of enrolled and of other classes. Images of other classes
are those of the unseen classes of the run or of --calibrate=others/; without any, each enrolled
class is left out in turn.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from dml_jax.class_names import normalised
from dml_jax.commands import cli, jax_setup
from dml_jax.errors import printable
from dml_jax.files import directory, write_rows

if TYPE_CHECKING:
    from dml_jax.inference.index import Answer


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command line, after checking all of them."""
    flags = cli.Parser(__doc__, epilog=cli.LARGE)
    add = flags.add_argument
    add("paths", nargs="*", metavar="DIRECTORY|IMAGE", help="folders of class folders, or images")
    cli.add_model(flags, versions=True, runtime=True)
    text = "directory of the enrolled classes"
    add("--index", required=True, metavar="DIRECTORY", help=text)
    add("--classify", action="store_true", help="classify images instead of enrolling classes")
    add("--format", choices=("csv", "json"), default="csv", help="of the answers")
    several = partial(add, metavar="CLASS", action="append", type=normalised, default=[])
    several("--remove", help="class to remove; repeatable")
    several("--rename", metavar="OLD:NEW", type=cli.two_classes, help="new name; repeatable")
    text = "give the images of class A to class B; repeatable"
    several("--merge", metavar="A:B", type=cli.two_classes, help=text)
    text = "print the enrolled classes and their numbers of images"
    add("--list", action="store_true", help=text)
    text = "class folders of other classes, to tell strangers from enrolled classes"
    add("--calibrate", metavar="DIRECTORY", help=text)
    add("--check", metavar="FOLDER", help="class folders to compare with what is expected")
    cli.add_layout(flags)
    cli.add_decision(flags)
    text = "stop if images cannot be used, instead of leaving them out"
    add("--strict", action="store_true", help=text)
    options = flags.read_plain(arguments)
    names = ("remove", "rename", "merge", "calibrate", "check")
    changes = any(getattr(options, name) for name in names)
    problem = "--list and --classify: change and check nothing; leave the other options out"
    cli.require(not (changes and (options.list or options.classify)), problem)
    problem = "--list: reads no images; leave DIRECTORY|IMAGE and --classify out"
    cli.require(not (options.list and (options.paths or options.classify)), problem)
    cli.require(
        options.paths or (not options.classify and (changes or options.list)),
        "DIRECTORY|IMAGE: missing; give directories of class folders or, with --classify, images",
    )
    return options


def execute(arguments: list[str]) -> None:
    """Reads the command line; enrolls classes or classifies images."""
    options = parse(arguments)
    limit = cli.decision(options)
    path = directory("--index", options.index)
    adds = options.paths and not options.classify
    problem = f"--index={path}: there is no index; enroll classes first"
    cli.require(adds or path.exists(), problem)
    from dml_jax.data import formats, sessions
    from dml_jax.evaluation import expectations
    from dml_jax.inference import enrollment, graphs, inputs
    from dml_jax.inference.index import Index

    warn = partial(print, file=sys.stderr)
    files = inputs.image_files(options.paths, warn) if options.classify else []
    read = partial(formats.class_folders, options=cli.layout(options))
    classes = read(options.paths) if adds else {}
    others = read([options.calibrate]) if options.calibrate else {}
    labelled = read([options.check]) if options.check else {}
    model = jax_setup.load(options)
    session_of, guessed = sessions.by_file((classes, others), options.session, warn)
    on_bad = None if options.strict else warn
    if options.list:
        for name, count in Counter(item.name for item in Index.load(model, path).items).items():
            print(f"{count}\t{printable(name)}")
    elif options.classify:
        index = Index.load(model, path)
        index.expect(**limit)  # refuses before images are embedded
        usable, rows = index.embed(files, on_bad)
        names = [printable(files[i]) for i in usable]
        cli.require(names, "none of the images can be used; the reasons are listed above")
        answers = index.classify(rows, top=options.top, **limit)
        nearest = [printable(index.images[answer.nearest]) for answer in answers]
        answered = list(zip(names, answers, nearest, strict=True))
        if options.format == "json":
            images = [{"image": n, **a.as_json(), "nearest": e} for n, a, e in answered]
            document = {"model": options.model, "index": options.index, "images": images}
            print(json.dumps(document, indent=1))
        else:
            write_rows(sys.stdout, _rows(answered))
    else:
        index = enrollment.update(
            model,
            path,
            remove=options.remove,
            rename=options.rename,
            merge=options.merge,
            enroll=classes,
            calibrate=others,
            sessions=session_of,
            guessed=guessed,
            choice=(choice := expectations.choice(**limit)),
            on_bad=on_bad,
        )
        if labelled:
            print(enrollment.comparison(index, labelled, options.check, choice, on_bad))
    graphs.make(model)


def _rows(answered: Sequence[tuple[str, Answer, str]]) -> list[list[str]]:
    """The heading and the rows of a table of images, their answers and nearest enrolled images."""
    count = len(answered[0][1].classes)
    columns = [f"{name}_{i}" for i in range(1, count + 1) for name in ("class", "probability")]
    rows = [["image", "answer", *columns, "margin", "nearest"]]
    for name, answer, nearest in answered:
        pairs = [text for each, p in answer.classes for text in (printable(each), f"{p:.4f}")]
        rows.append([name, printable(answer.name), *pairs, f"{answer.margin:.4f}", nearest])
    return rows
