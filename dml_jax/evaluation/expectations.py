"""What to expect of an open-set classifier with a choice of when an answer is "unknown"."""

import math
from typing import Literal, NamedTuple

import numpy as np

from dml_jax.errors import DataError, counted
from dml_jax.evaluation.open_set import IMAGES_PER_CLASS, Measured

FEWEST = 5  # classes of strangers for a limit


class Choice(NamedTuple):
    """When an answer is "unknown": never, below a probability, or below the margin that a share of
    the strangers reaches ("reject")."""

    kind: Literal["always", "reject", "min_probability"] = "always"
    value: float = -math.inf

    def __str__(self) -> str:
        return "always a name" if self.kind == "always" else f"--{self.kind}={self.value:g}"

    def of(self, answers: np.ndarray) -> np.ndarray:
        """What the limit is compared with, float32 [N], of `open_set.ANSWERS`."""
        return np.asarray(answers["probability" if self.kind == "min_probability" else "margin"])


ALWAYS = Choice()


def choice(reject: float | None = None, min_probability: float | None = None) -> Choice:
    """The choice that the arguments state; DataError if both are given, or one is impossible."""
    if reject is not None and min_probability is not None:
        raise DataError("reject and min_probability: give one of them")
    result = ALWAYS
    if reject is not None:
        result = Choice("reject", reject)
    elif min_probability is not None:
        result = Choice("min_probability", min_probability)
    if result != ALWAYS and not 0 < result.value < 1:
        raise DataError(f"{result.kind}={result.value:g}: must be above 0 and below 1; e.g. 0.05")
    return result


def limit(measured: Measured, choice: Choice) -> float:
    """The least margin or probability of an accepted image.

    With "reject", it is the lowest margin that at most this share of the measured strangers
    reaches. Raises DataError if there are fewer than `FEWEST` classes of strangers, or fewer images
    than one per accepted one.
    """
    if choice.kind != "reject":
        return choice.value
    margins = np.sort(measured.strangers["margin"])
    count, classes = len(margins), len(np.unique(measured.strangers["label"]))
    needed = math.ceil(min(1 / choice.value, 1e9) - 1e-9)
    if classes < FEWEST or count < needed:
        raise DataError(
            f"reject={choice.value:g}: {counted(count, 'image')} of {counted(classes, 'class')} "
            f"are too few strangers; give --calibrate=DIRECTORY with class folders of {FEWEST} "
            f"other classes or more, {needed:,} images in all, of which at most {IMAGES_PER_CLASS} "
            "of a class count; or --min_probability instead"
        )
    reaching = count - 1 - np.arange(count)  # a limit just above each margin
    highest_rejected = margins[np.argmax(reaching <= choice.value * count + 1e-9)]
    return float(np.nextafter(highest_rejected, np.float32(np.inf)))


Share = tuple[float, float, float]  # share of images and its 95 % interval, NaN if not measured


class Point(NamedTuple):
    """A choice and the shares of images with it."""

    choice: Choice
    limit: float  # least margin or probability of an accepted image
    right: Share  # images of enrolled classes that are assigned to their class;
    right_at_3: Share  # that get a name, and whose class is among the first three;
    wrong: Share  # that are assigned to another class;
    unknown: Share  # or to none
    strangers: Share  # images of other classes that are accepted


def expected(measured: Measured, choice: Choice) -> Point:
    """What to expect of photographs to come with a choice; raises DataError as `limit`."""
    return shares(measured, choice, limit(measured, choice))


def shares(measured: Measured, choice: Choice, limit: float) -> Point:
    """The shares of measured images if those that reach the limit are accepted."""
    ranks, accepted = measured.known["rank"], choice.of(measured.known) >= limit
    named = choice.of(measured.strangers) >= limit
    # Images of a class are alike: intervals for as many images held in 0 to 33 % of draws of
    # groceries, these in 50 to 83 % (benchmarks/RESULTS.md).
    classes, others = (len(np.unique(each["label"])) for each in measured[:2])

    def share(of: np.ndarray, classes: int = classes) -> Share:
        return wilson(float(of.mean()) if len(of) else np.nan, classes)

    return Point(
        choice,
        limit,
        share(accepted & (ranks == 0)),
        share(accepted & (ranks < 3)),
        share(accepted & (ranks > 0)),
        (0.0, 0.0, 0.0) if choice == ALWAYS else share(~accepted),
        (1.0, 1.0, 1.0) if choice == ALWAYS and len(named) else share(named, others),
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
