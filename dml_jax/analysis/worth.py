"""What corrections and further photographs would gain, from embeddings and labels alone."""

from collections.abc import Sequence

import numpy as np

from dml_jax.data.split import Split
from dml_jax.errors import counted, listed, printable
from dml_jax.evaluation import doubtful_labels
from dml_jax.evaluation.doubtful_labels import Doubts

LIKELY = 0.5  # probability from which a wrong label counts as one correction


def sentences(
    rows: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    sessions: np.ndarray,
    doubts: Doubts,
    wrong: np.ndarray,
) -> list[str]:
    """Sentences about labels to correct and classes to photograph again.

    Args:
      rows: float32 [N, D], see `doubtful_labels.spread`.
      labels: int [N], positions in `classes`; -1 for images of no class.
      sessions: int [N], e.g. the days of the photographs; -1 if unknown.
      doubts: those about the labels.
      wrong: bool [N], the labels that are likely to be wrong.
    """
    advice, names = list[str](), list(map(printable, classes))
    if wrong.any():
        corrected = np.where(wrong, doubts.proposed, labels)
        shares = (_right(rows, each, sessions, ~wrong) for each in (labels, corrected))
        before, after = (f"{share:.1%}" for share in shares)
        advice.append(
            f"probably wrong: {counted(int(wrong.sum()), 'label')}; of the other images, {before} "
            f"are nearest to their own class, and {after} after these corrections"
        )
    pairs = np.unique(np.stack([labels, sessions])[:, labels >= 0], axis=1)
    present, counts = np.unique(pairs[0], return_counts=True)
    lone = present[(counts == 1) & np.isin(present, pairs[0][pairs[1] >= 0])].tolist()
    if lone:
        advice.append(
            f"photograph {listed([names[k] for k in lone], 4)} on another day: all images of "
            f"{counted(len(lone), 'class')} are from one day and say nothing about later ones"
        )
    return advice


def of_split(split: Split, rows: np.ndarray) -> list[str]:
    """The sentences for the images of a split and their embeddings float32 [N, D]."""
    spread = doubtful_labels.spread(rows)
    doubts = doubtful_labels.find(spread, split.labels)
    probability = doubtful_labels.calibrate(spread, split.labels, doubts.doubt)
    wrong = (
        np.zeros(len(rows), bool) if probability is None else probability(doubts.doubt) >= LIKELY
    )
    names = np.array(split.metadata.get("session", [""] * len(rows)), np.str_)
    sessions = np.where(names == "", -1, np.unique(names, return_inverse=True)[1])
    return sentences(spread, split.labels, split.classes, sessions, doubts, wrong)


def _right(rows: np.ndarray, labels: np.ndarray, sessions: np.ndarray, among: np.ndarray) -> float:
    """The share of the images `among` that are nearest to the mean of their class, which is that
    of other sessions if these are known."""
    groups = np.where(sessions >= 0, sessions, -1 - np.arange(len(labels)))
    doubt = doubtful_labels.find(rows, labels, groups).doubt
    compared = np.isfinite(doubt) & among
    return float((doubt[compared] <= 0).mean()) if compared.any() else np.nan
