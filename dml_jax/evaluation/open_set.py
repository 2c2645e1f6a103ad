"""Open-set classification against enrolled images: decision rules, and their error rates on unseen classes.

The similarity of an image to an index is the maximum over all enrolled images, so it grows with the index: a threshold
tuned on single pairs accepts nearly every stranger. `calibrate` therefore simulates the index with images of classes
whose labels are known.
"""

from typing import Literal, NamedTuple, get_args

import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import background_margin
from dml_jax.evaluation.background_margin import MAX_DIMENSIONS, Background, Classes, Scorer

Rule = Literal["nearest", "vote", "mean", "background"]
RULES: tuple[Rule, ...] = get_args(Rule)
COSINE_RULES = RULES[:3]  # whose similarities are cosines; those that `calibrate` simulates
VOTES = 5  # nearest images that vote
FALSE_ACCEPT_RATE = 0.05
TRIALS, QUERIES = 100, 100  # simulated indexes; strangers and known images compared with each
TOO_FEW = "a threshold needs several unseen classes with two images or more; give a threshold"
NO_BACKGROUND = "decide='background': needs images of other classes, which this index does not hold; enroll again"
BLOCK_ELEMENTS = 1 << 22  # similarities in memory at once


class Decision(NamedTuple):
    """The best class for each of Q images."""

    labels: np.ndarray  # int [Q]
    similarities: np.ndarray  # float32 [Q]; images below a threshold are rejected as strangers
    nearest: np.ndarray  # int [Q], row of the nearest enrolled image of that class


class Calibration(NamedTuple):
    """Cosines of images to simulated indexes, by rule; rows as in `COSINE_RULES`."""

    strangers: np.ndarray  # float32 [3, S], ascending, of images whose class is not enrolled
    known: np.ndarray  # float32 [3, K], of images whose class is enrolled
    growth: np.ndarray  # float64 [3], how many times larger the index is than the simulated ones, at least 1
    images: int  # different images among the strangers
    classes: int  # different classes among the strangers
    background: Background | None = None  # for the rule "background"; None for more than `MAX_DIMENSIONS`


class Expected(NamedTuple):
    """Expected error rates of a threshold."""

    threshold: float  # least similarity of an accepted image
    false_accepts: float  # fraction of strangers accepted; an upper bound if `growth` exceeds 1
    false_rejects: float  # fraction of images of enrolled classes rejected
    growth: float  # how many times larger the index is than the simulated ones, at least 1
    images: int  # different images among the strangers
    classes: int  # different classes among the strangers


def decide(
    queries: np.ndarray,
    enrolled: np.ndarray,
    labels: np.ndarray,
    rule: Rule,
    without: np.ndarray | None = None,
    scorer: Scorer | None = None,
) -> Decision:
    """Assigns a class to each query.

    - "nearest": the class of the nearest enrolled image; the similarity is the cosine to it.
    - "vote": the most frequent class among the 5 nearest enrolled images, ties to the one with the nearest image; the
      similarity is the cosine to its nearest image.
    - "mean": the class with the nearest mean, the normalised sum of its images; the similarity is the cosine to it.
    - "background": the most similar class; the similarity is its margin over all other classes and the background.

    Args:
      queries: float32 [Q, D], rows of unit length, like the rows of `enrolled`.
      enrolled: float32 [N, D], with labels int [N].
      without: int [Q], a class that each query ignores; another one must remain.
      scorer: made of the enrolled images and a background; the rule "background" needs it.
    """
    classes, position = np.unique(labels, return_inverse=True)
    means = Classes(enrolled, labels).means if rule == "mean" else None
    best = np.empty(len(queries), np.int64)
    similarity, nearest = np.empty(len(queries), np.float32), np.empty(len(queries), np.int64)
    step = max(1, BLOCK_ELEMENTS // len(enrolled))
    for start in range(0, len(queries), step):
        rows = slice(start, start + step)
        cosines = queries[rows] @ enrolled.T
        if without is not None:
            cosines[labels == without[rows, None]] = -np.inf
        if rule == "background":
            assert scorer is not None
            to_classes, to_others = scorer.similarities(queries[rows])
            if without is not None:
                to_classes[classes == without[rows, None]] = -np.inf
            best[rows], similarity[rows] = background_margin.margins(to_classes, to_others)
            nearest[rows] = np.where(position == best[rows, None], cosines, -np.inf).argmax(axis=1)
        elif means is not None:
            to_means = queries[rows] @ means.T
            if without is not None:
                to_means[classes == without[rows, None]] = -np.inf
            best[rows], similarity[rows] = to_means.argmax(axis=1), to_means.max(axis=1)
            nearest[rows] = np.where(position == best[rows, None], cosines, -np.inf).argmax(axis=1)
        else:
            nearest[rows] = cosines.argmax(axis=1) if rule == "nearest" else _majority_image(cosines, position)
            best[rows] = position[nearest[rows]]
            similarity[rows] = np.take_along_axis(cosines, nearest[rows, None], axis=1)[:, 0]
    if rule != "background":
        similarity = similarity.clip(-1, 1)  # products of rows of unit length exceed it by rounding
    return Decision(classes[best], similarity, nearest)


def _majority_image(cosines: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Column of the nearest image of the most frequent class among the `VOTES` nearest images."""
    votes = min(VOTES, cosines.shape[1])
    columns = np.sort(np.argpartition(-cosines, votes - 1, axis=1)[:, :votes], axis=1)
    values = np.take_along_axis(cosines, columns, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    columns, values = (np.take_along_axis(array, order, axis=1) for array in (columns, values))
    voters = position[columns]
    # Images of an ignored class, at minus infinity, do not vote.
    agree = (voters[:, :, None] == voters[:, None, :]) & np.isfinite(values)[:, None, :]
    winner = agree.sum(axis=2).argmax(axis=1)
    return np.take_along_axis(columns, winner[:, None], axis=1)[:, 0]


def calibrate(
    embeddings: np.ndarray,
    labels: np.ndarray,
    sizes: np.ndarray,
    gallery: tuple[np.ndarray, np.ndarray] | None = None,
) -> Calibration:
    """Simulates an index with images of classes that were not trained on, and measures their similarities to it.

    Each of `TRIALS` trials draws one class more than the index has and enrolls as many random images of each as a
    random class of the index has. Other images are classified as strangers, without their own class, or as known
    images, without a random other class, so both see as many classes as the index has. Simulation needs no assumption
    about the similarities, which differ between classes and are correlated within them. It is seeded. Besides the
    embeddings, memory holds those of one simulated index and `BLOCK_ELEMENTS` similarities.

    The index may be larger than the split: at most all classes but one can be enrolled, and, without a gallery, all
    images of a class but one. `growth` accounts for the rest: the chance of accepting a stranger grows at most in
    proportion to the index, since every part of the simulated size is equally likely to accept one. The size is the
    number of images for "nearest" and "vote", of classes for "mean", as a mean hardly moves with more images.

    Args:
      embeddings: float32 [N, D], rows of unit length.
      labels: int [N].
      sizes: int [C], number of enrolled images of each class of the index.
      gallery: embeddings and labels of the images to enroll; by default they are taken from those above.

    Raises:
      DataError: fewer than two classes, or no class with one image to enroll and another to classify.
    """
    source, source_labels = (embeddings, labels) if gallery is None else gallery
    names, source_labels, available = np.unique(source_labels, return_inverse=True, return_counts=True)
    own = np.where(np.isin(labels, names), np.searchsorted(names, labels), -1)
    usable = available if gallery is not None else np.maximum(available - 1, 1)
    if len(names) < 2 or not (own >= 0).any() or (gallery is None and available.max() < 2):
        raise DataError(TOO_FEW)
    rng = np.random.default_rng(0)
    drawn = min(len(sizes) + 1, len(names))
    asked, similarities, wanted, enrolled = [], [], 0, 0
    for _ in range(TRIALS):
        chosen = rng.permutation(len(names))[:drawn]
        counts = np.zeros(len(names), np.int64)
        counts[chosen] = rng.choice(sizes, drawn)
        rows = _random_rows(source_labels, np.minimum(counts, usable), rng)
        wanted, enrolled = wanted + int(counts.sum()), enrolled + len(rows)
        free = rng.permutation(len(labels) if gallery is not None else np.delete(np.arange(len(labels)), rows))
        slot = np.full(len(names) + 1, -1)  # position in `chosen`; the last entry is for classes outside the gallery
        slot[chosen] = np.arange(drawn)
        strangers, known, ignored = _sample_queries(free, slot[own], drawn, rng)
        queries = embeddings[np.concatenate([strangers, known])]
        scores = [
            decide(queries, source[rows], source_labels[rows], rule, chosen[ignored]).similarities
            for rule in COSINE_RULES
        ]
        asked.append(strangers)
        similarities.append(np.split(np.stack(scores), [len(strangers)], axis=1))
    if not any(known.size for _, known in similarities):
        raise DataError(TOO_FEW)
    images = np.unique(np.concatenate(asked))
    classes = len(sizes) / (drawn - 1)
    growth = {"nearest": classes * wanted / enrolled, "vote": classes * wanted / enrolled, "mean": classes}
    return Calibration(
        strangers=np.sort(np.concatenate([scores for scores, _ in similarities], axis=1)),
        known=np.concatenate([scores for _, scores in similarities], axis=1),
        growth=np.maximum([growth[rule] for rule in COSINE_RULES], 1),
        images=len(images),
        classes=len(np.unique(labels[images])),
        background=background_margin.choose(embeddings, labels) if embeddings.shape[1] <= MAX_DIMENSIONS else None,
    )


def _random_rows(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows of `counts[c]` random images of each class c, with labels in 0..C-1."""
    order = np.lexsort((rng.random(len(labels)), labels))  # by class, in random order within each
    first = np.searchsorted(labels[order], np.arange(len(counts)))
    rank = np.arange(len(labels)) - first[labels[order]]
    return order[rank < counts[labels[order]]]


def _sample_queries(
    free: np.ndarray, slots: np.ndarray, drawn: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images to classify as strangers and as known ones, and the enrolled class each ignores; slot -1 for none."""
    strangers, known = free[:QUERIES], free[slots[free] >= 0][:QUERIES]
    own_or_any = np.where(slots[strangers] >= 0, slots[strangers], rng.integers(drawn, size=len(strangers)))
    other = (slots[known] + rng.integers(1, drawn, size=len(known))) % drawn
    return strangers, known, np.concatenate([own_or_any, other])


def expect(calibration: Calibration, rule: Rule, false_accept_rate: float) -> Expected:
    """The lowest threshold whose expected false accept rate, in (0, 1), does not exceed the given one.

    Args:
      rule: one of `COSINE_RULES`; see `expect_margin` for the other.
    """
    row = COSINE_RULES.index(rule)
    growth = float(calibration.growth[row])
    return _expected(
        calibration.strangers[row], calibration.known[row], false_accept_rate,
        growth, calibration.images, calibration.classes,
    )  # fmt: skip


def expect_margin(
    background: Background, strangers: np.ndarray, known: np.ndarray, false_accept_rate: float
) -> Expected:
    """As `expect`, for the rule "background" and the index itself, without simulation.

    Args:
      strangers: float32 [B], see `background_margin.of_strangers`.
      known: float32 [K], margins of images of enrolled classes, e.g. of `held_out.measure`.
    """
    classes = len(np.unique(background.labels))
    return _expected(np.sort(strangers), known, false_accept_rate, 1.0, len(background.labels), classes)


def _expected(
    strangers: np.ndarray, known: np.ndarray, rate: float, growth: float, images: int, classes: int
) -> Expected:
    highest_rejected = strangers[len(strangers) - 1 - int(rate / growth * len(strangers))]
    threshold = np.nextafter(highest_rejected, np.float32(np.inf))
    return Expected(
        threshold=float(threshold),
        false_accepts=growth * float((strangers >= threshold).mean()),
        false_rejects=float((known < threshold).mean()) if len(known) else float("nan"),
        growth=growth,
        images=images,
        classes=classes,
    )


def check(rule: str, false_accept_rate: float, threshold: float | None = None) -> None:
    """Raises DataError unless the rule is one of `RULES`, the rate between 0 and 1 and the threshold a cosine."""
    if rule not in RULES:
        raise DataError(f"decide={rule!r}: is not a decision rule; give one of {', '.join(RULES)}")
    if not 0 < false_accept_rate < 1:
        raise DataError(f"false_accept_rate={false_accept_rate:g}: must be above 0 and below 1; e.g. 0.01")
    if threshold is not None and not -1 <= threshold <= 1:
        raise DataError(f"threshold={threshold:g}: must be a cosine in -1..1")
