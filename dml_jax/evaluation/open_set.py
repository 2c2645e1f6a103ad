"""Open-set classification against enrolled images: decisions, and their error rates on unseen classes.

The similarity of an image to an index is the maximum over all enrolled images, so it grows with the index: a threshold
tuned on single pairs accepts nearly every stranger. `calibrate` therefore simulates the index with images of classes
whose labels are known, and `hold_out` classifies the index's own images, each without itself.
"""

import zlib
from typing import Literal, NamedTuple, get_args

import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import background_margin
from dml_jax.evaluation.background_margin import MAX_DIMENSIONS, Background, Scorer, Whitening

Rule = Literal["nearest", "background"]
RULES: tuple[Rule, ...] = get_args(Rule)
FALSE_ACCEPT_RATE = 0.05
RATES = (0.01, FALSE_ACCEPT_RATE, 0.1, 0.2)  # of strangers accepted, in reports
TRIALS, QUERIES = 100, 100  # simulated indexes; strangers and known images compared with each
FOLDS = 10  # of the index's own images
TOO_FEW = "a threshold needs several unseen classes with two images or more; give a threshold"
NO_BACKGROUND = "decide='background': needs images of other classes, which this index does not hold; enroll again"
BLOCK_ELEMENTS = 1 << 22  # similarities in memory at once


class Decision(NamedTuple):
    """The best class for each of Q images."""

    labels: np.ndarray  # int [Q]
    similarities: np.ndarray  # float32 [Q]; images below a threshold are rejected as strangers
    nearest: np.ndarray  # int [Q], row of the nearest enrolled image of that class


class Calibration(NamedTuple):
    """Cosines of images to the nearest image of simulated indexes."""

    strangers: np.ndarray  # float32 [S], ascending, of images whose class is not enrolled
    known: np.ndarray  # float32 [K], of images whose class is enrolled
    growth: float  # how many times larger the index is than the simulated ones, at least 1
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


class HeldOut(NamedTuple):
    """Similarities of an index's images, each classified without itself."""

    known: np.ndarray  # float32 [K], of the images of classes with two images or more
    right: np.ndarray  # bool [K], whether the class is right
    strangers: np.ndarray  # float32 [N], of all images, without those of their class; empty with one class


class Point(NamedTuple):
    """Shares of images at a threshold; NaN if there are none to measure it with."""

    false_accept_rate: float  # that the threshold was set for
    threshold: float  # least similarity of an accepted image
    right: float  # held-out images of enrolled classes that are given their class,
    wrong: float  # another one,
    unknown: float  # or none
    strangers: float  # images of other classes that are accepted, as expected from the calibration
    left_out: float  # enrolled images that are accepted when their class is taken out of the index


def decide(
    queries: np.ndarray,
    enrolled: np.ndarray,
    labels: np.ndarray,
    scorer: Scorer | None = None,
    without: np.ndarray | None = None,
) -> Decision:
    """Assigns a class to each query.

    Args:
      queries: float32 [Q, D], rows of unit length, like the rows of `enrolled`.
      enrolled: float32 [N, D], with labels int [N].
      scorer: of the enrolled images and a background, for the rule "background": the class with the largest margin
        over all other classes and the background. Without it, the rule is "nearest": the class of the nearest enrolled
        image, whose cosine is the similarity.
      without: int [Q], a class that each query ignores; another one must remain.
    """
    classes, position = np.unique(labels, return_inverse=True)
    best = np.empty(len(queries), np.int64)
    similarity, nearest = np.empty(len(queries), np.float32), np.empty(len(queries), np.int64)
    step = max(1, BLOCK_ELEMENTS // len(enrolled))
    for start in range(0, len(queries), step):
        rows = slice(start, start + step)
        cosines = queries[rows] @ enrolled.T
        if without is not None:
            cosines[labels == without[rows, None]] = -np.inf
        if scorer is None:
            nearest[rows] = cosines.argmax(axis=1)
            best[rows] = position[nearest[rows]]
            # Products of rows of unit length exceed 1 by rounding.
            similarity[rows] = np.take_along_axis(cosines, nearest[rows, None], axis=1)[:, 0].clip(-1, 1)
        else:
            to_classes, to_others = scorer.similarities(queries[rows])
            if without is not None:
                to_classes[classes == without[rows, None]] = -np.inf
            best[rows], similarity[rows] = background_margin.margins(to_classes, to_others)
            nearest[rows] = np.where(position == best[rows, None], cosines, -np.inf).argmax(axis=1)
    return Decision(classes[best], similarity, nearest)


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
    about the similarities, which differ between classes and are correlated within them. It is seeded.

    The index may be larger than the split: at most all classes but one can be enrolled, and, without a gallery, all
    images of a class but one. `growth` accounts for the rest: the chance of accepting a stranger grows at most in
    proportion to the number of images, since every part of the simulated size is equally likely to accept one.

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
    rng = np.random.default_rng(0)
    drawn = min(len(sizes) + 1, len(names))
    asked, of_strangers, of_known, wanted, enrolled = [], [], [], 0, 0
    for _ in range(TRIALS if drawn > 1 else 0):
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
        scores = decide(queries, source[rows], source_labels[rows], without=chosen[ignored]).similarities
        asked.append(strangers)
        of_strangers.append(scores[: len(strangers)])
        of_known.append(scores[len(strangers) :])
    if not any(map(len, of_known)):
        raise DataError(TOO_FEW)
    images = np.unique(np.concatenate(asked))
    return Calibration(
        strangers=np.sort(np.concatenate(of_strangers)),
        known=np.concatenate(of_known),
        growth=max(len(sizes) / (drawn - 1) * wanted / enrolled, 1.0),
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


def expect(calibration: Calibration, false_accept_rate: float) -> Expected:
    """The lowest cosine whose expected false accept rate, in (0, 1), does not exceed the given one."""
    strangers, known, growth, images, classes, _ = calibration
    return _expected(strangers, known, false_accept_rate, growth, images, classes)


def expect_margin(
    background: Background, strangers: np.ndarray, known: np.ndarray, false_accept_rate: float
) -> Expected:
    """As `expect`, for the margins of strangers [B] and of images of enrolled classes [K], without simulation."""
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
        false_rejects=_share(known < threshold),
        growth=growth,
        images=images,
        classes=classes,
    )


def hold_out(enrolled: np.ndarray, labels: np.ndarray, background: Background | None = None) -> HeldOut:
    """Classifies a tenth of each class with the other images, in turn, or one image if a class has ten or fewer.

    Strangers are a tenth of the classes in turn, so that none determines the map to x' with which it is judged. The
    tenths are drawn by the content of the embeddings, so they do not depend on the order of the classes.

    Args:
      enrolled: float32 [N, D], rows of unit length.
      labels: int [N].
      background: images of other classes for the rule "background"; without it, the rule is "nearest".
    """

    def classify(
        asked: np.ndarray, index: np.ndarray | slice, others: np.ndarray, without: np.ndarray | None = None
    ) -> Decision:
        scorer = None
        if background is not None:
            whitening = Whitening(background, enrolled[others], labels[others])
            scorer = Scorer(background, enrolled[index], labels[index], whitening)
        return decide(enrolled[asked], enrolled[index], labels[index], scorer, without)

    draw = np.array([zlib.crc32(row.tobytes()) for row in enrolled])
    order = np.lexsort((draw, labels))
    _, first, place, counts = np.unique(labels[order], return_index=True, return_inverse=True, return_counts=True)
    fold = np.empty(len(labels), np.int64)
    fold[order] = np.where(counts[place] > 1, (np.arange(len(order)) - first[place]) % FOLDS, -1)
    known, right = [np.zeros(0, np.float32)], [np.zeros(0, bool)]
    for i in range(fold.max() + 1):
        asked = fold == i
        found = classify(asked, ~asked, ~asked)
        known.append(found.similarities)
        right.append(found.labels == labels[asked])
    strangers = np.zeros(len(labels) if len(counts) > 1 else 0, np.float32)
    # Tenths of the classes, ranked by the least draw of each.
    fold[order] = np.argsort(np.argsort(draw[order[first]]))[place] % FOLDS
    for i in range(fold.max() + 1) if len(strangers) else ():
        asked = fold == i
        strangers[asked] = classify(asked, slice(None), ~asked, labels[asked]).similarities
    return HeldOut(np.concatenate(known), np.concatenate(right), strangers)


def point(held: HeldOut, false_accept_rate: float, expected: Expected) -> Point:
    """The shares at an expected threshold."""
    accepted = held.known >= expected.threshold
    return Point(
        false_accept_rate=false_accept_rate,
        threshold=expected.threshold,
        right=_share(accepted & held.right),
        wrong=_share(accepted & ~held.right),
        unknown=_share(~accepted),
        strangers=expected.false_accepts,
        left_out=_share(held.strangers >= expected.threshold),
    )


def _share(chosen: np.ndarray) -> float:
    return float(chosen.mean()) if len(chosen) else float("nan")


def check(rule: str, false_accept_rate: float, threshold: float | None = None) -> None:
    """Raises DataError unless the rule is one of `RULES`, the rate between 0 and 1 and the threshold a cosine."""
    if rule not in RULES:
        raise DataError(f"decide={rule!r}: is not a decision rule; give one of {', '.join(RULES)}")
    if not 0 < false_accept_rate < 1:
        raise DataError(f"false_accept_rate={false_accept_rate:g}: must be above 0 and below 1; e.g. 0.01")
    if threshold is not None and not -1 <= threshold <= 1:
        raise DataError(f"threshold={threshold:g}: must be a cosine in -1..1")
