"""What to expect of an open-set classifier with a choice of when an answer is "unknown"."""

import math
from bisect import bisect
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from dml_jax.errors import DataError, counted
from dml_jax.evaluation.open_set import IMAGES_PER_CLASS, Measured

FEWEST = 5  # classes of strangers for a limit
DRAWS = 500  # bootstrap samples
BINS = (0.0, 0.5, 0.7, 0.9, 1.0)  # of probabilities, for their reliability

Kind = Literal["always", "reject", "min_probability", "threshold"]


class Choice(NamedTuple):
    """When an answer is "unknown": never, or below a limit.

    The limit is a probability, a margin ("threshold"), or the margin that a share of the strangers
    is expected to reach ("reject").
    """

    kind: Kind = "always"
    value: float = -math.inf

    def __str__(self) -> str:
        return "always a name" if self.kind == "always" else f"--{self.kind}={self.value:g}"

    def of(self, answers: Mapping[str, np.ndarray] | np.ndarray) -> np.ndarray:
        """What the limit is compared with, float32 [N], of answers `open_set.STRANGER` or KNOWN."""
        return np.asarray(answers["probability" if self.kind == "min_probability" else "margin"])


ALWAYS = Choice()


def choice(
    reject: float | None = None,
    min_probability: float | None = None,
    threshold: float | None = None,
) -> Choice:
    """The choice of arguments of which at most one is given; raises DataError if it is wrong."""
    given: dict[Kind, float | None] = {
        "reject": reject,
        "min_probability": min_probability,
        "threshold": threshold,
    }
    found = [Choice(kind, value) for kind, value in given.items() if value is not None]
    if len(found) > 1:
        raise DataError(f"{' and '.join(each.kind for each in found)}: give one of them")
    for kind, value in found:
        if math.isnan(value):
            raise DataError(f"{kind}=nan: must be a number; e.g. 0.1")
        if kind != "threshold" and not 0 < value < 1:
            raise DataError(f"{kind}={value:g}: must be above 0 and below 1; e.g. 0.05")
    return found[0] if found else ALWAYS


def limit_of(choice: Choice, measured: Measured) -> float:
    """The least margin or probability of a choice; for "reject", see `rejecting`."""
    return rejecting(measured, choice.value)[0] if choice.kind == "reject" else choice.value


def rejecting(measured: Measured, rate: float) -> tuple[float, float, float]:
    """The lowest margin that at most a share of the strangers of a new class is expected to reach.

    That share is estimated by leaving out one class of strangers after the other, and applying the
    limit that the others set to it. With few classes, it exceeds the share of all strangers that
    reach the limit, and may exceed the rate at any limit; then the limit is above all strangers.

    Returns:
      The margin, the share of all strangers that may reach it, and the share of those of a new
      class that is expected to.

    Raises:
      DataError: there are fewer than `FEWEST` classes of strangers, or fewer images than one per
        accepted one.
    """
    strangers = measured.strangers[np.argsort(measured.strangers["margin"])]
    margins, classes = strangers["margin"], strangers["label"]
    needed, count = math.ceil(min(1 / rate, 1e9) - 1e-9), len(np.unique(classes))
    if count < FEWEST or len(margins) < needed:  # one is accepted
        raise DataError(
            f"reject={rate:g}: {counted(len(margins), 'image')} of "
            f"{counted(count, 'class')} are too few strangers; give --calibrate=DIRECTORY with "
            f"class folders of {FEWEST} other classes or more, {needed:,} images in all, of which "
            f"at most {IMAGES_PER_CLASS} of a class count; or --min_probability instead"
        )

    def of_new_classes(passing: float) -> float:
        own = (classes == label for label in np.unique(classes))
        accepted = (np.sum(margins[each] >= _limit(margins[~each], passing)) for each in own)
        return float(sum(accepted) / len(margins))

    passing = np.arange(int(rate * len(margins)) + 1) / len(margins)
    allowed = passing[bisect(passing, rate, 1, key=of_new_classes) - 1]
    return _limit(margins, allowed), allowed, of_new_classes(allowed)


def _limit(ascending: np.ndarray, rate: float, weights: np.ndarray | None = None) -> float:
    """The lowest limit that at most a share of the strangers, with weights if given, reaches."""
    weights = np.ones(len(ascending)) if weights is None else weights
    passing = weights.sum() - np.cumsum(weights)  # at a limit just above each margin
    highest_rejected = ascending[np.argmax(passing <= rate * weights.sum() + 1e-9)]
    return float(np.nextafter(highest_rejected, np.float32(np.inf)))


Share = tuple[float, float, float]  # share of images and its 95 % interval, NaN if not measured


class Point(NamedTuple):
    """A choice and the shares of images to expect with it."""

    choice: Choice
    limit: float  # least margin or probability of an accepted image
    right: Share  # images of enrolled classes that are assigned to their class;
    right_at_3: Share  # that get a name, and whose class is among the first three;
    wrong: Share  # that are assigned to another class;
    unknown: Share  # or to none
    strangers: Share  # images of other classes that are accepted


class Bin(NamedTuple):
    """Images of enrolled classes by the probability of their best class."""

    low: float
    high: float
    images: int
    expected: float  # mean probability
    observed: Share  # share of right answers


class Promise:
    """What to expect of photographs to come, with 95 % intervals.

    For the intervals, classes of strangers are drawn again, with replacement. Each draw sets the
    limit of "reject", and the classes that were not drawn measure how many strangers it accepts.
    For the same limits, known classes and their sessions are drawn. Their number gives the variance
    of the difference from a measurement on the `enrolled` classes.
    """

    def __init__(self, measured: Measured, enrolled: int):
        self._measured, rng = measured, np.random.default_rng(0)
        classes, self._class = np.unique(measured.strangers["label"], return_inverse=True)
        drawn = rng.integers(max(1, len(classes)), size=(DRAWS, len(classes)))
        self._times = np.stack([np.bincount(d, minlength=len(classes)) for d in drawn])
        known = measured.known
        pairs, pair = np.unique(known[["label", "session"]], return_inverse=True)
        names, place, sessions = np.unique(pairs["label"], return_inverse=True, return_counts=True)
        count = max(1, round(len(names) * enrolled / max(1, len(names) + enrolled)))
        first = (np.cumsum(sessions) - sessions)[place]  # session of the class of each session
        self._weights = np.zeros((DRAWS, len(known)))
        for weights in self._weights if len(known) else ():
            times = np.bincount(rng.integers(len(names), size=count), minlength=len(names))
            again = np.bincount(first + rng.integers(sessions[place]), minlength=len(pairs))
            weights[:] = (times[place] * again)[pair]

    def at(self, choice: Choice) -> Point:
        """What to expect with a choice; raises DataError as `rejecting`."""
        measured, limit, times = self._measured, choice.value, self._times[:, self._class]
        found, limits = choice.of(measured.strangers), np.full((DRAWS, 1), limit)
        expected = float((found >= limit).mean()) if len(found) else np.nan
        if choice.kind == "reject":
            limit, passing, expected = rejecting(measured, choice.value)
            order = np.argsort(found)
            limits[:, 0] = [_limit(found[order], passing, each[order]) for each in times]
            times = times == 0
        ranks, known = measured.known["rank"], choice.of(measured.known)

        def share(of: np.ndarray, accepted: bool = True) -> Share:
            now, drawn = ((of & ((known >= each) == accepted)) for each in (limit, limits))
            return _share(float(now.mean()) if len(now) else np.nan, drawn, self._weights)

        return Point(
            choice,
            limit,
            share(ranks == 0),
            share(ranks < 3),
            share(ranks > 0),
            (0.0, 0.0, 0.0) if choice == ALWAYS else share(ranks >= 0, accepted=False),
            (1.0, 1.0, 1.0) if choice == ALWAYS else _share(expected, found >= limits, times),
        )

    def reliability(self) -> list[Bin]:
        """Expected and observed shares of right answers by probability."""
        shares, right = self._measured.known["probability"], self._measured.known["rank"] == 0
        position, found = np.searchsorted(BINS[1:-1], shares, side="right"), []
        for i in np.unique(position).tolist():
            of = position == i
            drawn = np.broadcast_to(right[of], (DRAWS, of.sum()))
            observed = _share(float(right[of].mean()), drawn, self._weights[:, of])
            expected = float(shares[of].mean())
            found.append(Bin(BINS[i], BINS[i + 1], int(of.sum()), expected, observed))
        return found


def _share(share: float, drawn: np.ndarray, weights: np.ndarray) -> Share:
    """The share with an interval that covers 95 % of the draws, bool [DRAWS, N] with weights, and
    Wilson's for as many images, since draws of equal images do not differ."""
    if not (count := drawn.shape[1]):
        return np.nan, np.nan, np.nan
    total = weights.sum(axis=1)
    rates = (drawn * weights).sum(axis=1)[total > 0] / total[total > 0]
    ends = np.quantile(rates, (0.025, 0.975)) if len(rates) else (0.0, 1.0)
    z = 1.96**2 / count
    middle, half = share + z / 2, math.sqrt(z * (share * (1 - share) + z / 4))
    low, high = min(ends[0], (middle - half) / (1 + z)), max(ends[1], (middle + half) / (1 + z))
    return share, float(max(low, 0)), float(min(high, 1))
