"""Open-set classification: an image gets an enrolled class unless its margin marks a stranger.

A background is images of classes that are not enrolled. A stranger is often about as similar to one
of them as to the enrolled classes, while images of an enrolled class are not; a threshold on the
cosine alone cannot tell them apart. Background and enrolled images also say in which directions
images of one class differ. With S, the covariance of all of them within their classes, mu, the mean
of the background, and w = `SHRINKAGE`, an image x becomes

    x' = L^-1 (x - mu),    L L^T = (1 - w) S + w trace(S) / D I,

divided by its length: within-class covariance normalisation (Hatch, Kajarekar and Stolcke,
"Within-Class Covariance Normalization for SVM-Based Speaker Recognition", 2006). With s_c, the mean
of the cosines of x' to the nearest image of class c and to the mean of its images, the margin is

    m = s_b - t log sum_{c != b} exp(s_c / t),    b = argmax over the enrolled c of s_c,

where c runs over the enrolled classes and the background, and t = `TEMPERATURE`. It is t times the
log-odds of b in a softmax of s / t over all of them.

The error rates of a threshold are measured on photographs of other sessions than the enrolled ones
(`measure`), and their uncertainty by drawing classes and sessions again (`promise`).
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import linalg
from scipy.sparse import csgraph

from dml_jax.errors import DataError, counted

TEMPERATURE, SHRINKAGE = 0.2, 0.5
FALSE_ACCEPT_RATE = 0.05
RATES = (0.01, FALSE_ACCEPT_RATE, 0.1)  # false-accept rates in reports
FOLDS = 10  # parts of the background's classes, and of each enrolled class's sessions
FEWEST = 5  # classes of strangers for a threshold
LENGTH_TOLERANCE = 0.01  # unit rows may have been stored in half precision
NEAR_COPY = 0.95  # cosine of two images that count as one session if their sessions are unknown
DRAWS = 500  # bootstrap samples
IMAGES_PER_CLASS, IMAGES = 20, 5_000  # limits of a background; more images change little
BLOCK_ELEMENTS = 1 << 22  # similarities in memory at once

Map = Callable[[np.ndarray], np.ndarray]


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows [N, D] divided by their lengths; zero rows stay zero."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1)


def first_bad_row(rows: np.ndarray) -> tuple[int, str] | None:
    """Position and fault of the first of rows float [N, D] that is not finite or of unit length."""
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(rows, axis=1)
    bad = ~(np.abs(lengths - 1) <= LENGTH_TOLERANCE)
    if not bad.any():
        return None
    first = int(bad.argmax())
    finite = np.isfinite(rows[first]).all()
    return first, f"has length {lengths[first]:.3g}" if finite else "is not finite"


class Photographs(NamedTuple):
    """Embeddings of labelled photographs: enrolled ones, or a background of other classes."""

    rows: np.ndarray  # float32 [N, D], of unit length
    labels: np.ndarray  # int64 [N]
    sessions: np.ndarray  # strings [N], "" if unknown

    def where(self, chosen: np.ndarray) -> "Photographs":
        """The photographs of a mask [N] or of positions."""
        return Photographs(*(part[chosen] for part in self))


class Decision(NamedTuple):
    """The best class for each of Q images."""

    labels: np.ndarray  # int [Q]
    margins: np.ndarray  # float32 [Q]; images below a threshold are rejected as strangers
    nearest: np.ndarray  # int [Q], row of the nearest enrolled image of that class


class Measured(NamedTuple):
    """Margins of images that the index does not hold."""

    strangers: np.ndarray  # float32 [S], of images whose class is not enrolled
    stranger_groups: np.ndarray  # int [S, 2], class and session
    known: np.ndarray  # float32 [K], of images whose class is enrolled
    right: np.ndarray  # bool [K], whether the best class is right
    known_groups: np.ndarray  # int [K, 2], class and session
    confused: dict[tuple[int, int], int]  # images by their class and the better one, both enrolled
    left_out: list[int]  # enrolled classes of one session
    enrolled: int  # number of enrolled classes


Share = tuple[float, float, float]  # share of images and its 95 % interval, NaN if not measured


class Point(NamedTuple):
    """A threshold and the shares of images to expect at it."""

    false_accept_rate: float  # the threshold was set for this rate
    threshold: float  # least margin of an accepted image
    right: Share  # images of enrolled classes that are assigned to their class;
    wrong: Share  # to another one;
    unknown: Share  # or to none
    strangers: Share  # images of other classes that are accepted


def choose(photographs: Photographs) -> np.ndarray:
    """Rows of random classes: at most `IMAGES_PER_CLASS` random images each, `IMAGES` in all."""
    rng = np.random.default_rng(0)
    labels = photographs.labels
    order = np.lexsort((rng.random(len(labels)), labels))
    names, first, place = np.unique(labels[order], return_index=True, return_inverse=True)
    order = order[np.arange(len(order)) - first[place] < IMAGES_PER_CLASS]
    classes = rng.permutation(names)[: max(2, IMAGES // IMAGES_PER_CLASS)]
    return order[np.isin(labels[order], classes)]


def session_groups(photographs: Photographs) -> np.ndarray:
    """Number of the session of each image within its class: int [N]; near-copies share a session
    if theirs are unknown."""
    found = np.zeros(len(photographs.labels), np.int64)
    for label in np.unique(photographs.labels):
        same_class = np.flatnonzero(photographs.labels == label)
        rows, names = photographs.rows[same_class], photographs.sessions[same_class]
        unknown = (names == "")[:, None] & (names == "")
        alike = np.where(unknown, rows @ rows.T > NEAR_COPY, names[:, None] == names)
        np.fill_diagonal(alike, True)
        found[same_class] = csgraph.connected_components(alike, directed=False)[1]
    return found


def of_near_copies(share: float, option: str) -> str:
    """A warning for photographs whose sessions are unknown."""
    return (
        f"the nearest image of {100 * share:.1f} % of the queries is a near-copy (cosine above "
        f"{NEAR_COPY}), so the figures hold for photographs taken together; use {option} to state "
        "which were, so that these are left out"
    )


def whitening(background: Photographs, enrolled: Photographs) -> Map:
    """Maps images, float32 [N, D], to x', by the covariance of background and enrolled images."""
    parts = [_within_classes(part.rows, part.labels) for part in (background, enrolled)]
    residuals = np.concatenate(parts)
    covariance = residuals.T @ residuals / len(residuals)
    identity = np.eye(len(covariance), dtype=np.float32)
    scale = np.trace(covariance) / len(covariance)
    if scale > 0:
        covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * scale * identity
    else:  # without differences within classes, there is nothing to normalise
        covariance = identity
    mean = background.rows.mean(axis=0)
    matrix = linalg.solve_triangular(np.linalg.cholesky(covariance), identity, lower=True).T
    return lambda rows: unit_rows((rows - mean) @ matrix)


def _within_classes(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Float32 [N, D] -> float32 [N, D], rows less the mean of their class."""
    _, position, counts = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), rows.shape[1]), np.float32)
    np.add.at(sums, position, rows)
    return rows - (sums / counts[:, None].astype(np.float32))[position]


def similarities_to(rows: np.ndarray, labels: np.ndarray) -> Map:
    """Maps images, float32 [Q, D], to s_c, float32 [Q, C], for the classes of rows [N, D] in
    ascending order; all have unit length."""
    order = np.argsort(labels, kind="stable")
    first, rows = np.unique(labels[order], return_index=True)[1], rows[order]
    means = unit_rows(np.add.reduceat(rows, first))
    return lambda images: (
        (np.maximum.reduceat(images @ rows.T, first, axis=1) + images @ means.T) / 2
    )


def margins(enrolled: np.ndarray, background: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best enrolled class int [Q] and its margin float32 [Q], from s_c [Q, C] and [Q, B]."""
    best = enrolled.argmax(axis=1)
    others = np.concatenate([enrolled, background], axis=1).astype(np.float64)
    rows = np.arange(len(best))
    others[rows, best] = -np.inf
    # The largest is subtracted so that exp does not overflow; a background has at least one class.
    top = others.max(axis=1)
    soft = top + TEMPERATURE * np.log(np.exp((others - top[:, None]) / TEMPERATURE).sum(axis=1))
    return best, (enrolled[rows, best] - soft).astype(np.float32)


class Scorer:
    """Assigns images to enrolled classes; by default whitened by the enrolled and background
    images."""

    def __init__(self, background: Photographs, enrolled: Photographs, whiten: Map | None = None):
        self.whiten = whiten or whitening(background, enrolled)
        self._to_others = similarities_to(self.whiten(background.rows), background.labels)
        self._to_index = similarities_to(self.whiten(enrolled.rows), enrolled.labels)
        self._enrolled, self._classes = enrolled, np.unique(enrolled.labels)

    def similarities(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Float32 [Q, D] -> [Q, C], the classes of the index in ascending order, and [Q, B]."""
        rows = self.whiten(queries)
        return self._to_index(rows), self._to_others(rows)

    def decide(self, queries: np.ndarray) -> Decision:
        """The best class of each query, float32 [Q, D], rows of unit length."""
        labels, found = np.empty(len(queries), np.int64), np.empty(len(queries), np.float32)
        nearest = np.empty(len(queries), np.int64)
        step = max(1, BLOCK_ELEMENTS // len(self._enrolled.rows))
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            best, found[part] = margins(*self.similarities(queries[part]))
            labels[part] = self._classes[best]
            same_class = self._enrolled.labels == labels[part, None]
            cosines = np.where(same_class, queries[part] @ self._enrolled.rows.T, -np.inf)
            nearest[part] = cosines.argmax(axis=1)
        return Decision(labels, found, nearest)


def measure(background: Photographs, enrolled: Photographs) -> Measured:
    """Margins of background and enrolled images, each measured without its session in the index.

    Strangers are the images of the background, each as if its class were not in the background.
    Known images are those of enrolled classes with several sessions, each classified without its
    session, and those of classes of the background with several sessions, each as if other sessions
    of its class were enrolled, with as many sessions and images as the median enrolled class has.
    No image takes part in the covariance by which it is judged: tenths of the classes of the
    background are judged in turn (cross-conformal prediction by classes: Vovk, "Cross-conformal
    predictors", 2015).
    """
    groups = session_groups(background)
    position = np.unique(background.labels, return_inverse=True)[1]
    enrolled_groups = session_groups(enrolled)
    strangers, known = _measure_background(background, enrolled, position, groups, enrolled_groups)
    several = np.isin(enrolled.labels, enrolled.labels[enrolled_groups > 0])
    held_out = np.where(several, enrolled_groups % FOLDS, -1)
    confused: Counter[tuple[int, int]] = Counter()
    for fold in range(held_out.max() + 1):
        tested, sessions = enrolled.where(held_out == fold), enrolled_groups[held_out == fold]
        decided = Scorer(background, enrolled.where(held_out != fold)).decide(tested.rows)
        right = decided.labels == tested.labels
        pairs = zip(tested.labels.tolist(), decided.labels.tolist(), strict=True)
        confused.update((label, other) for label, other in pairs if label != other)
        known.append(np.stack([decided.margins, right, tested.labels, sessions], axis=1))
    answers = np.concatenate(known)
    return Measured(
        strangers=strangers,
        stranger_groups=np.stack([position, groups], axis=1),
        known=answers[:, 0],
        right=answers[:, 1] > 0,
        known_groups=answers[:, 2:].astype(np.int64),
        confused=dict(confused),
        left_out=np.unique(enrolled.labels[~several]).tolist(),
        enrolled=len(np.unique(enrolled.labels)),
    )


def _measure_background(
    background: Photographs,
    enrolled: Photographs,
    position: np.ndarray,
    groups: np.ndarray,
    enrolled_groups: np.ndarray,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Margins of the background images as strangers, float32 [B], and as images of known classes.

    `position` int [B] numbers their classes, `groups` int [B] their sessions. The known images are
    rows of (margin, whether the class is right, -1 - position, session).
    """
    count = position.max() + 1
    fold = np.random.default_rng(0).permutation(count)[position] % min(FOLDS, count)
    class_of_session = np.unique(np.stack([enrolled.labels, enrolled_groups]), axis=1)[0]
    most_images, most_sessions = _median_count(enrolled.labels), _median_count(class_of_session)
    strangers, known = np.zeros(len(position), np.float32), [np.zeros((0, 4))]
    for tested_fold in range(fold.max() + 1):
        training = background.where(fold != tested_fold)
        scorer = Scorer(background, enrolled, whitening(training, enrolled))
        to_index, to_others = scorer.similarities(background.rows)
        rows = scorer.whiten(background.rows)
        for label in np.unique(position[fold == tested_fold]):
            same_class = position == label
            to_strangers = np.delete(to_others[same_class], label, axis=1)
            strangers[same_class] = margins(to_index[same_class], to_strangers)[1]
            sessions = np.unique(groups[same_class])
            for turn, session in enumerate(sessions) if len(sessions) > 1 else ():
                others = np.roll(sessions, -turn)[1 : 1 + most_sessions]
                gallery = np.flatnonzero(same_class & np.isin(groups, others))[:most_images]
                tested = same_class & (groups == session)
                to_class = similarities_to(rows[gallery], position[gallery])(rows[tested])
                to_enrolled = np.concatenate([to_class, to_index[tested]], axis=1)
                best, found = margins(to_enrolled, to_strangers[groups[same_class] == session])
                group = -1 - position[tested], groups[tested]
                known.append(np.stack([found, best == 0, *group], axis=1))
    return strangers, known


def _median_count(labels: np.ndarray) -> int:
    return int(np.median(np.unique(labels, return_counts=True)[1]))


def threshold_for(
    margins: np.ndarray, classes: np.ndarray, false_accept_rate: float
) -> tuple[float, float, float]:
    """The lowest threshold that at most a share of the strangers of a new class passes.

    That share is estimated by leaving out one class of strangers after the other, and applying the
    threshold that the others set to it. With few classes, it exceeds the share of all strangers
    that pass, and may exceed the rate at any threshold; then the threshold is above all strangers.

    Args:
      margins, classes: of strangers, float32 [S] and int [S].

    Returns:
      The threshold, the share of these strangers that pass it, and the share that is expected of a
      new class.

    Raises:
      DataError: there are fewer than `FEWEST` classes of strangers, or fewer images than one per
        accepted one.
    """
    check_enough(len(margins), len(np.unique(classes)), false_accept_rate)
    passing, expected = _corrected_rate(margins, classes, false_accept_rate)
    return _threshold(np.sort(margins), np.ones(len(margins)), passing), passing, expected


def promise(measured: Measured, false_accept_rate: float) -> Point:
    """The threshold for a rate and its expected errors; raises DataError as `threshold_for`.

    For the intervals, classes of strangers are drawn again, with replacement; each draw sets a
    threshold, and the classes that were not drawn measure how many strangers it accepts. For the
    same thresholds, known classes and their sessions are drawn. Their number gives the variance of
    the difference from a measurement on the enrolled classes.
    """
    margins, position = measured.strangers, measured.stranger_groups[:, 0]
    threshold, passing, expected = threshold_for(margins, position, false_accept_rate)
    rng = np.random.default_rng(0)
    order, classes = np.argsort(margins), np.unique(position)
    ascending, by_class = margins[order], np.searchsorted(classes, position[order])
    known_classes, place = np.unique(measured.known_groups[:, 0], return_inverse=True)
    both = len(known_classes) + measured.enrolled
    count = max(1, round(len(known_classes) * measured.enrolled / max(1, both)))
    thresholds, outside = np.empty(DRAWS), np.full(DRAWS, np.nan)
    weights = np.empty((DRAWS, len(measured.known)))
    for draw in range(DRAWS):
        times = np.bincount(rng.integers(len(classes), size=len(classes)), minlength=len(classes))
        thresholds[draw] = _threshold(ascending, times[by_class], passing)
        if len(out := ascending[times[by_class] == 0]):
            outside[draw] = (out >= thresholds[draw]).mean()
        if len(place):
            chosen = rng.integers(len(known_classes), size=count)
            drawn = np.bincount(chosen, minlength=len(known_classes))
            weights[draw] = drawn[place] * _session_weights(place, measured.known_groups[:, 1], rng)

    def share(chosen: Callable[[float], np.ndarray]) -> Share:
        if not len(measured.known):
            return np.nan, np.nan, np.nan
        draws = zip(thresholds, weights, strict=True)
        drawn = [chosen(limit) @ weight / max(weight.sum(), 1e-9) for limit, weight in draws]
        low, high = np.quantile(drawn, (0.025, 0.975))
        return float(chosen(threshold).mean()), float(low), float(high)

    known, right = measured.known, measured.right
    low, high = np.nanquantile(outside, (0.025, 0.975))
    return Point(
        false_accept_rate,
        threshold,
        share(lambda t: (known >= t) & right),
        share(lambda t: (known >= t) & ~right),
        share(lambda t: known < t),
        (expected, float(low), float(high)),
    )


def _corrected_rate(margins: np.ndarray, classes: np.ndarray, rate: float) -> tuple[float, float]:
    """The share of all strangers that may pass so that at most `rate` of a new class is expected
    to pass, and the expected share."""

    def of_new_classes(passing: float) -> float:
        accepted = 0
        for label in np.unique(classes):
            others = np.sort(margins[classes != label])
            limit = _threshold(others, np.ones(len(others)), passing)
            accepted += np.sum(margins[classes == label] >= limit)
        return float(accepted / len(margins))

    low, high = 0, int(rate * len(margins)) + 1  # numbers that may pass: allowed, and too many
    while high - low > 1:
        middle = (low + high) // 2
        if of_new_classes(middle / len(margins)) <= rate:
            low = middle
        else:
            high = middle
    return low / len(margins), of_new_classes(low / len(margins))


def _threshold(ascending: np.ndarray, weights: np.ndarray, rate: float) -> float:
    """The lowest threshold that at most a share of the weighted strangers passes."""
    passing = weights.sum() - np.cumsum(weights)  # at a threshold just above each margin
    highest_rejected = ascending[np.argmax(passing <= rate * weights.sum() + 1e-9)]
    return float(np.nextafter(highest_rejected, np.float32(np.inf)))


def _session_weights(
    place: np.ndarray, sessions: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """How often each image is drawn if the sessions of every class are drawn again."""
    pairs, pair = np.unique(np.stack([place, sessions]), axis=1, return_inverse=True)
    first = np.searchsorted(pairs[0], pairs[0])
    counts = np.searchsorted(pairs[0], pairs[0], side="right") - first
    return np.bincount(first + rng.integers(counts), minlength=len(counts))[pair]


def check_enough(images: int, classes: int, false_accept_rate: float) -> None:
    """Raises DataError, which says what is missing, if strangers are too few for a threshold."""
    check_rate(false_accept_rate)
    needed = math.ceil(min(1 / false_accept_rate, 1e9) - 1e-9)  # one is accepted
    if classes >= FEWEST and images >= needed:
        return
    more = max(FEWEST, math.ceil(needed / IMAGES_PER_CLASS))
    if needed > IMAGES:
        remedy = f"give --false_accept_rate={1 / IMAGES:g} or more"
    elif images >= needed:
        remedy = f"give --calibrate=DIRECTORY with class folders of {FEWEST} other classes or more"
    else:
        of = f"{more:,} other classes or more" if classes < more else "other classes"
        remedy = (
            f"give --calibrate=DIRECTORY with class folders of {of} and {needed:,} images or more, "
            f"of which at most {IMAGES_PER_CLASS} of a class count, or a higher --false_accept_rate"
        )
    raise DataError(
        f"{counted(images, 'image')} of {counted(classes, 'class')} that are not enrolled: are too "
        f"few for a threshold at which {100 * false_accept_rate:g} % of strangers are accepted; "
        f"{remedy}"
    )


def check_threshold(threshold: float) -> None:
    """Raises DataError if the threshold is NaN, which no margin reaches."""
    if math.isnan(threshold):
        raise DataError("threshold=nan: must be a number; e.g. 0.1")


def check_rate(false_accept_rate: float) -> None:
    """Raises DataError unless the rate is between 0 and 1."""
    if not 0 < false_accept_rate < 1:
        rate = f"false_accept_rate={false_accept_rate:g}"
        raise DataError(f"{rate}: must be above 0 and below 1; e.g. 0.01")
