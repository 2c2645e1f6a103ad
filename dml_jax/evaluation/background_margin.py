"""The margin of an image's best class over all other classes, those of a background set among them.

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

from typing import NamedTuple

import numpy as np

from dml_jax.evaluation._engine.tiles import unit_rows

TEMPERATURE, SHRINKAGE = 0.05, 0.5
MAX_DIMENSIONS = 4096  # of embeddings, since the covariance takes their square
FOLDS = 10  # of classes, for the margins of strangers
IMAGES_PER_CLASS, IMAGES = 20, 5_000  # of a background; more change little


class Background(NamedTuple):
    """Images of classes that are not enrolled."""

    rows: np.ndarray  # float32 [B, D], of unit length
    labels: np.ndarray  # int64 [B]


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
        scale = np.trace(covariance) / len(covariance)
        if scale > 0:
            covariance *= 1 - SHRINKAGE
            covariance[np.diag_indices_from(covariance)] += SHRINKAGE * scale
        else:  # one image per class, or equal ones
            covariance = np.eye(len(covariance), dtype=np.float32)
        self._mean = background.rows.mean(axis=0)
        identity = np.eye(len(covariance), dtype=np.float32)
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
    """The similarities s_c of images to the classes of rows float32 [N, D] of unit length, by ascending label.

    `means` are the normalised sums of the rows of each class, float32 [C, D].
    """

    def __init__(self, rows: np.ndarray, labels: np.ndarray):
        order = np.argsort(labels, kind="stable")
        _, self._first = np.unique(labels[order], return_index=True)
        self._rows = rows[order]
        self.means = unit_rows(np.add.reduceat(self._rows, self._first))

    def similarities(self, queries: np.ndarray) -> np.ndarray:
        """Float32 [Q, D] -> float32 [Q, C]."""
        nearest = np.maximum.reduceat(queries @ self._rows.T, self._first, axis=1)
        return (nearest + queries @ self.means.T) / 2


def margins(enrolled: np.ndarray, background: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best enrolled class int [Q] and the margin float32 [Q] of it, from s_c [Q, C] and [Q, B].

    A class with s_c = -inf does not take part; another enrolled one must remain.
    """
    best = enrolled.argmax(axis=1)
    others = np.concatenate([enrolled, background], axis=1).astype(np.float64)
    rows = np.arange(len(best))
    others[rows, best] = -np.inf
    # Less the largest, so that exp does not overflow; there is one, because a background holds a class.
    top = others.max(axis=1)
    soft = top + TEMPERATURE * np.log(np.exp((others - top[:, None]) / TEMPERATURE).sum(axis=1))
    return best, (enrolled[rows, best] - soft).astype(np.float32)


class Scorer:
    """The similarities s_c of images to the classes of an index and of a background.

    `whitening` is fitted on these if it is not given.
    """

    def __init__(
        self, background: Background, enrolled: np.ndarray, labels: np.ndarray, whitening: Whitening | None = None
    ):
        self.whitening = whitening or Whitening(background, enrolled, labels)
        self._others = Classes(self.whitening(background.rows), background.labels)
        self._index = Classes(self.whitening(enrolled), labels)

    def similarities(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Float32 [Q, D] -> [Q, C], the classes of the index in ascending order, and [Q, B]."""
        rows = self.whitening(queries)
        return self._index.similarities(rows), self._others.similarities(rows)


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
