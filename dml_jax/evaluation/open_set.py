"""Open-set classification: each image gets the most probable enrolled class, or "unknown".

The classifier is fitted to the enrolled images and to others, images of classes that are not
enrolled. With S, the covariance of all of them within their classes, mu, their mean, and w =
`SHRINKAGE`, an image x becomes

    x' = V^T L^-1 (x - mu),    L L^T = (1 - w) S + w trace(S) / D I,

divided by its length, where V spans the means of the whitened classes: linear discriminants with
within-class covariance normalisation (Hatch, Kajarekar and Stolcke, "Within-Class Covariance
Normalization for SVM-Based Speaker Recognition", 2006). Its scores are those of scikit-learn's
logistic regression with every enrolled and every other class as a class or, for more than `LARGEST`
images times classes or fewer than two images a class, its cosines to the mean of each class over
`COSINE`.

The probability of a class is a softmax over the scores of the enrolled classes, for images of
enrolled classes. Its temperature is the one that suits whole sessions that were left out best
(Guo et al., "On Calibration of Modern Neural Networks", 2017). The margin by which strangers,
images of other classes, are rejected is the log-odds of the best enrolled class b in a softmax over
the scores s_c of all classes: s_b - log sum_{c != b} exp(s_c).

What to expect is measured on sessions and classes that were left out (`measure`), see
`expectations`.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from scipy import linalg, special
from scipy.sparse import csgraph

from dml_jax.evaluation.unit_rows import unit_rows

SHRINKAGE, INVERSE_PENALTY, COSINE = 0.5, 1.0, 0.05
LARGEST = 2_000_000  # images times classes for logistic regression: seconds
FOLDS = 5  # parts of the classes of strangers, and of each class's sessions, that are left out
NEAR_COPY = 0.95  # cosine of two images that count as one session if their sessions are unknown
IMAGES_PER_CLASS, IMAGES = 20, 5_000  # limits of the others; more images change little
OCTAVE = 12  # temperatures from one to its double
TEMPERATURES = 2 ** (np.arange(-40, 41) / OCTAVE)  # 0.1 to 10
BLOCK_SCORES = 1 << 18  # scores that are reduced at once, in a processor's cache


class Photographs(NamedTuple):
    """Embeddings of labelled photographs."""

    rows: np.ndarray  # float32 [N, D], of unit length
    labels: np.ndarray  # int64 [N], or names of classes
    sessions: np.ndarray  # strings [N], "" if unknown

    def where(self, chosen: np.ndarray) -> "Photographs":
        """The photographs of a mask [N] or of positions."""
        return Photographs(*(part[chosen] for part in self))


def choose(photographs: Photographs) -> Photographs:
    """Those of random classes: at most `IMAGES_PER_CLASS` random images each, `IMAGES` in all."""
    rng = np.random.default_rng(0)
    labels = photographs.labels
    order = np.lexsort((rng.random(len(labels)), labels))
    names, first, place = np.unique(labels[order], return_index=True, return_inverse=True)
    order = order[np.arange(len(order)) - first[place] < IMAGES_PER_CLASS]
    classes = rng.permutation(names)[: max(2, IMAGES // IMAGES_PER_CLASS)]
    return photographs.where(order[np.isin(labels[order], classes)])


def session_groups(photographs: Photographs) -> np.ndarray:
    """Number of the session of each image within its class: int [N]; near-copies share a session
    if theirs are unknown."""
    groups = np.zeros(len(photographs.labels), np.int64)
    for label in np.unique(photographs.labels):
        same_class = np.flatnonzero(photographs.labels == label)
        rows, names = photographs.rows[same_class], photographs.sessions[same_class]
        unknown = (names == "")[:, None] & (names == "")
        alike = np.where(unknown, rows @ rows.T > NEAR_COPY, names[:, None] == names)
        np.fill_diagonal(alike, True)
        groups[same_class] = csgraph.connected_components(alike, directed=False)[1]
    return groups


def of_near_copies(share: float, option: str) -> str:
    """A warning for photographs whose sessions are unknown."""
    return (
        f"the nearest image of {100 * share:.1f} % of the queries is a near-copy (cosine above "
        f"{NEAR_COPY}), so the figures hold for photographs taken together; use {option} to state "
        "which were, so that these are left out"
    )


class Classifier(NamedTuple):
    """The scores of C classes, affine functions of K discriminants."""

    mean: np.ndarray  # float32 [D]
    projection: np.ndarray  # float32 [D, K]
    weights: np.ndarray  # float32 [C, K]
    intercepts: np.ndarray  # float32 [C]

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """Scores float32 [Q, C] of images, float32 [Q, D]."""
        return unit_rows((rows - self.mean) @ self.projection) @ self.weights.T + self.intercepts


def fit(rows: np.ndarray, labels: np.ndarray) -> Classifier:
    """The classifier of images, float32 [N, D], for their classes, int [N], in ascending order."""
    names, position, counts = np.unique(labels, return_inverse=True, return_counts=True)
    mean, identity = rows.mean(axis=0), np.eye(rows.shape[1], dtype=np.float32)
    residuals = rows - _means(rows, position, counts)[position]
    covariance = residuals.T @ residuals / len(rows)
    # Without differences within classes, there is nothing to normalise.
    scale = max(np.trace(covariance) / len(covariance), 1e-12)
    covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * scale * identity
    matrix = linalg.solve_triangular(np.linalg.cholesky(covariance), identity, lower=True).T
    whitened = unit_rows((rows - mean) @ matrix)
    span = np.linalg.qr(_means(whitened, position, counts).T)[0]
    discriminants = unit_rows(whitened @ span)
    many = len(rows) * len(names) > LARGEST
    if len(names) == 1 or many or 2 * len(names) > len(rows):
        weights = unit_rows(_means(discriminants, position, counts)) / COSINE
        intercepts = np.zeros(len(names))
    else:
        from sklearn.linear_model import LogisticRegression  # takes a second to import

        model = LogisticRegression(C=INVERSE_PENALTY, class_weight="balanced", max_iter=1000)
        regression = model.fit(discriminants, position)
        weights, intercepts = regression.coef_, regression.intercept_
        if len(names) == 2:  # it has the scores of the second class against the first
            weights, intercepts = (np.concatenate([-x, x]) / 2 for x in (weights, intercepts))
    arrays = mean, matrix @ span, weights, intercepts
    return Classifier(*(array.astype(np.float32) for array in arrays))


def _means(rows: np.ndarray, position: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The mean [C, D] of the rows [N, D] of each class, where `position` [N] is that of a row."""
    sums = np.zeros((len(counts), rows.shape[1]), np.float32)
    np.add.at(sums, position, rows)
    return sums / counts[:, None].astype(np.float32)


def margins(scores: np.ndarray, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best of the candidates bool [(Q,) C] int [Q], and its margin over all other classes.

    Scores of classes that the classifier does not know are -inf. Without any other class, there is
    nothing to compare with, and the margin is 0.
    """
    scores = scores.astype(np.float64)
    best = np.where(candidates, scores, -np.inf).argmax(axis=1)
    place = np.arange(len(best)), best
    own, scores[place] = scores[place], -np.inf
    others = special.logsumexp(scores, axis=1)
    return best, np.where(np.isfinite(others), own - others, 0).astype(np.float32)


def probabilities(scores: np.ndarray, candidates: np.ndarray, temperature: float) -> np.ndarray:
    """The probability float64 [Q, C] of each class for images of the candidates bool [(Q,) C]."""
    scaled = np.where(candidates, scores.astype(np.float64) / temperature, -np.inf)
    return np.asarray(special.softmax(scaled, axis=1))


def log_sums(scores: np.ndarray) -> np.ndarray:
    """log sum_c exp(s_c / t) of scores float64 [Q, C] for each t of `TEMPERATURES`: [Q, T].

    Halving a temperature squares the exponentials, so only `OCTAVE` of them are computed.
    """
    highest = scores.max(axis=1, keepdims=True)
    sums = np.empty((len(scores), len(TEMPERATURES)))
    for last in range(len(TEMPERATURES) - OCTAVE, len(TEMPERATURES)):
        terms = np.exp((scores - highest) / TEMPERATURES[last])
        for i in range(last, -1, -OCTAVE):
            sums[:, i] = terms.sum(axis=1)
            terms *= terms
    return np.log(sums) + highest / TEMPERATURES


# Answers to images that the classifier was not fitted to: of enrolled classes and of others.
ANSWERS = np.dtype(
    [
        ("margin", np.float32),
        ("probability", np.float32),  # of the best class
        ("label", np.int64),  # right class
        ("rank", np.int64),  # of the right class among all; 0 if it is the best
    ]
)


class Measured(NamedTuple):
    """What is known about a classifier from images that it was not fitted to."""

    known: np.ndarray  # ANSWERS [K]
    strangers: np.ndarray  # ANSWERS [S], all of rank 0
    temperature: np.ndarray  # float64 [], of the softmax of all probabilities


def measure(photographs: Photographs, enrolled: int, playing: np.ndarray) -> Measured:
    """Answers to images whose session or class is left out of the classifier in turn.

    A session is left out for all classes, and tested in those of which it holds at most half of the
    images, if half of the enrolled classes have others. Other classes count as enrolled then, with
    as many images and sessions as the median enrolled class. No image takes part in the covariance
    by which it is judged (cross-conformal prediction by classes: Vovk, "Cross-conformal
    predictors", 2015).

    Args:
      photographs: of the enrolled classes, 0 to `enrolled` - 1, and of others, all numbers in use.
      playing: classes int [P], of either kind, whose images are strangers.
    """
    labels, groups = photographs.labels, session_groups(photographs)
    turns = _without_sessions(photographs, groups, enrolled)
    known, own, best, sums = _answers(photographs, enrolled, turns, known=True)
    place = int(TEMPERATURES.searchsorted(1))
    if len(known):
        place = int(_surprise(own, best, sums).argmin())
    temperature = TEMPERATURES[place]
    known["probability"] = np.exp(best / temperature - sums[:, place])

    order = np.random.default_rng(0).permutation(playing)
    folds = len(playing) if len(playing) <= 2 * FOLDS else FOLDS
    parts = (np.isin(labels, order[fold::folds]) for fold in range(folds))
    out = ((part, np.flatnonzero(~part)) for part in parts)
    strangers, _, best, sums = _answers(photographs, enrolled, out, known=False)
    strangers["probability"] = np.exp(best / temperature - sums[:, place])
    return Measured(known, strangers, np.array(temperature))


def _without_sessions(
    photographs: Photographs, groups: np.ndarray, enrolled: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each part of the sessions: the queries, bool [N], and the positions of the images to
    which the classifier is fitted."""
    _, labels, sessions = photographs
    names = np.unique(sessions, return_inverse=True)[1]
    fold_of = np.where(sessions == "", groups, names) % FOLDS
    pairs = np.unique(np.stack([labels, groups]), axis=1)[0]
    most_images, most_sessions = (
        int(np.median(np.bincount(each)[:enrolled])) for each in (labels, pairs)
    )
    for fold in np.unique(fold_of):
        remain = fold_of != fold
        share = np.bincount(labels, ~remain) / np.bincount(labels)
        parts = [np.flatnonzero(remain & (labels < enrolled))]
        for label in range(enrolled, labels.max() + 1):
            own = np.flatnonzero(remain & (labels == label))
            like_enrolled = np.isin(groups[own], np.unique(groups[own])[:most_sessions])
            parts.append(own[like_enrolled][:most_images])
        yield ~remain & (share[labels] <= 0.5), np.concatenate(parts)


def _answers(
    photographs: Photographs,
    enrolled: int,
    turns: Iterable[tuple[np.ndarray, np.ndarray]],
    *,
    known: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The answers, without probabilities, to the queries of each turn, by a classifier of the
    images that remain; the scores [A] of the right and of the best class; and `log_sums` [A, T].

    The images of other classes count as enrolled if they are `known`. Turns without most of the
    enrolled classes do not count.
    """
    rows, labels, _ = photographs
    tested, answers = np.zeros(len(rows), bool), np.zeros(len(rows), ANSWERS)
    own, highest = np.zeros((2, len(rows)))
    sums = np.zeros((len(rows), len(TEMPERATURES)))
    for queries, remaining in turns:
        classes = np.unique(labels[remaining])
        if not queries.any() or 2 * np.sum(classes < enrolled) < enrolled:
            continue
        classifier = fit(rows[remaining], labels[remaining])
        tested |= queries
        positions, step = np.flatnonzero(queries), max(1, BLOCK_SCORES // len(classes))
        for block in (positions[i : i + step] for i in range(0, len(positions), step)):
            scores, right = classifier.scores(rows[block]), labels[block, None]
            candidates = (classes < enrolled) | (known & (classes == right))
            best, answers["margin"][block] = margins(scores, candidates)
            among = np.where(candidates, scores.astype(np.float64), -np.inf)
            own[block] = highest[block] = among[np.arange(len(block)), best]
            if known:
                own[block] = among[classes == right]
            answers["rank"][block] = (among > own[block, None]).sum(axis=1)
            sums[block] = log_sums(among)
    answers["label"] = labels
    return answers[tested], own[tested], highest[tested], sums[tested]


def _surprise(own: np.ndarray, best: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """The negative log-likelihood [T] of the right classes, and of one more answer of mean
    probability that is wrong: a few right answers make none certain.

    Args:
      own, best: scores [A] of the right and of the best class.
      sums: [A, T], see `log_sums`.
    """
    right, highest = (np.exp(each[:, None] / TEMPERATURES - sums) for each in (own, best))
    wrong = 1 - highest.mean(axis=0)
    return np.asarray(-np.log(np.maximum([*right, wrong], 1e-12)).sum(axis=0))
