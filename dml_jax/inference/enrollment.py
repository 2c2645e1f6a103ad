"""Reports: what to expect of an index of enrolled classes, and whether labelled images agree."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dml_jax.class_names import near_equal
from dml_jax.errors import DataError, counted, listed, printable
from dml_jax.evaluation import expectations
from dml_jax.evaluation.expectations import Expected, Share
from dml_jax.inference.enrolled import Image, OnBad
from dml_jax.inference.index import EMPTY, Index

SHARES = {name: name.replace("_", " ") for name in Expected._fields if name != "limit"}
Limit = Mapping[str, float | None]  # the arguments `reject` and `min_probability`


def stated(limit: Limit) -> str:
    """The option that says when an answer is "unknown"."""
    options = [f"--{name}={value:g}" for name, value in limit.items() if value is not None]
    return "".join(options) or "always a name"


def near_names(index: Index, names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of an enrolled class and of a nearly equal name among others."""
    groups, enrolled = near_equal([*index.classes, *names]), index.classes
    pairs = [pair for group in groups for pair in itertools.product(group, repeat=2)]
    return [(old, new) for old, new in pairs if old in enrolled and new not in enrolled]


def report(index: Index, limit: Limit) -> list[str]:
    """How an index was measured, what to expect with a limit, and a warning if it is due."""
    if not index.items:
        return [EMPTY]
    (known, strangers, _), playing = index.fitted[1], index.playing
    sessions = {*index.photographs.sessions.tolist(), *index.strangers.sessions.tolist()} - {""}
    how = "near-copies left out, as sessions are unknown; --session says what was taken together"
    if sessions:
        names = listed([printable(name) for name in sorted(sessions)], 3)
        how = f"whole sessions left out, of {len(sessions)} ({names})"
    text = f"measured on {_counts(known)}, with {how}; strangers: {_counts(strangers)}"
    if playing:
        text += f", {len(playing)} of them enrolled ones that are left out in turn"
        trained = set(playing) & set(index.model.training_classes())
        text += ", though the run was trained on some" if trained else ""
        text += ", assuming that strangers are like these; better: --calibrate=DIRECTORY"
    lines = [text, expectation(index, limit)]
    if not len(known):
        lines.append("warning: probabilities are not calibrated: no class has several sessions")
    return lines


def expectation(index: Index, limit: Limit) -> str:
    """What to expect of an index with a limit."""
    try:
        shares = index.expect(**limit)._asdict()
        expected = ", ".join(f"{title} {_interval(shares[name])}" for name, title in SHARES.items())
    except DataError as problem:
        expected = str(problem).partition(": ")[2]
    return f"expected, in % with 95 % intervals, {stated(limit)}: {expected}"


def comparison(
    index: Index, classes: Mapping[str, Sequence[Image]], folder: str, limit: Limit, on_bad: OnBad
) -> str:
    """The shares on labelled images, and whether they are within the expected intervals.

    Args:
      classes: images of enrolled and of other classes; the latter count as strangers.
      folder: name of their directory in the report.
      limit: which answers are "unknown".
      on_bad: as for `Index.add`.

    Raises:
      DataError: a class that is not enrolled has nearly the name of one that is.
    """
    for enrolled, other in near_names(index, classes):
        raise DataError(
            f"{folder}: the class {other!r} would count as a stranger, but {enrolled!r} is "
            f"enrolled; rename one, --rename={enrolled!r}:{other!r}"
        )
    expected = index.expect(**limit)._asdict()  # refuses before images are embedded
    measured, held = index.measure(classes, on_bad)
    field, least = expectations.limit(index.fitted[1], **limit)
    observed = expectations.shares(measured, field, least)._asdict()
    lines = [f"left out: {counted(held, 'image')} of {folder} that the index holds"] * (held > 0)
    lines.append(
        f"{folder}: {counted(len(measured.known), 'image')} of enrolled classes, "
        f"{counted(len(measured.strangers), 'image')} of others; {stated(limit)}, in %:"
    )
    for name, title in SHARES.items():
        (share, *_), (middle, low, high) = observed[name], expected[name]
        verdict = "within" if low <= share <= high else "outside"
        lines.append(
            f"  {title:18}  measured {_percent(share):>5}  expected {_interval(expected[name])}"
            + ("" if math.isnan(share + middle) else f"  {verdict} the interval")
        )
    if limit["reject"] and len(np.unique(measured.strangers["label"])) >= expectations.FEWEST:
        on_these = expectations.expected(measured, **limit)
        lines.append(
            f"  if {_interval(on_these.strangers_accepted)} of these strangers were accepted, "
            f"{_interval(on_these.right)} would be right; --calibrate={folder} sets the limit on "
            "them"
        )
    return "\n".join(lines)


def _counts(answers: np.ndarray) -> str:
    classes = counted(len(np.unique(answers["label"])), "class")
    return f"{counted(len(answers), 'image')} of {classes}"


def _interval(share: Share) -> str:
    middle, low, high = map(_percent, share)
    return middle if math.isnan(share[0]) or low == high else f"{middle} ({low}-{high})"


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"
