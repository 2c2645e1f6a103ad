"""Changing the index of enrolled classes in a directory, and reports of what to expect of it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax.class_names import near_equal
from dml_jax.data.files import Record
from dml_jax.errors import DataError, counted, printable
from dml_jax.evaluation import expectations
from dml_jax.evaluation.expectations import ALWAYS, Choice
from dml_jax.files import locked
from dml_jax.inference.embedding_model import EmbeddingModel
from dml_jax.inference.gallery import OnBad
from dml_jax.inference.index import EMPTY, Index

LISTED = 3  # names in a list
SHARES = {
    "right": "right",
    "right_at_3": "right at 3",
    "wrong": "wrong",
    "unknown": "unknown",
    "strangers": "strangers accepted",
}

Folders = Mapping[str, Sequence[Any]]  # paths of images by class


def update(
    model: EmbeddingModel,
    path: Path,
    *,
    remove: Sequence[str],
    rename: Sequence[tuple[str, str]],
    merge: Sequence[tuple[str, str]],
    enroll: Folders,
    calibrate: Folders,
    sessions: Mapping[Path | Record, str],
    guessed: str,
    choice: Choice,
    on_bad: OnBad,
) -> Index:
    """Changes the index in a directory, or creates it, while no other command can; returns it.

    Changes are made in the order of the arguments, and then reported in at most five lines, which
    end with what to expect of the index. If an image cannot be used, the directory does not change.

    Args:
      rename: old and new names.
      merge: classes, and those that get their images.
      calibrate: images of other classes.
      sessions: of each image.
      guessed: how the sessions were guessed; "" if the user gave them.
      choice: for which the report says what to expect.
      on_bad: gets the reasons why images are left out; if None, they are errors.
    """
    changed = remove or rename or merge or enroll or calibrate
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.resolve().with_name(f"{path.resolve().name}.update")
    with locked(lock) if changed else nullcontext():
        index = Index.load(model, path) if path.exists() else Index(model)
        done = list[str]()
        for name in remove:
            done.append(f"removed {printable(name)}, {counted(index.remove(name), 'image')}")
        for old, new in rename:
            index.rename(old, new)
            done.append(f"renamed {printable(old)}:{printable(new)}")
        for name, into in merge:
            index.merge(name, into)
            done.append(f"merged {printable(name)}:{printable(into)}")
        if not calibrate:
            index.read_others()  # before the images are embedded
        groups = [
            {name: [sessions[file] for file in files] for name, files in each.items()}
            for each in (enroll, calibrate)
        ]
        doubts = list(_near_equal(index, enroll))
        shared, known = index.shared(), 0
        if enroll:
            added = index.add(enroll, groups[0], on_bad, keep_sessions=bool(guessed))
            if not index.images:
                count = counted(sum(map(len, enroll.values())), "image")
                raise DataError(f"none of {count} can be used; the reasons are listed above")
            known = added.known
            if added.enrolled:
                how = f" ({guessed})" if guessed else ""
                images, classes = counted(added.enrolled, "image"), counted(added.classes, "class")
                done.append(f"enrolled {images} of {classes}{how}")
            for number, what in (
                (added.replaced, "replaced, as the file has changed"),
                (added.moved, "found at another path"),
                (added.sessions, "with another session than before"),
            ):
                if number:
                    done.append(f"{counted(number, 'image')} {what}")
        if calibrate:
            index.calibrate(calibrate, groups[1], on_bad)
            done.append(f"calibrated on {counted(len(calibrate), 'class')}")
        lines = report(index, choice) if index.images else [EMPTY]
        if done:
            index.save(path)
        if known:
            new = "" if added.enrolled else "nothing new, "
            done.append(f"{new}{counted(known, 'image')} enrolled already")
        images, classes = counted(len(index.images), "image"), counted(len(index.classes), "class")
        print(f"{path}: {'; '.join([*done, f'now {images} of {classes}'])}")
        if twice := [files for files in index.shared() if files not in shared]:
            names, files = (
                " and ".join(map(printable, of)) for of in (twice[0], twice[0].values())
            )
            more = f", and {counted(len(twice) - 1, 'image')} more" if len(twice) > 1 else ""
            doubts.append(
                f"the same image is in the classes {names}: {files}{more}; one label at most is "
                "right, all are kept"
            )
        if doubts:
            print(f"doubt: {'; '.join(doubts)}")
        print("\n".join(lines))
        return index


def _near_equal(index: Index, classes: Folders) -> Iterator[str]:
    """Doubts about names of new classes; those among them are reported when they are read."""
    for group in near_equal([*index.classes, *classes]):
        added = [name for name in group if name not in index.classes]
        if 0 < len(added) < len(group):
            names = " and ".join(map(printable, group))
            pair = f"{added[0]}:{next(name for name in group if name not in added)}"
            yield (
                f"{names} are near-equal names of different classes; if they are one class, "
                f"--merge={pair!r}, else --rename one"
            )


def comparison(index: Index, classes: Folders, folder: str, choice: Choice, on_bad: OnBad) -> str:
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
    point = expectations.expected(index.fitted[1], choice)  # refuses before images are embedded
    measured, overlapping = index.measure(classes, on_bad)
    known, strangers, _ = measured
    observed, lines = expectations.shares(measured, choice, point.limit), list[str]()
    if overlapping:
        lines.append(f"left out: {counted(overlapping, 'image')} of {folder} that the index holds")
    lines.append(
        f"{folder}: {counted(len(known), 'image')} of enrolled classes, "
        f"{counted(len(strangers), 'image')} of others; {choice}, in %:"
    )
    for name, title in SHARES.items():
        share, expected = getattr(observed, name)[0], getattr(point, name)
        verdict = "within" if expected[1] <= share <= expected[2] else "outside"
        lines.append(
            f"  {title:18}  measured {_percent(share):>5}  expected {_interval(expected)}"
            + ("" if math.isnan(share + expected[0]) else f"  {verdict} the interval")
        )
    if choice.kind == "reject" and len(np.unique(strangers["label"])) >= expectations.FEWEST:
        on_these = expectations.expected(measured, choice)
        lines.append(
            f"  if {_interval(on_these.strangers)} of these strangers were accepted, "
            f"{_interval(on_these.right)} would be right; --calibrate={folder} sets the limit on "
            "them"
        )
    return "\n".join(lines)


def report(index: Index, choice: Choice = ALWAYS) -> list[str]:
    """How an index was measured, what to expect with a choice, and a warning if it is due."""
    measured, (others, overlap, playing, trained) = index.fitted[1], index.background
    sessions = sorted({*index.sessions, *others.sessions.tolist()} - {""})
    how = "near-copies left out, as sessions are unknown; --session says what was taken together"
    if sessions:
        how = f"whole sessions left out, of {len(sessions)} ({_listed(sessions)})"
    alone = len(index.classes) - len(set(measured.known["label"]) & {*range(len(index.classes))})
    tested = f"measured on {_counts(measured.known)}, with {how}"
    if alone:
        tested += f"; {counted(alone, 'class')} not, whose images are of one session"
    text = f"strangers: {_counts(measured.strangers)}"
    if playing:
        text += f", {len(playing)} of them enrolled ones that are left out in turn"
        text += ", though the run was trained on some" if trained else ""
        text += ", assuming that strangers are like these; better: --calibrate=DIRECTORY"
    if overlap:
        text += f"; without {counted(len(overlap), 'enrolled class')} ({_listed(overlap)})"
    try:
        point = expectations.expected(measured, choice)
        shares = [f"{title} {_interval(getattr(point, name))}" for name, title in SHARES.items()]
    except DataError as problem:
        shares = [str(problem).partition(": ")[2]]
    expected = f"expected, in % with 95 % intervals, {choice}: {', '.join(shares)}"
    lines = [f"{tested}; {text}", expected]
    if not len(measured.known):
        lines.append("warning: probabilities are not calibrated: no class has several sessions")
    return lines


def _counts(answers: np.ndarray) -> str:
    classes = counted(len(np.unique(answers["label"])), "class")
    return f"{counted(len(answers), 'image')} of {classes}"


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(map(printable, names[:LISTED]))
    return text + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def _interval(share: tuple[float, float, float]) -> str:
    middle, low, high = map(_percent, share)
    return middle if math.isnan(share[0]) or low == high else f"{middle} ({low}-{high})"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"
