"""What to expect of an index, measured with its own images: some are left out of it, and then classified."""

from typing import NamedTuple

import numpy as np

from dml_jax.evaluation import open_set
from dml_jax.evaluation.background_margin import Background, Scorer, Whitening
from dml_jax.evaluation.open_set import Rule

FOLDS = 10
RATES = (0.01, 0.05, 0.1, 0.2)  # of strangers accepted, in reports


class HeldOut(NamedTuple):
    """Similarities of an index's images, each classified without itself.

    Attributes:
      known: float32 [K], of the images of classes with two images or more.
      right: bool [K], whether the class is right.
      strangers: float32 [N], of all images, without the images of their class; empty if there is only one class.
    """

    known: np.ndarray
    right: np.ndarray
    strangers: np.ndarray


class Point(NamedTuple):
    """Shares of images at a threshold; NaN if there are none to measure it with.

    Attributes:
      false_accept_rate: of the threshold.
      threshold: least similarity of an accepted image.
      right, wrong, unknown: of held-out images of enrolled classes: given their class, another one, or none.
      strangers: of images of other classes that are accepted, as expected from the calibration.
      left_out: of the enrolled images that are accepted when their class is taken out of the index.
    """

    false_accept_rate: float
    threshold: float
    right: float
    wrong: float
    unknown: float
    strangers: float
    left_out: float


def measure(enrolled: np.ndarray, labels: np.ndarray, rule: Rule, background: Background | None = None) -> HeldOut:
    """Classifies a tenth of each class with the other images, in turn, or one image if a class has ten or fewer.

    Args:
      enrolled: float32 [N, D], rows of unit length.
      labels: int [N].
      background: for the rule "background".
    """
    whitening = Whitening(background) if background and rule == "background" else None

    def decide(queries: np.ndarray, kept: np.ndarray, without: np.ndarray | None = None) -> open_set.Decision:
        scorer = Scorer(background, enrolled[kept], labels[kept], whitening) if background and whitening else None
        return open_set.decide(queries, enrolled[kept], labels[kept], rule, without, scorer)

    order = np.lexsort((np.random.default_rng(0).random(len(labels)), labels))
    _, first, place, counts = np.unique(labels[order], return_index=True, return_inverse=True, return_counts=True)
    fold = np.empty(len(labels), np.int64)
    fold[order] = np.where(counts[place] > 1, (np.arange(len(order)) - first[place]) % FOLDS, -1)
    known, right = [np.zeros(0, np.float32)], [np.zeros(0, bool)]
    for i in range(fold.max() + 1):
        found = decide(enrolled[fold == i], fold != i)
        known.append(found.similarities)
        right.append(found.labels == labels[fold == i])
    strangers = np.zeros(0, np.float32)
    if len(counts) > 1:
        strangers = decide(enrolled, np.ones(len(labels), bool), labels).similarities
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
