"""Enrolls new classes without training, classifies images, and measures how well that works:

    dml-jax enroll --model=runs/birds --index=birds.npz gallery/ [--session=date]     # class folders, as for training
    dml-jax enroll --model=runs/birds --index=birds.npz --check=later/ [--session=date]
    dml-jax enroll --model=runs/birds --index=birds.npz --classify photos/

The first creates the index or adds to an existing one, without the images that it holds already;
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
"""  # noqa: E501

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml_jax.class_names import near_equal, normalised
from dml_jax.commands import cli, jax_setup
from dml_jax.errors import DataError, counted, printable
from dml_jax.files import locked

if TYPE_CHECKING:
    from dml_jax.inference.embedding_model import EmbeddingModel as Model
    from dml_jax.inference.index import Index

FEW = 5  # images of a class
FALSE_ACCEPT_RATE = 0.05  # as in `open_set`
SHOWN = 10  # names in a list


def usable(
    model: Model, classes: dict[str, list[Any]], *, needed: bool = True
) -> dict[str, list[Any]]:
    """The images by class that the model can embed; the others are listed on stderr with the
    reason.

    Raises DataError if images are given and there is none of these, but one is `needed`.
    """
    kept: dict[str, list[Any]] = {}
    for name, files in classes.items():
        for file in files:
            try:
                model.read(file)
            except DataError as error:
                print(f"left out: {printable(str(error))}", file=sys.stderr)
            else:
                kept.setdefault(name, []).append(file)
    if needed and classes and not kept:
        count = counted(sum(map(len, classes.values())), "image")
        raise DataError(f"none of {count} can be used; the reasons are listed above")
    return kept


def add_decision(flags: argparse.ArgumentParser) -> None:
    """Adds --false_accept_rate and --threshold, the arguments of `Index.classify`."""
    limit = flags.add_mutually_exclusive_group()
    text = f"fraction of strangers that may be given a class (default: {FALSE_ACCEPT_RATE:g})"
    limit.add_argument("--false_accept_rate", type=float, default=FALSE_ACCEPT_RATE, help=text)
    limit.add_argument("--threshold", type=float, help="margin below which an image is unknown")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command line, after checking all of them."""
    flags = cli.Parser(__doc__)
    flags.add_argument(
        "paths",
        nargs="*",
        metavar="DIRECTORY|IMAGE",
        help="directories of class folders, or images",
    )
    cli.add_model(flags, versions=True, runtime=True)
    flags.add_argument("--index", help=".npz file with the enrolled classes")
    flags.add_argument(
        "--classify", action="store_true", help="classify images instead of enrolling classes"
    )
    for name, text in (
        ("remove", "class to remove; repeatable"),
        ("restore", "removed class; repeatable"),
    ):
        flags.add_argument(
            f"--{name}", metavar="CLASS", action="append", type=normalised, default=[], help=text
        )
    flags.add_argument(
        "--purge", action="store_true", help="delete the embeddings of all removed classes for good"
    )
    flags.add_argument(
        "--rename", metavar="OLD:NEW", action="append", default=[], help="new name; repeatable"
    )
    flags.add_argument(
        "--list", action="store_true", help="print the enrolled classes and their numbers of images"
    )
    flags.add_argument(
        "--calibrate", metavar="DIRECTORY", help="class folders of other classes, for the threshold"
    )
    flags.add_argument(
        "--check", metavar="FOLDER", help="class folders to compare with what is expected"
    )
    flags.add_argument(
        "--session", metavar="date|folder|REGEX|COLUMN", default="", help=cli.SESSION
    )
    flags.add_argument(
        "--splits", default="auto", metavar="auto|classes|none|A:B:C", help=cli.SPLITS
    )
    add_decision(flags)
    flags.add_argument(
        "--skip_bad", action="store_true", help="leave out unusable images instead of stopping"
    )
    options = flags.read_plain(arguments)
    from dml_jax.evaluation import open_set

    open_set.check_rate(options.false_accept_rate)
    index = options.index or ""
    cli.require(
        index.endswith(".npz"),
        f"--index={index}: give a file that ends in .npz, e.g. --index=birds.npz",
    )
    changes = (
        options.remove
        or options.restore
        or options.purge
        or options.rename
        or options.calibrate
        or options.check
    )
    cli.require(
        not (changes and (options.list or options.classify)),
        "--list and --classify: change and check nothing; leave the other options out",
    )
    for pair in options.rename:
        cli.require(
            pair.count(":") == 1, f"--rename={pair}: must be OLD:NEW, e.g. --rename=wren:robin"
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
    cli.require(
        adds or path.is_file(), f"--index={path}: there is no such file; enroll classes first"
    )
    from dml_jax.commands.embed import image_files
    from dml_jax.data import formats, sessions
    from dml_jax.inference.index import Index

    files = image_files(options.paths) if options.classify else []
    session = options.session
    read = partial(formats.class_folders, session=session, splits=options.splits)
    classes = read(options.paths) if adds else {}
    others = read([options.calibrate]) if options.calibrate else {}
    asked = read([options.check]) if options.check else {}
    model = jax_setup.load(options)
    taken: dict[Path, str] = {}
    for folders in (classes, others, asked):
        taken |= sessions.by_file(folders, session)
    if options.list:
        index = Index.load(model, path)
        counts = Counter(index.labels.tolist())
        for label, name in enumerate(index.classes):
            print(f"{counts[label]}\t{printable(name)}")
    elif options.classify:
        index = Index.load(model, path)
        files = usable(model, {"": files})[""] if options.skip_bad else files
        found = index.nearest(
            files, threshold=options.threshold, false_accept_rate=options.false_accept_rate
        )
        for name, margin, nearest, file in zip(*found, files, strict=True):
            print("\t".join(map(printable, (name, f"{margin:.4f}", file, index.images[nearest]))))
    else:
        with locked(path):
            index = _change(model, path, classes, others, taken, options)
        if asked:
            _check(index, usable(model, asked) if options.skip_bad else asked, options)


def _change(
    model: Model,
    path: Path,
    classes: dict[str, list[Path]],
    others: dict[str, list[Path]],
    taken: dict[Path, str],
    options: argparse.Namespace,
) -> Index:
    """Changes the index, which no other command changes meanwhile, and prints what to expect of it.

    `taken` are the sessions of the images.
    """
    from dml_jax.inference.index import EMPTY, Index

    index = Index.load(model, path) if path.exists() else Index(model)
    for name in options.remove:
        index.remove(name)
    for name in options.restore:
        index.restore(name)
    for pair in options.rename:
        index.rename(*map(normalised, pair.split(":")))
    purged = list(index.removed) if options.purge else []
    for name in purged:
        del index.removed[name]
    enrolled = {
        (index.classes[label], name) for label, name in zip(index.labels, index.images, strict=True)
    }
    given = sum(map(len, classes.values()))
    new = {
        name: [f for f in files if (name, str(f.resolve())) not in enrolled]
        for name, files in classes.items()
    }
    classes = {name: files for name, files in new.items() if files}
    known = given - sum(map(len, classes.values()))
    if options.skip_bad:
        classes, others = usable(model, classes, needed=not known), usable(model, others)
    for group in near_equal([*index.classes, *classes]):
        if set(group) & set(classes):
            print(
                f"doubt: {' and '.join(map(printable, group))} are near-equal names of different "
                "classes; --rename one"
            )
    first = len(index.images)
    if classes:
        index.add(
            classes, {name: [taken[file] for file in images] for name, images in classes.items()}
        )
    if others:
        index.calibrate(
            others, {name: [taken[file] for file in images] for name, images in others.items()}
        )
    expected = (
        _expected(index, options.false_accept_rate) if index.images else EMPTY
    )  # or none is written
    changed = {
        "removed": options.remove,
        "restored": options.restore,
        "renamed": options.rename,
        "purged": purged,
    }
    if classes or others or any(changed.values()):
        index.save(path)
    done = [f"{what} {printable(', '.join(names))}" for what, names in changed.items() if names]
    if classes:
        done.append(
            f"enrolled {counted(sum(map(len, classes.values())), 'image')} of "
            f"{counted(len(classes), 'class')}"
        )
    if others:
        done.append(f"calibrated on {counted(len(others), 'class')}")
    if known:
        done.append(f"skipped {counted(known, 'enrolled image')}")
    now = f"{counted(len(index.images), 'image')} of {counted(len(index.classes), 'class')}"
    print(f"{path}: {'; '.join([*done, f'now {now}'])}")
    shared = index.shared(first)
    for each in shared[:SHOWN]:
        names, files = (" and ".join(map(printable, part)) for part in (each, each.values()))
        print(
            f"warning: the same image is in the classes {names}: {files}; one label at most is "
            "right, all are kept"
        )
    if len(shared) > SHOWN:
        print(f"warning: and {counted(len(shared) - SHOWN, 'image')} more")
    print(expected)
    return index


def _check(index: Index, classes: dict[str, list[Path]], options: argparse.Namespace) -> None:
    """Prints the rates on labelled images, and whether they are within the promised intervals."""
    for group in near_equal([*index.classes, *classes]):
        old, new = (
            sorted(set(group) & set(names))
            for names in (index.classes, set(classes) - set(index.classes))
        )
        if old and new:
            raise DataError(
                f"{options.check}: the class {new[0]!r} would count as a stranger, but {old[0]!r} "
                "is enrolled; rename "
                f"one, --rename={old[0]!r}:{new[0]!r}"
            )
    point = index.expect(options.false_accept_rate)
    found = index.check(classes, point.threshold)
    if found.overlapping:
        print(
            f"left out: {counted(found.overlapping, 'image')} of {options.check} that the index "
            "holds"
        )
    print(
        f"{options.check}: {counted(found.known_images, 'image')} of enrolled classes, "
        f"{counted(found.other_images, 'image')} of others; at threshold {point.threshold:.4f}, "
        "in %:"
    )
    for name in ("right", "wrong", "unknown", "strangers"):
        measured, (share, low, high) = getattr(found, name), getattr(point, name)
        verdict = "within" if low <= measured <= high else "outside"
        verdict = "" if math.isnan(measured + share) else f"  {verdict} the interval"
        label = "strangers accepted" if name == "strangers" else name
        print(
            f"  {label:18}  measured {_percent(measured):>5}  promised "
            f"{_interval((share, low, high))}{verdict}"
        )


def _expected(index: Index, false_accept_rate: float) -> str:
    """The rates to expect of this index at several thresholds, and the images they were measured
    on."""
    import numpy as np

    from dml_jax.evaluation import open_set, protocol

    chosen = index.expect(false_accept_rate)
    measured, enrolled, background = index.measured, index.enrolled, index.background()
    lines = []
    if overlap := index.overlap():
        kept = len(np.unique(background.labels))
        lines.append(
            f"{counted(len(overlap), 'class')} to measure on "
            f"{'is' if len(overlap) == 1 else 'are'} enrolled and left "
            f"out ({_listed(overlap)}); {counted(kept, 'class')} remain"
        )
    sessions = sorted({*enrolled.sessions.tolist(), *background.sessions.tolist()} - {""})
    if not sessions:
        share = protocol.near_copies(np.concatenate([enrolled.rows, background.rows]))
        lines.append(
            f"warning: sessions are unknown: {open_set.of_near_copies(share, '--session')}"
        )
    elif len(sessions) == 1:
        lines.append(
            f"warning: all photographs are of one session ({sessions[0]}), so later ones cannot "
            "be measured"
        )
    if measured.left_out:
        names = [index.classes[label] for label in measured.left_out]
        lines.append(
            "left out of the promise, because all their images are of one session: "
            f"{_listed(names)}"
        )
    across = (
        f"across sessions ({_listed(sessions)})"
        if len(sessions) > 1
        else "with near-copies left out"
    )
    groups = measured.known_groups
    known, strangers = (
        f"{counted(len(labels), 'image')} of {counted(len(np.unique(labels)), 'class')}"
        for labels in (groups[:, 0], background.labels)
    )
    lines += [
        f"expected {across}, in % with 95 % intervals, from {known} as if enrolled and "
        f"{strangers} as strangers:",
        "  rate  threshold              right              wrong            unknown  strangers "
        "accepted",
    ]
    for rate in sorted({*open_set.RATES, false_accept_rate}):
        try:
            point = index.expect(rate)
        except DataError as error:
            lines.append(f"{rate:6g}  {error}")
            continue
        few = "  too few classes of strangers for this rate" if point.strangers[0] > rate else ""
        shares = "".join(f"{_interval(share):>19}" for share in point[2:])
        lines.append(f"{rate:6g}{point.threshold:11.4f}{shares}{few}")
    if chosen.unknown[0] > 0.5:
        lines.append(
            f"warning: {_percent(chosen.unknown[0])} % would be unknown; {_causes(index, across)}"
        )
    return "\n".join(lines)


def _causes(index: Index, across: str) -> str:
    """Why many images would be unknown, as far as measurements show, and remedies."""
    measured, overlap = index.measured, index.overlap()
    pairs = sorted(measured.confused.items(), key=lambda entry: -entry[1])[:3]
    alike = [f"{index.classes[a]} as {index.classes[b]} ({number})" for (a, b), number in pairs]
    few = [name for label, name in enumerate(index.classes) if (index.labels == label).sum() < FEW]
    right = measured.right.mean()
    causes = {
        f"the best class is right for {_percent(right)} % {across}, but no further from the "
        "others than strangers are: "
        "enroll photographs of another session of each class, or train on such": right > 0.5,
        f"classes look alike: {_listed(alike)}: enroll more images of these, or merge them": alike,
        f"{counted(len(few), 'class')} with fewer than {FEW} images ({_listed(few)}): enroll more": few,  # noqa: E501
        f"classes to measure on are enrolled ({_listed(overlap)}): give --calibrate with more "
        "other classes": overlap,
    }
    found = [cause for cause, applies in causes.items() if applies]
    return (
        "; ".join(found)
        or "accept more strangers with --false_accept_rate, or train on images like these"
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(printable, names[:SHOWN]))
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _interval(share: tuple[float, float, float]) -> str:
    return (
        "-"
        if math.isnan(share[0])
        else f"{_percent(share[0])} ({_percent(share[1])}-{_percent(share[2])})"
    )


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"
