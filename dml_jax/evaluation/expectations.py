"""What to expect of an open-set classifier, whose less sure answers may be "unknown"."""

import math
from typing import NamedTuple

import numpy as np

from dml_jax.errors import DataError, counted
from dml_jax.evaluation.open_set import IMAGES_PER_CLASS, Measured

FEWEST = 5  # classes of strangers for a limit

Share = tuple[float, float, float]  # share of images and its 95 % interval, NaN if not measured


class Expected(NamedTuple):
    """A limit and the shares of images with it."""

    limit: float  # least margin or probability of an accepted image
    right: Share  # images of enrolled classes that are assigned to their class;
    right_at_3: Share  # that get a name, and whose class is among the first three;
    wrong: Share  # that are assigned to another class;
    unknown: Share  # or to none
    strangers_accepted: Share  # images of other classes that get a name


def check(reject: float | None = None, min_probability: float | None = None) -> None:
    """Raises DataError if both arguments are given, or one is impossible."""
    if reject is not None and min_probability is not None:
        raise DataError("reject and min_probability: give one of them")
    for name, value in (("reject", reject), ("min_probability", min_probability)):
        if value is not None and not 0 < value < 1:
            raise DataError(f"{name}={value:g}: must be above 0 and below 1; e.g. 0.05")


def limit(
    measured: Measured, reject: float | None = None, min_probability: float | None = None
) -> tuple[str, float]:
    """What decides whether an image is accepted, a field of `open_set.ANSWERS`, and its least
    value.

    With `reject`, it is the lowest margin that at most this share of the measured strangers
    reaches. Raises DataError as `check`, and if there are fewer than `FEWEST` classes of strangers,
    or fewer images than one per accepted one.
    """
    check(reject, min_probability)
    if min_probability is not None:
        return "probability", min_probability
    if reject is None:
        return "margin", -math.inf
    margins = np.sort(measured.strangers["margin"])
    count, classes = len(margins), len(np.unique(measured.strangers["label"]))
    needed = math.ceil(min(1 / reject, 1e9) - 1e-9)
    if classes < FEWEST or count < needed:
        raise DataError(
            f"reject={reject:g}: {counted(count, 'image')} of {counted(classes, 'class')} "
            f"are too few strangers; give --calibrate=DIRECTORY with class folders of {FEWEST} "
            f"other classes or more, {needed:,} images in all, of which at most {IMAGES_PER_CLASS} "
            "of a class count; or --min_probability instead"
        )
    reaching = count - 1 - np.arange(count)  # a limit just above each margin
    highest_rejected = margins[np.argmax(reaching <= reject * count + 1e-9)]
    return "margin", float(np.nextafter(highest_rejected, np.float32(np.inf)))


def expected(
    measured: Measured, reject: float | None = None, min_probability: float | None = None
) -> Expected:
    """What to expect of photographs to come; arguments and exceptions as for `limit`."""
    return shares(measured, *limit(measured, reject, min_probability))


def shares(measured: Measured, field: str, limit: float) -> Expected:
    """The shares of measured images if those whose `field` reaches the limit are accepted."""
    known, strangers, _ = measured
    ranks, accepted, named = known["rank"], known[field] >= limit, strangers[field] >= limit
    # Images of a class are alike: intervals for as many images held in 0 to 33 % of draws of
    # groceries, these in 50 to 83 % (benchmarks/RESULTS.md).
    classes, others = (len(np.unique(each["label"])) for each in (known, strangers))
    always = limit == -math.inf
    return Expected(
        limit,
        wilson(accepted & (ranks == 0), classes),
        wilson(accepted & (ranks < 3), classes),
        wilson(accepted & (ranks > 0), classes),
        (0.0, 0.0, 0.0) if always else wilson(~accepted, classes),
        (1.0, 1.0, 1.0) if always and len(named) else wilson(named, others),
    )


def wilson(of: np.ndarray, count: int) -> Share:
    """A share of images, bool [N], with its 95 % interval as for `count` independent ones (Wilson,
    "Probable inference, the law of succession, and statistical inference", 1927)."""
    if not count:
        return np.nan, np.nan, np.nan
    share, z = float(of.mean()), 1.96**2 / count
    middle, half = share + z / 2, math.sqrt(z * (share * (1 - share) + z / 4))
    low, high = (middle - half) / (1 + z), (middle + half) / (1 + z)
    return share, max(low, 0.0), min(high, 1.0)
