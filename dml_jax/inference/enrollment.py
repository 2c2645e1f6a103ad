"""Changing the index of enrolled classes in a file, and reports of what to expect of it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax.class_names import near_equal
from dml_jax.errors import DataError, counted, printable
from dml_jax.evaluation import open_set, protocol
from dml_jax.evaluation.open_set import FALSE_ACCEPT_RATE
from dml_jax.files import locked
from dml_jax.inference.embedding_model import EmbeddingModel
from dml_jax.inference.index import EMPTY, Index

FEW = 5  # images of a class
SHOWN = 10  # names in a list
SHARES = {name: name for name in ("right", "wrong", "unknown")} | {
    "strangers": "strangers accepted"
}

Folders = Mapping[str, Sequence[Any]]  # paths of images by class
Images = dict[str, list[Any]]
Say = Callable[[str], object]


@dataclass(frozen=True)
class Changes:
    """Changes of an index, in the order in which they are made."""

    remove: Sequence[str] = ()
    restore: Sequence[str] = ()
    rename: Sequence[tuple[str, str]] = ()  # old and new names
    purge: bool = False  # deletes all removed classes
    enroll: Folders = field(default_factory=dict)
    calibrate: Folders = field(default_factory=dict)  # other classes, for the threshold
    sessions: Mapping[Path, str] = field(default_factory=dict)  # session of each of these images


def usable(model: EmbeddingModel, classes: Folders, say: Say, *, needed: bool = True) -> Images:
    """The images by class that the model can embed; `say` gets the reasons against the others.

    Raises DataError if images are given and none can be used, but one is `needed`.
    """
    kept: Images = {}
    for name, files in classes.items():
        for file in files:
            try:
                model.read(file)
            except DataError as error:
                say(f"left out: {printable(str(error))}")
            else:
                kept.setdefault(name, []).append(file)
    if needed and classes and not kept:
        count = counted(sum(map(len, classes.values())), "image")
        raise DataError(f"none of {count} can be used; the reasons are listed above")
    return kept


def update(
    model: EmbeddingModel,
    path: Path,
    changes: Changes,
    *,
    false_accept_rate: float = FALSE_ACCEPT_RATE,
    say: Say = print,
    on_bad: Say | None = None,
) -> Index:
    """Changes an index file, or creates it, while no other command can; returns the index.

    Images that are enrolled in the same class already are skipped. If an image cannot be used, or
    no threshold can be measured, the file does not change.

    Args:
      say: gets the lines of a report, which ends with what to expect of the index.
      on_bad: gets the reasons why images are left out; without it, they are errors.
    """
    with locked(path):
        index = Index.load(model, path) if path.exists() else Index(model)
        for name in changes.remove:
            index.remove(name)
        for name in changes.restore:
            index.restore(name)
        for old, new in changes.rename:
            index.rename(old, new)
        purged = list(index.removed) if changes.purge else []
        index.removed = {} if changes.purge else index.removed
        classes, others = _new_images(index, changes.enroll), changes.calibrate
        known = sum(map(len, changes.enroll.values())) - sum(map(len, classes.values()))
        if on_bad:
            classes = usable(model, classes, on_bad, needed=not known)
            others = usable(model, others, on_bad)
        for group in near_equal([*index.classes, *classes]):
            if set(group) & set(classes):
                names = " and ".join(map(printable, group))
                say(f"doubt: {names} are near-equal names of different classes; --rename one")
        before = len(index.images)
        for change, images in ((index.add, classes), (index.calibrate, others)):
            if images:
                taken = {
                    name: [changes.sessions[f] for f in files] for name, files in images.items()
                }
                change(images, taken)
        expected = report(index, false_accept_rate) if index.images else EMPTY
        renamed = [":".join(pair) for pair in changes.rename]
        done = [
            f"{what} {printable(', '.join(names))}"
            for what, names in (
                ("removed", changes.remove),
                ("restored", changes.restore),
                ("renamed", renamed),
                ("purged", purged),
            )
            if names
        ]
        if classes:
            count = counted(sum(map(len, classes.values())), "image")
            done.append(f"enrolled {count} of {counted(len(classes), 'class')}")
        if others:
            done.append(f"calibrated on {counted(len(others), 'class')}")
        if done:
            index.save(path)
        if known:
            done.append(f"skipped {counted(known, 'enrolled image')}")
        now = f"{counted(len(index.images), 'image')} of {counted(len(index.classes), 'class')}"
        say(f"{path}: {'; '.join([*done, f'now {now}'])}")
        for line in _shared(index, before):
            say(line)
        say(expected)
        return index


def _new_images(index: Index, classes: Folders) -> Images:
    """The images that are not enrolled in their class, by class."""
    labels = zip(index.labels, index.images, strict=True)
    enrolled = {(index.classes[label], name) for label, name in labels}
    new = {
        name: [file for file in files if (name, str(file.resolve())) not in enrolled]
        for name, files in classes.items()
    }
    return {name: files for name, files in new.items() if files}


def _shared(index: Index, first: int) -> Iterator[str]:
    """Warnings about equal images of several classes, see `Index.shared`."""
    shared = index.shared(first)
    for each in shared[:SHOWN]:
        names, files = (" and ".join(map(printable, part)) for part in (each, each.values()))
        yield (
            f"warning: the same image is in the classes {names}: {files}; one label at most is "
            "right, all are kept"
        )
    if len(shared) > SHOWN:
        yield f"warning: and {counted(len(shared) - SHOWN, 'image')} more"


def comparison(
    index: Index,
    classes: Folders,
    folder: str,
    false_accept_rate: float = FALSE_ACCEPT_RATE,
) -> str:
    """The rates on labelled images, and whether they are within the promised intervals.

    Args:
      classes: images of enrolled and of other classes; the latter count as strangers.
      folder: name of their directory in the report.

    Raises:
      DataError: a class that is not enrolled has nearly the name of one that is.
    """
    for group in near_equal([*index.classes, *classes]):
        enrolled = sorted(set(group) & set(index.classes))
        if enrolled and (other := sorted(set(group) - set(enrolled))):
            raise DataError(
                f"{folder}: the class {other[0]!r} would count as a stranger, but {enrolled[0]!r} "
                f"is enrolled; rename one, --rename={enrolled[0]!r}:{other[0]!r}"
            )
    point = index.expect(false_accept_rate)
    found = index.measure(classes, point.threshold)
    lines = []
    if found.overlapping:
        overlapping = counted(found.overlapping, "image")
        lines.append(f"left out: {overlapping} of {folder} that the index holds")
    lines.append(
        f"{folder}: {counted(found.known_images, 'image')} of enrolled classes, "
        f"{counted(found.other_images, 'image')} of others; at threshold {point.threshold:.4f}, "
        "in %:"
    )
    for name, title in SHARES.items():
        measured, promised = getattr(found, name), getattr(point, name)
        share, low, high = promised
        verdict = f"  {'within' if low <= measured <= high else 'outside'} the interval"
        lines.append(
            f"  {title:18}  measured {_percent(measured):>5}  promised {_interval(promised)}"
            f"{'' if math.isnan(measured + share) else verdict}"
        )
    return "\n".join(lines)


def report(index: Index, false_accept_rate: float = FALSE_ACCEPT_RATE) -> str:
    """The rates to expect of an index at several thresholds, and the images they were measured
    on."""
    point = index.expect(false_accept_rate)
    measured, enrolled, background = index.measured, index.enrolled, index.background()
    overlap = index.overlap()
    sessions = sorted({*enrolled.sessions.tolist(), *background.sessions.tolist()} - {""})
    lines = []
    if overlap:
        verb = "is" if len(overlap) == 1 else "are"
        lines.append(
            f"{counted(len(overlap), 'class')} to measure on {verb} enrolled and left out "
            f"({_listed(overlap)}); {_classes(background.labels)} remain"
        )
    if not sessions:
        share = protocol.near_copies(np.concatenate([enrolled.rows, background.rows]))
        doubt = open_set.of_near_copies(share, "--session")
        lines.append(f"warning: sessions are unknown: {doubt}")
    elif len(sessions) == 1:
        lines.append(
            f"warning: all photographs are of one session ({sessions[0]}), so later ones cannot "
            "be measured"
        )
    if measured.left_out:
        names = _listed([index.classes[label] for label in measured.left_out])
        lines.append(f"not used for the estimate, because their images are of one session: {names}")
    several = f"across sessions ({_listed(sessions)})"
    across = several if len(sessions) > 1 else "with near-copies left out"
    known, strangers = (
        f"{counted(len(labels), 'image')} of {_classes(labels)}"
        for labels in (measured.known_groups[:, 0], background.labels)
    )
    lines.append(
        f"expected {across}, in % with 95 % intervals, from {known} as if enrolled and "
        f"{strangers} as strangers:"
    )
    lines.append("  rate  threshold" + "".join(f"{title:>19}" for title in SHARES.values()))
    for rate in sorted({*open_set.RATES, false_accept_rate}):
        lines.append(_row(index, rate))
    if point.unknown[0] > 0.5:
        unknown = _percent(point.unknown[0])
        lines.append(f"warning: {unknown} % would be unknown; {_causes(index, across)}")
    return "\n".join(lines)


def _row(index: Index, rate: float) -> str:
    """What to expect at a false-accept rate, or why it cannot be measured."""
    try:
        point = index.expect(rate)
    except DataError as error:
        return f"{rate:6g}  {error}"
    shares = "".join(f"{_interval(getattr(point, name)):>19}" for name in SHARES)
    few = "  too few classes of strangers for this rate" if point.strangers[0] > rate else ""
    return f"{rate:6g}{point.threshold:11.4f}{shares}{few}"


def _causes(index: Index, across: str) -> str:
    """Why many images would be unknown, as far as measurements show, and remedies."""
    causes = []
    right = index.measured.right.mean()
    if right > 0.5:
        causes.append(
            f"the best class is right for {_percent(right)} % {across}, but no further from the "
            "others than strangers are: enroll photographs of another session of each class, or "
            "train on such photographs"
        )
    pairs = sorted(index.measured.confused.items(), key=lambda pair: -pair[1])[:3]
    if pairs:
        alike = [f"{index.classes[a]} as {index.classes[b]} ({count})" for (a, b), count in pairs]
        causes.append(f"classes look alike: {_listed(alike)}: enroll more images, or merge them")
    few = [name for label, name in enumerate(index.classes) if (index.labels == label).sum() < FEW]
    if few:
        number = counted(len(few), "class")
        causes.append(f"{number} with fewer than {FEW} images ({_listed(few)}): enroll more")
    if overlap := index.overlap():
        causes.append(
            f"classes to measure on are enrolled ({_listed(overlap)}): give --calibrate with more "
            "other classes"
        )
    remedy = "accept more strangers with --false_accept_rate, or train on images like these"
    return "; ".join(causes) or remedy


def _classes(labels: np.ndarray) -> str:
    return counted(len(np.unique(labels)), "class")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(printable, names[:SHOWN]))
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _interval(share: tuple[float, float, float]) -> str:
    middle, low, high = map(_percent, share)
    return middle if math.isnan(share[0]) else f"{middle} ({low}-{high})"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"
