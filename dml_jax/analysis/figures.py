"""Building blocks of several figures: principal components, points by class, rows of retrieved images."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dml_jax.analysis import drawing
from dml_jax.analysis.drawing import CORRECT, GREY, INK, WRONG

if TYPE_CHECKING:
    from matplotlib.axes import Axes

QUERIES, NEIGHBORS = 10, 8  # rows and columns of the retrieval grid


def principal_components(embeddings: np.ndarray, dimensions: int = 2) -> np.ndarray:
    """Projects rows [N, D] onto their first principal components: [N, dimensions], zero beyond the D-th."""
    centred = embeddings - embeddings.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)  # by increasing eigenvalue
    projected = centred @ axes[:, ::-1][:, :dimensions]
    return np.pad(projected, ((0, 0), (0, dimensions - projected.shape[1])))


def largest(labels: np.ndarray) -> list[int]:
    """The classes that maps show in colour, increasing: the most frequent ones in labels int [N]."""
    counts = np.bincount(labels)
    return sorted(int(c) for c in np.argsort(-counts, kind="stable")[: len(drawing.SERIES)] if counts[c])


def scatter_classes(
    axes: "Axes", points: np.ndarray, labels: np.ndarray, classes: Sequence[str], shown: Sequence[int]
) -> None:
    """Draws points [N, 2]: at most `drawing.KINDS` classes with a colour and marker each, the others in grey.

    Labels int [N] and those `shown` are indices into the class names.
    """
    rest = ~np.isin(labels, shown)
    axes.scatter(points[rest, 0], points[rest, 1], s=4, color=GREY, linewidths=0, alpha=0.5)
    for kind, label in enumerate(shown):
        x, y = points[labels == label].T
        colour, marker = drawing.look(kind)
        axes.scatter(
            x, y, s=12, linewidths=0, color=drawing.SERIES[colour], marker=drawing.MARKERS[marker], alpha=0.85,
            label=drawing.text(classes[label]),
        )  # fmt: skip
    axes.set(xticks=[], yticks=[])


def sample_queries(wrong: np.ndarray) -> np.ndarray:
    """Samples up to QUERIES random queries: int [n].

    Half of them are sampled from those whose nearest image is wrong (bool [N]), if there are enough, so that failures
    are visible.
    """
    rng = np.random.default_rng(0)
    failures = rng.permutation(np.flatnonzero(wrong))[: QUERIES // 2]
    successes = rng.permutation(np.flatnonzero(~wrong))[: QUERIES - len(failures)]
    return np.concatenate([successes, failures])


def plot_retrieved_images(
    path: Path,
    rows: Sequence[Sequence[np.ndarray]],
    correct: Sequence[Sequence[bool]] | None = None,
    *,
    first: str = "query",
    below: Sequence[Sequence[str]] | None = None,
) -> None:
    """Draws one row of images uint8 [H, W, 3] per query, the `first` column, followed by its neighbours.

    `correct` says whether each neighbour has the query's class (solid blue frame) or not (dashed orange frame); None
    for grey frames. `below` each neighbour is a label.
    """
    from matplotlib.patches import Rectangle

    columns, side = len(rows[0]), 72
    height = 1.2 if below else 1.0  # row height, in units of the width of a picture
    figure = drawing.figure(columns + 0.6, max(1, len(rows)) * height + 0.4)
    axes = figure.subplots()
    for i, row in enumerate(rows):
        montage = drawing.montage(row, columns, columns, side, gap=6)
        axes.imshow(montage, extent=(0, columns, i * height + 1, i * height))
        for j in range(columns):
            wrong = bool(j and correct is not None and not correct[i][j - 1])
            colour = INK if j == 0 else GREY if correct is None else WRONG if wrong else CORRECT
            line = (0, (2, 1.2)) if wrong else "-"
            place = (j + 0.04, i * height + 0.04)
            axes.add_patch(Rectangle(place, 0.92, 0.92, fill=False, color=colour, linewidth=3, linestyle=line))
            if j and below is not None:
                axes.text(j + 0.5, i * height + 1.02, below[i][j - 1], fontsize=8, ha="center", va="top")
    for j in range(columns):
        axes.text(j + 0.5, -0.04, str(j) if j else first, fontsize=9, ha="center", va="bottom")
    axes.set(xlim=(0, columns), ylim=(len(rows) * height, -0.25), aspect="equal")
    axes.set_axis_off()
    figure.savefig(path, dpi=80)
