"""Open-set classification: the class of an image among enrolled ones, unless its margin says that it is a stranger.

A background is images of classes that are not enrolled. A stranger is often about as similar to one of them as to the
enrolled classes, while images of an enrolled class are not; a threshold on the cosine alone cannot tell them apart.
Background and enrolled images also say in which directions images of one class differ. With S, the covariance of all
of them within their classes, mu, the mean of the background, and w = `SHRINKAGE`, an image x becomes

    x' = L^-1 (x - mu),    L L^T = (1 - w) S + w trace(S) / D I,

divided by its length: within-class covariance normalisation (Hatch, Kajarekar and Stolcke, "Within-Class Covariance
Normalization for SVM-Based Speaker Recognition", 2006). With s_c, the mean of the cosines of x' to the nearest image of
class c and to the mean of its images, the margin is

    m = s_b - t log sum_{c != b} exp(s_c / t),    b = argmax over the enrolled c of s_c,

where c runs over the enrolled classes and the background, and t = `TEMPERATURE`. It is t times the log-odds of b in a
softmax of s / t over all of them.
"""

import zlib
from typing import NamedTuple

import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation._engine.tiles import unit_rows

TEMPERATURE, SHRINKAGE = 0.05, 0.5
FALSE_ACCEPT_RATE = 0.05
RATES = (0.01, FALSE_ACCEPT_RATE, 0.1)  # of strangers accepted, in reports
FOLDS = 10  # of the classes of the background, and of the images of each enrolled class
IMAGES_PER_CLASS, IMAGES = 20, 5_000  # of a background; more change little
BLOCK_ELEMENTS = 1 << 22  # similarities in memory at once


class Background(NamedTuple):
    """Images of classes that are not enrolled."""

    rows: np.ndarray  # float32 [B, D], of unit length
    labels: np.ndarray  # int64 [B]


class Decision(NamedTuple):
    """The best class for each of Q images."""

    labels: np.ndarray  # int [Q]
    margins: np.ndarray  # float32 [Q]; images below a threshold are rejected as strangers
    nearest: np.ndarray  # int [Q], row of the nearest enrolled image of that class


class Point(NamedTuple):
    """A threshold and the shares of images to expect at it; NaN if there are none to measure them with."""

    false_accept_rate: float  # for which the threshold was set
    threshold: float  # least margin of an accepted image
    right: float  # images of enrolled classes that are given their class,
    wrong: float  # another one,
    unknown: float  # or none
    strangers: float  # images of other classes that are accepted


def choose(embeddings: np.ndarray, labels: np.ndarray) -> Background:
    """At most `IMAGES_PER_CLASS` random images of each class, and `IMAGES` in all, of random classes; seeded."""
    rng = np.random.default_rng(0)
    order = np.lexsort((rng.random(len(labels)), labels))
    names, first, place = np.unique(labels[order], return_index=True, return_inverse=True)
    order = order[np.arange(len(order)) - first[place] < IMAGES_PER_CLASS]
    classes = rng.permutation(names)[: max(2, IMAGES // IMAGES_PER_CLASS)]
    order = order[np.isin(labels[order], classes)]
    return Background(embeddings[order].astype(np.float32), labels[order].astype(np.int64))


class Whitening:
    """The map of images to x' that a background and the enrolled images of an index determine."""

    def __init__(self, background: Background, enrolled: np.ndarray, labels: np.ndarray):
        from scipy import linalg

        residuals = np.concatenate([_within_classes(*background), _within_classes(enrolled, labels)])
        covariance = residuals.T @ residuals / len(residuals)
        identity = np.eye(len(covariance), dtype=np.float32)
        scale = np.trace(covariance) / len(covariance)
        # Without differences within classes, there is nothing to normalise.
        covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * scale * identity if scale > 0 else identity
        self._mean = background.rows.mean(axis=0)
        self._map = linalg.solve_triangular(np.linalg.cholesky(covariance), identity, lower=True).T

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Float32 [N, D] -> float32 [N, D], rows of unit length."""
        return unit_rows((rows - self._mean) @ self._map)


def _within_classes(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Float32 [N, D] -> float32 [N, D], rows less the mean of their class."""
    _, position, counts = np.unique(labels, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), rows.shape[1]), np.float32)
    np.add.at(sums, position, rows)
    return rows - (sums / counts[:, None].astype(np.float32))[position]


class Classes:
    """The similarities s_c of images to the classes of rows float32 [N, D] of unit length, by ascending label."""

    def __init__(self, rows: np.ndarray, labels: np.ndarray):
        order = np.argsort(labels, kind="stable")
        _, self._first = np.unique(labels[order], return_index=True)
        self._rows = rows[order]
        self._means = unit_rows(np.add.reduceat(self._rows, self._first))

    def similarities(self, queries: np.ndarray) -> np.ndarray:
        """Float32 [Q, D] -> float32 [Q, C]."""
        nearest = np.maximum.reduceat(queries @ self._rows.T, self._first, axis=1)
        return (nearest + queries @ self._means.T) / 2


def margins(enrolled: np.ndarray, background: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best enrolled class int [Q] and its margin float32 [Q], from s_c [Q, C] and [Q, B]."""
    best = enrolled.argmax(axis=1)
    others = np.concatenate([enrolled, background], axis=1).astype(np.float64)
    rows = np.arange(len(best))
    others[rows, best] = -np.inf
    # Less the largest, so that exp does not overflow; there is one, because a background holds a class.
    top = others.max(axis=1)
    soft = top + TEMPERATURE * np.log(np.exp((others - top[:, None]) / TEMPERATURE).sum(axis=1))
    return best, (enrolled[rows, best] - soft).astype(np.float32)


class Scorer:
    """Assigns images to the classes of enrolled images float32 [N, D] with labels int [N].

    `whitening` is fitted on these and the background if it is not given.
    """

    def __init__(
        self, background: Background, enrolled: np.ndarray, labels: np.ndarray, whitening: Whitening | None = None
    ):
        self._whitening = whitening or Whitening(background, enrolled, labels)
        self._others = Classes(self._whitening(background.rows), background.labels)
        self._index = Classes(self._whitening(enrolled), labels)
        self._enrolled, self._labels, self._classes = enrolled, labels, np.unique(labels)

    def similarities(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Float32 [Q, D] -> [Q, C], the classes of the index in ascending order, and [Q, B]."""
        rows = self._whitening(queries)
        return self._index.similarities(rows), self._others.similarities(rows)

    def decide(self, queries: np.ndarray) -> Decision:
        """The best class of each query, float32 [Q, D], rows of unit length."""
        labels, found = np.empty(len(queries), np.int64), np.empty(len(queries), np.float32)
        nearest = np.empty(len(queries), np.int64)
        step = max(1, BLOCK_ELEMENTS // len(self._enrolled))
        for start in range(0, len(queries), step):
            rows = slice(start, start + step)
            best, found[rows] = margins(*self.similarities(queries[rows]))
            labels[rows] = self._classes[best]
            cosines = np.where(self._labels == labels[rows, None], queries[rows] @ self._enrolled.T, -np.inf)
            nearest[rows] = cosines.argmax(axis=1)
        return Decision(labels, found, nearest)


def of_strangers(background: Background, enrolled: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Margins float32 [B] of the background's images in an index, as if their own class were not in the background.

    Each tenth of the classes is whitened with the covariance of the rest and of the index, and compared with all
    classes but its own. These are the margins of strangers if their classes and those of the background are drawn
    alike. (Cross-conformal prediction by classes: Vovk, "Cross-conformal predictors", 2015.)
    """
    names, position = np.unique(background.labels, return_inverse=True)
    folds = min(FOLDS, len(names))
    fold = np.random.default_rng(0).permutation(len(names))[position] % folds
    found = np.zeros(len(position), np.float32)
    for i in range(folds):
        rest = Background(background.rows[fold != i], background.labels[fold != i])
        scorer = Scorer(background, enrolled, labels, Whitening(rest, enrolled, labels))
        to_index, to_others = scorer.similarities(background.rows[fold == i])
        to_others[np.arange(len(to_others)), position[fold == i]] = -np.inf
        found[fold == i] = margins(to_index, to_others)[1]
    return found


def hold_out(background: Background, enrolled: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Margins float32 [K] of an index's images, each classified without itself, and whether their class is right.

    Tenths of each class are classified with the other images, in turn, or one image if a class has ten or fewer; a
    class with one image is left out. The tenths are drawn by the content of the embeddings, so they do not depend on
    the order of the classes.
    """
    order = np.lexsort(([zlib.crc32(row.tobytes()) for row in enrolled], labels))
    _, first, place, counts = np.unique(labels[order], return_index=True, return_inverse=True, return_counts=True)
    fold = np.empty(len(labels), np.int64)
    fold[order] = np.where(counts[place] > 1, (np.arange(len(order)) - first[place]) % FOLDS, -1)
    found, right = [np.zeros(0, np.float32)], [np.zeros(0, bool)]
    for i in range(fold.max() + 1):
        asked = fold == i
        decision = Scorer(background, enrolled[~asked], labels[~asked]).decide(enrolled[asked])
        found.append(decision.margins)
        right.append(decision.labels == labels[asked])
    return np.concatenate(found), np.concatenate(right)


def point(strangers: np.ndarray, known: np.ndarray, right: np.ndarray, false_accept_rate: float) -> Point:
    """The lowest threshold that at most a share of strangers passes, from the results of `of_strangers`, `hold_out`."""
    check_rate(false_accept_rate)
    ascending = np.sort(strangers)
    highest_rejected = ascending[len(ascending) - 1 - int(false_accept_rate * len(ascending))]
    threshold = float(np.nextafter(highest_rejected, np.float32(np.inf)))
    accepted = known >= threshold
    shares = [
        float(share.mean()) if len(share) else np.nan for share in (accepted & right, accepted & ~right, ~accepted)
    ]
    return Point(false_accept_rate, threshold, *shares, float((strangers >= threshold).mean()))


def check_rate(false_accept_rate: float) -> None:
    """Raises DataError unless the rate is between 0 and 1."""
    if not 0 < false_accept_rate < 1:
        raise DataError(f"false_accept_rate={false_accept_rate:g}: must be above 0 and below 1; e.g. 0.01")
