"""Changing the index of enrolled classes in a directory, and reports of what to expect of it."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax.class_names import near_equal
from dml_jax.data.files import Record
from dml_jax.errors import DataError, counted, printable
from dml_jax.evaluation import open_set, protocol
from dml_jax.evaluation.expectations import ALWAYS, Choice
from dml_jax.files import locked
from dml_jax.inference import index as indexes
from dml_jax.inference.embedding_model import EmbeddingModel
from dml_jax.inference.index import EMPTY, Added, Index

FEW = 5  # images of a class
SHOWN = 10  # names in a list
SHARES = {
    "right": "right",
    "right_at_3": "right at 3",
    "wrong": "wrong",
    "unknown": "unknown",
    "strangers": "strangers accepted",
}

Folders = Mapping[str, Sequence[Any]]  # paths of images by class
Images = dict[str, list[Any]]
Say = Callable[[str], object]


@dataclass(frozen=True)
class Changes:
    """Changes of an index, in the order in which they are made."""

    remove: Sequence[str] = ()
    rename: Sequence[tuple[str, str]] = ()  # old and new names
    merge: Sequence[tuple[str, str]] = ()  # classes, and those that get their images
    enroll: Folders = field(default_factory=dict)
    calibrate: Folders = field(default_factory=dict)  # other classes
    sessions: Mapping[Path | Record, str] = field(default_factory=dict)  # of each image


def usable(model: EmbeddingModel, classes: Folders, say: Say) -> Images:
    """The images by class that the model can embed, see `index.usable`; DataError if there are
    none."""
    found = {name: indexes.usable(model, files, say) for name, files in classes.items()}
    kept = {name: files for name, files in found.items() if files}
    if not kept:
        count = counted(sum(map(len, classes.values())), "image")
        raise DataError(f"none of {count} can be used; the reasons are listed above")
    return kept


def update(
    model: EmbeddingModel,
    path: Path,
    changes: Changes,
    *,
    choice: Choice = ALWAYS,
    say: Say = print,
    on_bad: Say | None = None,
) -> Index:
    """Changes the index in a directory, or creates it, while no other command can; returns it.

    Images that their class holds already are skipped, see `Index.add`. If an image cannot be used,
    the directory does not change.

    Args:
      choice: for which the report says what to expect.
      say: gets the lines of a report, which ends with what to expect of the index.
      on_bad: gets the reasons why images are left out; without it, they are errors.
    """
    changed = any(value for name, value in vars(changes).items() if name != "sessions")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.resolve().with_name(f"{path.resolve().name}.update")
    with locked(lock) if changed else nullcontext():
        index = Index.load(model, path) if path.exists() else Index(model)
        forgotten = sum(index.remove(name) for name in changes.remove)
        for old, new in changes.rename:
            index.rename(old, new)
        for name, into in changes.merge:
            index.merge(name, into)
        classes, others = changes.enroll, changes.calibrate
        if not others:
            index.read_others()  # before the images are embedded
        if on_bad and others:
            others = usable(model, others, on_bad)
        for group in near_equal([*index.classes, *classes]):
            added = [name for name in group if name not in index.classes]
            if 0 < len(added) < len(group):  # those of a folder are reported when it is read
                names = " and ".join(map(printable, group))
                pair = f"{added[0]}:{next(name for name in group if name not in added)}"
                remedy = f"if they are one class, --merge={pair!r}, else --rename one"
                say(f"doubt: {names} are near-equal names of different classes; {remedy}")
        before = len(index.images)
        taken = [
            {name: [changes.sessions[file] for file in files] for name, files in each.items()}
            for each in (classes, others)
        ]
        counts = index.add(classes, taken[0], on_bad) if classes else Added(*[0] * 6)
        before -= counts.replaced
        if classes and not index.images:
            count = counted(sum(map(len, classes.values())), "image")
            raise DataError(f"none of {count} can be used; the reasons are listed above")
        if others:
            index.calibrate(others, taken[1])
        expected = report(index, choice) if index.images else EMPTY
        renamed, merged = ([":".join(p) for p in each] for each in (changes.rename, changes.merge))
        done = [
            f"{what} {printable(', '.join(names))}"
            for what, names in (
                ("removed", changes.remove),
                ("renamed", renamed),
                ("merged", merged),
            )
            if names
        ]
        if counts.enrolled:
            count = counted(counts.enrolled, "image")
            done.append(f"enrolled {count} of {counted(counts.classes, 'class')}")
        for number, what in (
            (counts.replaced, "replaced, as the file has changed"),
            (counts.moved, "found at another path"),
            (counts.sessions, "with another session than before"),
        ):
            if number:
                done.append(f"{counted(number, 'image')} {what}")
        if others:
            done.append(f"calibrated on {counted(len(others), 'class')}")
        if done:
            index.save(path)
        if counts.known:
            done.append(f"skipped {counted(counts.known, 'enrolled image')}")
        now = f"{counted(len(index.images), 'image')} of {counted(len(index.classes), 'class')}"
        say(f"{path}: {'; '.join([*done, f'now {now}'])}")
        if forgotten:
            what = f"{counted(forgotten, 'image')} of removed classes forgotten"
            say(f"{what}; enrolling their folder again brings them back")
        for line in _shared(index, before):
            say(line)
        say(expected)
        return index


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
    choice: Choice = ALWAYS,
    on_bad: Say | None = None,
) -> str:
    """The shares on labelled images, and whether they are within the expected intervals.

    Args:
      classes: images of enrolled and of other classes; the latter count as strangers.
      folder: name of their directory in the report.
      choice: which answers are "unknown".
      on_bad: as for `update`.

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
    point = index.at(choice)
    found = index.measure(usable(index.model, classes, on_bad) if on_bad else classes, choice)
    lines = []
    if found.overlapping:
        overlapping = counted(found.overlapping, "image")
        lines.append(f"left out: {overlapping} of {folder} that the index holds")
    lines.append(
        f"{folder}: {counted(found.known_images, 'image')} of enrolled classes, "
        f"{counted(found.other_images, 'image')} of others; {choice}, in %:"
    )
    for name, title in SHARES.items():
        measured, expected = getattr(found, name), getattr(point, name)
        share, low, high = expected
        verdict = f"  {'within' if low <= measured <= high else 'outside'} the interval"
        lines.append(
            f"  {title:18}  measured {_percent(measured):>5}  expected {_interval(expected)}"
            f"{'' if math.isnan(measured + share) else verdict}"
        )
    mean, observed = _percent(found.expected), _percent(found.observed)
    lines.append(f"  mean probability {mean}, most probable class right {observed}")
    return "\n".join(lines)


def report(index: Index, choice: Choice = ALWAYS) -> str:
    """What to expect of an index with a choice, and the images that it was measured on."""
    _, measured = index.fitted()
    enrolled, background = index.enrolled, index.background()
    playing, trained = index.playing()
    sessions = sorted({*enrolled.sessions.tolist(), *background.sessions.tolist()} - {""})
    lines = []
    if overlap := index.overlap():
        verb = "is" if len(overlap) == 1 else "are"
        lines.append(
            f"{counted(len(overlap), 'other class')} {verb} enrolled and left out "
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
    known = set(measured.known["label"].tolist())
    if one := [name for label, name in enumerate(index.classes) if label not in known]:
        lines.append(
            "not used for the estimate, because their images are of one session: " + _listed(one)
        )
    if len(playing) > 1:
        lines.append(
            f"{counted(len(playing), 'enrolled class')} are left out in turn and play the "
            "strangers; --calibrate=DIRECTORY with class folders of other classes is better"
        )
    if trained:
        lines.append(
            "warning: the run was trained on some of them, so more images of other classes than "
            "stated may be accepted"
        )
    several = f"across sessions ({_listed(sessions)})"
    across = several if len(sessions) > 1 else "with near-copies left out"
    tested, strangers = (
        f"{counted(len(labels), 'image')} of {_classes(labels)}"
        for labels in (measured.known["label"], measured.strangers["label"])
    )
    try:
        point = index.at(choice)
    except DataError as problem:
        shares = str(problem).partition(": ")[2]
    else:
        shares = ", ".join(
            f"{title} {_interval(getattr(point, name))}" for name, title in SHARES.items()
        )
        if choice.kind == "reject" and point.strangers[0] > choice.value:
            shares += " (too few classes of strangers)"
    lines.append(
        f"expected {across}, in % with 95 % intervals, from {tested} as if enrolled and "
        f"{strangers} as strangers; {choice}: {shares}"
    )
    if not len(measured.known):
        lines.append("warning: probabilities are not calibrated: no class has several sessions")
    elif measured.known["probability"].max() < 1 and (measured.known["rank"] == 0).mean() < 0.5:
        lines.append(f"warning: most answers would be wrong; {_causes(index)}")
    return "\n".join(lines)


def _causes(index: Index) -> str:
    """Why many images would be wrong, as far as measurements show, and remedies."""
    _, measured = index.fitted()
    causes, count = [], len(index.classes)
    pairs = Counter(
        zip(measured.known["label"], measured.known["answer"], strict=True)
    ).most_common()
    alike = [
        f"{index.classes[a]} as {index.classes[b]} ({number})"
        for (a, b), number in pairs
        if a != b and max(a, b) < count
    ]
    if alike:
        shown = _listed(alike[:3])
        causes.append(f"classes look alike: {shown}: enroll more images, or --merge them")
    few = [name for label, name in enumerate(index.classes) if (index.labels == label).sum() < FEW]
    if few:
        number = counted(len(few), "class")
        causes.append(f"{number} with fewer than {FEW} images ({_listed(few)}): enroll more")
    return "; ".join(causes) or "enroll more sessions, or train on images like these"


def _classes(labels: np.ndarray) -> str:
    return counted(len(np.unique(labels)), "class")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(printable, names[:SHOWN]))
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _interval(share: tuple[float, float, float]) -> str:
    middle, low, high = map(_percent, share)
    return middle if math.isnan(share[0]) or low == high else f"{middle} ({low}-{high})"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"
