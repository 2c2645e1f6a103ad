"""What to expect of an index, measured with its own images: some are left out of it, and then classified."""

import zlib
from typing import NamedTuple

import numpy as np

from dml_jax.evaluation import open_set
from dml_jax.evaluation.background_margin import Background, Scorer, Whitening
from dml_jax.evaluation.open_set import Rule

FOLDS = 10
RATES = (0.01, 0.05, 0.1, 0.2)  # of strangers accepted, in reports


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


def measure(enrolled: np.ndarray, labels: np.ndarray, rule: Rule, background: Background | None = None) -> HeldOut:
    """Classifies a tenth of each class with the other images, in turn, or one image if a class has ten or fewer.

    Strangers are a tenth of the classes in turn, so that none determines the map to x' with which it is judged. The
    tenths are drawn by the content of the embeddings, so they do not depend on the order of the classes.

    Args:
      enrolled: float32 [N, D], rows of unit length.
      labels: int [N].
      background: images of other classes, which the rule "background" needs.
    """

    def decide(
        asked: np.ndarray, index: np.ndarray | slice, others: np.ndarray, without: np.ndarray | None = None
    ) -> open_set.Decision:
        scorer = None
        if background is not None and rule == "background":
            whitening = Whitening(background, enrolled[others], labels[others])
            scorer = Scorer(background, enrolled[index], labels[index], whitening)
        return open_set.decide(enrolled[asked], enrolled[index], labels[index], rule, without, scorer)

    draw = np.array([zlib.crc32(row.tobytes()) for row in enrolled])
    order = np.lexsort((draw, labels))
    _, first, place, counts = np.unique(labels[order], return_index=True, return_inverse=True, return_counts=True)
    fold = np.empty(len(labels), np.int64)
    fold[order] = np.where(counts[place] > 1, (np.arange(len(order)) - first[place]) % FOLDS, -1)
    known, right = [np.zeros(0, np.float32)], [np.zeros(0, bool)]
    for i in range(fold.max() + 1):
        asked = fold == i
        found = decide(asked, ~asked, ~asked)
        known.append(found.similarities)
        right.append(found.labels == labels[asked])
    strangers = np.zeros(len(labels) if len(counts) > 1 else 0, np.float32)
    # Tenths of the classes, ranked by the least draw of each.
    fold[order] = np.argsort(np.argsort(draw[order[first]]))[place] % FOLDS
    for i in range(fold.max() + 1) if len(strangers) else ():
        asked = fold == i
        strangers[asked] = decide(asked, slice(None), ~asked, labels[asked]).similarities
    return HeldOut(np.concatenate(known), np.concatenate(right), strangers)


def point(held: HeldOut, false_accept_rate: float, expected: open_set.Expected) -> Point:
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
