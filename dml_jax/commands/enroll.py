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
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from dml_jax.class_names import normalised
from dml_jax.commands import cli, jax_setup
from dml_jax.errors import counted, printable
from dml_jax.files import directory, locked, write_rows

if TYPE_CHECKING:
    from dml_jax.inference.enrolled import OnBad
    from dml_jax.inference.index import Answer, Index


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
    from dml_jax.data import formats
    from dml_jax.inference import enrollment, graphs, inputs
    from dml_jax.inference.index import Index

    warn = partial(print, file=sys.stderr)
    on_bad = None if options.strict else warn
    files = inputs.image_files(options.paths, warn) if options.classify else []
    read = partial(formats.class_folders, options=cli.layout(options))
    classes = read(options.paths) if adds else {}
    others = read([options.calibrate]) if options.calibrate else {}
    labelled = read([options.check]) if options.check else {}
    model = jax_setup.load(options)
    if options.list:
        names = [item.name for item in Index.load(model, path).items.values()]
        for name, count in Counter(names).items():
            print(f"{count}\t{printable(name)}")
    elif options.classify:
        _classify(Index.load(model, path), files, options, limit, on_bad)
    else:
        changes = any((classes, others, options.remove, options.rename, options.merge))
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.resolve().with_name(f"{path.resolve().name}.update")
        with locked(lock) if changes else nullcontext():
            index = Index.load(model, path) if path.exists() else Index(model)
            done, known, doubts = _change(index, options, classes, others, on_bad)
            lines = enrollment.report(index, limit)
            if done:
                index.save(path)
        if known:
            done += ["nothing new"] * (not done) + [f"{counted(known, 'image')} enrolled already"]
        total = f"{counted(len(index.images), 'image')} of {counted(len(index.classes), 'class')}"
        print(f"{path}: {'; '.join([*done, f'now {total}'])}")
        if doubts:
            print(f"doubt: {'; '.join(doubts)}")
        print("\n".join(lines))
        if labelled:
            print(enrollment.comparison(index, labelled, options.check, limit, on_bad))
    graphs.make(model)


def _change(
    index: Index, options: argparse.Namespace, classes: Any, others: Any, on_bad: OnBad
) -> tuple[list[str], int, list[str]]:
    """Changes an index in the order of the options; returns what was done, the number of images
    that were enrolled already, and doubts.

    Args:
      classes, others: images by class, to enroll and to calibrate on.
    """
    from dml_jax.data import sessions
    from dml_jax.inference import enrollment
    from dml_jax.inference.enrolled import KNOWN, NEW, OTHER_SESSION

    session_of, guessed = sessions.sessions_by_file(
        (classes, others), options.session, partial(print, file=sys.stderr)
    )
    taken, taken_of_others = (
        {name: [session_of[file] for file in files] for name, files in each.items()}
        for each in (classes, others)
    )
    done, known = list[str](), 0
    for name in options.remove:
        done.append(f"removed {printable(name)}, {counted(index.remove(name), 'image')}")
    for old, new in options.rename:
        index.rename(old, new)
        done.append(f"renamed {printable(old)}:{printable(new)}")
    for name, into in options.merge:
        index.merge(name, into)
        done.append(f"merged {printable(name)}:{printable(into)}")
    doubts, shared = list[str](), index.shared()
    for enrolled, new in enrollment.near_names(index, classes):
        names, pair = f"{printable(new)} and {printable(enrolled)}", f"{new}:{enrolled}"
        doubts.append(
            f"{names} are near-equal names of different classes; if they are one class, "
            f"--merge={pair!r}, else --rename one"
        )
    if classes:
        added = index.add(classes, taken, on_bad)
        count = counted(sum(map(len, classes.values())), "image")
        cli.require(index.items, f"none of {count} can be used; the reasons are listed above")
        known = added.pop(KNOWN, 0)
        done += [f"{counted(number, 'image')} {printable(what)}" for what, number in added.items()]
        if guessed and {NEW, OTHER_SESSION} & added.keys():
            done.append(guessed)
    if others:
        index.calibrate(others, taken_of_others, on_bad)
        done.append(f"calibrated on {counted(len(others), 'class')}")
    if twice := [files for files in index.shared() if files not in shared]:
        names, files = (" and ".join(map(printable, of)) for of in (twice[0], twice[0].values()))
        more = f", and {counted(len(twice) - 1, 'image')} more" if len(twice) > 1 else ""
        doubts.append(
            f"the same image is in the classes {names}: {files}{more}; all are enrolled; delete "
            "the wrong ones and repeat the command"
        )
    return done, known, doubts


def _classify(
    index: Index, files: list[str], options: argparse.Namespace, limit: Any, on_bad: OnBad
) -> None:
    """Prints the answers to images."""
    from dml_jax.inference import enrolled, enrollment

    index.expect(**limit)  # refuses before images are embedded
    if any(value is not None for value in limit.values()):
        print(enrollment.expectation(index, limit), file=sys.stderr)
    usable, rows = enrolled.embed(index.model, files, on_bad)
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


def _rows(answered: Sequence[tuple[str, Answer, str]]) -> list[list[str]]:
    """The heading and the rows of a table of images, their answers and nearest enrolled images."""
    count = len(answered[0][1].classes)
    columns = [f"{name}_{i}" for i in range(1, count + 1) for name in ("class", "probability")]
    rows = [["image", "answer", *columns, "margin", "nearest"]]
    for name, answer, nearest in answered:
        pairs = [text for each, p in answer.classes for text in (printable(each), f"{p:.4f}")]
        rows.append([name, printable(answer.name), *pairs, f"{answer.margin:.4f}", nearest])
    return rows
