"""What to expect of an open-set classifier with a choice of when an answer is "unknown"."""

import math
from bisect import bisect
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from dml_jax.errors import DataError, counted
from dml_jax.evaluation.open_set import IMAGES_PER_CLASS, Measured

FEWEST = 5  # classes of strangers for a limit

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
        """What the limit is compared with, float32 [N], of `open_set.ANSWERS`."""
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


def rejecting(measured: Measured, rate: float) -> tuple[float, float]:
    """The lowest margin that at most a share of the strangers of a new class is expected to reach.

    That share is estimated by leaving out one class of strangers after the other, and applying the
    limit that the others set to it. With few classes, it exceeds the share of all strangers that
    reach the limit, and may exceed the rate at any limit; then the limit is above all strangers.

    Returns:
      The margin, and the share of the strangers of a new class that is expected to reach it.

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
    return _limit(margins, allowed), of_new_classes(allowed)


def _limit(ascending: np.ndarray, rate: float) -> float:
    """The lowest limit that at most a share of the strangers reaches."""
    count = len(ascending)
    passing = count - 1 - np.arange(count)  # at a limit just above each margin
    highest_rejected = ascending[np.argmax(passing <= rate * count + 1e-9)]
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


def expected(measured: Measured, choice: Choice) -> Point:
    """What to expect of photographs to come with a choice; raises DataError as `rejecting`."""
    found, limit = choice.of(measured.strangers), choice.value
    strangers = float((found >= limit).mean()) if len(found) else np.nan
    if choice.kind == "reject":
        limit, strangers = rejecting(measured, choice.value)
    ranks, accepted = measured.known["rank"], choice.of(measured.known) >= limit
    # Images of a class are alike: for as many images, intervals covered one draw of six.
    classes, others = (len(np.unique(each["label"])) for each in measured[:2])

    def share(of: np.ndarray) -> Share:
        return wilson(float(of.mean()) if len(of) else np.nan, classes)

    return Point(
        choice,
        limit,
        share(accepted & (ranks == 0)),
        share(accepted & (ranks < 3)),
        share(accepted & (ranks > 0)),
        (0.0, 0.0, 0.0) if choice == ALWAYS else share(~accepted),
        (1.0, 1.0, 1.0) if choice == ALWAYS else wilson(strangers, others),
    )


def wilson(share: float, count: int) -> Share:
    """A share of `count` independent units with its 95 % interval (Wilson, "Probable inference, the
    law of succession, and statistical inference", 1927)."""
    if not count:
        return np.nan, np.nan, np.nan
    z = 1.96**2 / count
    middle, half = share + z / 2, math.sqrt(z * (share * (1 - share) + z / 4))
    low, high = (middle - half) / (1 + z), (middle + half) / (1 + z)
    return share, max(low, 0.0), min(high, 1.0)
