"""Enrolls new classes without training, and classifies images:

    dml-jax enroll --model=runs/birds --index=birds.npz gallery/            # class folders, as for training
    dml-jax enroll --model=runs/birds --index=birds.npz --classify photos/

The first creates the index or adds to an existing one, without the images that it holds already; --remove=wren removes
a class, --restore=wren enrolls it again, --purge deletes removed classes for good; --list prints the number of images
and the name of each class. The second prints one tab-separated line per image: class or "unknown", the margin of the
class over all others, the image, and the nearest image of that class. Images of unknown classes are rejected by a
threshold, which is measured for --false_accept_rate on the unseen classes of the run, or on --calibrate=others/, class
folders of classes that are not enrolled, which published weights need. Enrolling ends with a table of what to expect at
several rates, measured with the enrolled images themselves.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import dml_jax
from dml_jax.commands import cli, model_options
from dml_jax.commands.embed import image_files
from dml_jax.errors import ConfigError, DataError, counted, printable
from dml_jax.evaluation import open_set
from dml_jax.files import locked
from dml_jax.inference import labelled
from dml_jax.inference.index import EMPTY, Index
from dml_jax.inference.model import Model


def new_images(index: Index, classes: dict[str, list[Path]]) -> dict[str, list[Path]]:
    """The images by class that are not yet enrolled in their class."""
    enrolled = {(index.classes[label], name) for label, name in zip(index.labels, index.images, strict=True)}
    new = {name: [f for f in files if (name, str(f.resolve())) not in enrolled] for name, files in classes.items()}
    return {name: files for name, files in new.items() if files}


def usable(model: Model, files: Sequence[str | Path], *, needed: bool = True) -> list[str | Path]:
    """The images that the model can embed; the others are listed on stderr with the reason.

    Raises DataError if there is none, but one is `needed`.
    """
    kept = []
    for file in files:
        try:
            model.read(file)
            kept.append(file)
        except DataError as error:
            print(f"left out: {printable(str(error))}", file=sys.stderr)
    if not kept and needed:
        raise DataError(f"none of {counted(len(files), 'image')} can be used; the reasons are listed above")
    return kept


def usable_classes(model: Model, classes: dict[str, list[Path]], *, needed: bool = True) -> dict[str, list[Path]]:
    """The classes with only their `usable` images, without classes that have none."""
    good = set(usable(model, [file for images in classes.values() for file in images], needed=needed))
    return {name: chosen for name, images in classes.items() if (chosen := [f for f in images if f in good])}


def add_decision(flags: argparse.ArgumentParser) -> None:
    """Adds --false_accept_rate and --threshold, the arguments of `Index.classify`."""
    limit = flags.add_mutually_exclusive_group()
    limit.add_argument(
        "--false_accept_rate", type=float, default=open_set.FALSE_ACCEPT_RATE,
        help=f"fraction of strangers that may be given a class (default: {open_set.FALSE_ACCEPT_RATE})",
    )  # fmt: skip
    limit.add_argument("--threshold", type=float, help="margin below which an image is unknown")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command line, after checking all of them."""
    flags = cli.Parser(__doc__)
    flags.add_argument("paths", nargs="*", metavar="DIRECTORY|IMAGE", help="directories of class folders, or images")
    model_options.add(flags)
    model_options.add_versions(flags)
    flags.add_argument("--index", help=".npz file with the enrolled classes")
    flags.add_argument("--classify", action="store_true", help="classify images instead of enrolling classes")
    flags.add_argument("--remove", metavar="CLASS", action="append", default=[], help="class to remove; repeatable")
    flags.add_argument("--restore", metavar="CLASS", action="append", default=[], help="removed class; repeatable")
    flags.add_argument("--purge", action="store_true", help="delete the removed classes, which --restore then lacks")
    flags.add_argument("--list", action="store_true", help="print the enrolled classes and their numbers of images")
    flags.add_argument("--calibrate", metavar="DIRECTORY", help="class folders of other classes, for the threshold")
    add_decision(flags)
    flags.add_argument("--skip_bad", action="store_true", help="leave out unusable images instead of stopping")
    options = flags.parse_args(arguments)
    model_options.check(options)
    open_set.check_rate(options.false_accept_rate)
    if not (options.index or "").endswith(".npz"):
        raise ConfigError(f"--index={options.index or ''}: give a file that ends in .npz, e.g. --index=birds.npz")
    changes = options.remove or options.restore or options.purge or options.calibrate
    if (options.list or options.classify) and changes:
        raise ConfigError("--list and --classify: change nothing; remove, restore, purge or calibrate first")
    if not options.paths and (options.classify or not (changes or options.list)):
        raise ConfigError("DIRECTORY|IMAGE: missing; give directories of class folders or, with --classify, images")
    return options


def execute(arguments: list[str]) -> None:
    """Reads the command line; enrolls classes or classifies images."""
    options = parse(arguments)
    versions = model_options.versions(options)
    path = cli.file_to_write("--index", options.index)
    adds = options.paths and not options.classify
    if not adds and not path.is_file():
        raise ConfigError(f"--index={options.index}: there is no such file; enroll classes first")
    files = image_files(options.paths) if options.classify else []
    classes = labelled.class_folders(options.paths) if adds else {}
    others = labelled.class_folders([options.calibrate]) if options.calibrate else {}
    model = dml_jax.load(options.model, options.checkpoint, trust_code=options.trust_code, **versions)
    if options.list:
        index = Index.load(model, path)
        counts = Counter(index.labels.tolist())
        for label, name in enumerate(index.classes):
            print(f"{counts[label]}\t{printable(name)}")
    elif options.classify:
        _classify(Index.load(model, path), usable(model, files) if options.skip_bad else files, options)
    else:
        with locked(path):
            _change(model, path, classes, others, options)


def _change(
    model: Model, path: Path, classes: dict[str, list[Path]], others: dict[str, list[Path]], options: argparse.Namespace
) -> None:
    """Changes the index under a lock, and prints its expected results."""
    index = Index.load(model, path) if path.exists() else Index(model)
    for name in options.remove:
        index.remove(name)
    for name in options.restore:
        index.restore(name)
    purged = (list(index.removed) or ["nothing"]) if options.purge else []
    if options.purge:
        index.removed.clear()
    given = sum(map(len, classes.values()))
    classes = new_images(index, classes)
    known = given - sum(map(len, classes.values()))
    if options.skip_bad:
        classes = usable_classes(model, classes, needed=not known) if classes else {}
        others = usable_classes(model, others) if others else {}
    if classes:
        index.add(classes)
    if others:
        index.calibrate(others)
    expected = _expected(index, options) if index.images else EMPTY  # no index without a threshold is written
    if not known or classes or options.remove or options.restore or options.purge or others:
        index.save(path)
    done = [
        f"{what} {printable(', '.join(names))}"
        for what, names in (("removed", options.remove), ("restored", options.restore), ("purged", purged))
        if names
    ]
    if classes:
        done.append(f"enrolled {counted(sum(map(len, classes.values())), 'image')} of {counted(len(classes), 'class')}")
    if others:
        done.append(f"calibrated on {counted(len(others), 'other class')}")
    if known:
        done.append(f"skipped {counted(known, 'enrolled image')}")
    now = f"{counted(len(index.images), 'image')} of {counted(len(index.classes), 'class')}"
    print(f"{path}: {'; '.join(done)}; now {now}")
    print(expected)


def _classify(index: Index, files: Sequence[str | Path], options: argparse.Namespace) -> None:
    """Prints the class of each image, or "unknown"."""
    found = index.nearest(files, threshold=options.threshold, false_accept_rate=options.false_accept_rate)
    for name, margin, nearest, file in zip(*found, files, strict=True):
        print("\t".join(map(printable, (name, f"{margin:.4f}", str(file), index.images[nearest]))))


def _expected(index: Index, options: argparse.Namespace) -> str:
    """Expected results of this index at several rates, from its own images; a warning if most would be unknown."""
    points = [index.expect(rate) for rate in sorted({*open_set.RATES, options.false_accept_rate})]
    lines = [
        "expected of enrolled images, each classified without itself, and of images of other classes, in %:",
        "  rate  threshold  right  wrong  unknown  strangers accepted",
    ]
    for point in points:
        shares = "".join(f"{_percent(share):>{width}}" for share, width in zip(point[2:], (7, 7, 9, 20), strict=True))
        lines.append(f"{point.false_accept_rate:6g}{point.threshold:11.4f}{shares}")
    chosen = next(point for point in points if point.false_accept_rate == options.false_accept_rate)
    if chosen.unknown > 0.5:
        lines.append(
            f"warning: {_percent(chosen.unknown)} % of images of enrolled classes would be unknown; enroll more images "
            "of each class, accept more strangers with --false_accept_rate, or train on images like these"
        )
    return "\n".join(lines)


def _percent(share: float) -> str:
    return "-" if np.isnan(share) else f"{100 * share:.1f}"
