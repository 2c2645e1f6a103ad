"""Figures of a run: training curves, a map of the unseen classes, verification errors, retrieved images.

matplotlib is imported only when a figure is drawn.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dml_jax.data.split import Split
from dml_jax.errors import printable
from dml_jax.evaluation import neighbors
from dml_jax.evaluation.verification import Verification

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, BLUE, GREEN, RED = "#1f2933", "#9aa5b1", "#1971c2", "#2f9e44", "#e03131"
COLOURED_CLASSES = 10  # in the map of the classes
QUERIES, NEIGHBORS = 10, 8  # rows and columns of the retrieval grid


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _style(axes: "Axes") -> "Axes":
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=INK, labelsize=8)
    return axes


def plot_training_curves(path: Path, lines: Sequence[dict[str, Any]], controls: dict[str, float]) -> None:
    """Training loss and Recall@1 over the steps.

    Args:
      path: PNG file to write.
      lines: of `metrics.jsonl`.
      controls: Recall@1 of the baselines, drawn as dotted lines.
    """
    figure = _figure(9, 3.2)
    left, right = figure.subplots(1, 2)
    loss = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    _style(left).plot(*zip(*loss, strict=True), color=INK, linewidth=1)
    left.set(title="Training loss", xlabel="step")
    _style(right).set(title="Recall@1", xlabel="step", ylim=(0, 1))
    for split, colour in (("validation", BLUE), ("test", GREEN)):
        points = [(line["step"], line[f"{split}/recall@1"]) for line in lines if f"{split}/recall@1" in line]
        if points:
            right.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3, label=split)
    for name, value in controls.items():
        right.axhline(value, color=GREY, linestyle=":", linewidth=1)
        right.annotate(
            name,
            (1, value),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8,
            color=GREY,
        )
    if right.get_legend_handles_labels()[0]:
        right.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)


def principal_components(embeddings: np.ndarray, dimensions: int = 2) -> np.ndarray:
    """Projects rows [N, D] on their first principal components: [N, dimensions], zeros beyond the D-th."""
    centred = embeddings - embeddings.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)  # by increasing eigenvalue
    projected = centred @ axes[:, ::-1][:, :dimensions]
    return np.pad(projected, ((0, 0), (0, dimensions - projected.shape[1])))


def plot_class_map(path: Path, embeddings: np.ndarray, labels: np.ndarray, classes: Sequence[str]) -> None:
    """Embeddings on their first two principal components; the ten largest classes are coloured.

    Args:
      path: PNG file to write.
      embeddings: [N, D].
      labels: int [N].
      classes: name of each class.
    """
    figure = _figure(6, 5)
    axes = _style(figure.subplots())
    points = principal_components(embeddings)
    largest = np.argsort(-np.bincount(labels, minlength=len(classes)), kind="stable")[:COLOURED_CLASSES]
    rest = ~np.isin(labels, largest)
    axes.scatter(points[rest, 0], points[rest, 1], s=4, color=GREY, linewidths=0)
    for label in sorted(largest):
        x, y = points[labels == label].T
        name = printable(classes[label]).replace("$", r"\$")  # matplotlib would typeset $…$ as a formula
        axes.scatter(x, y, s=9, linewidths=0, label=name, alpha=0.8)
    axes.set(title="Test classes, first two principal components", xticks=[], yticks=[])
    axes.legend(frameon=False, fontsize=8, markerscale=2, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=130)


def plot_verification_errors(path: Path, verification: Verification) -> None:
    """False accept and false reject rates over the threshold, and the ROC curve, as a PNG file."""
    figure = _figure(9, 3.2)
    left, right = figure.subplots(1, 2)
    accepts, rejects = verification.false_accepts, verification.false_rejects
    _style(left).plot(verification.thresholds, accepts, color=RED, label="false accepts")
    left.plot(verification.thresholds, rejects, color=INK, label="false rejects")
    left.axvline(verification.threshold, color=GREY, linestyle=":", linewidth=1)
    left.set(title="Verification errors", xlabel="cosine threshold", ylabel="rate", ylim=(0, 1))
    left.legend(frameon=False, fontsize=8)
    _style(right).plot(accepts, 1 - rejects, color=GREEN)
    error = verification.equal_error_rate
    right.plot(error, 1 - error, "o", color=INK, markersize=4)
    right.set(title=f"ROC curve, equal error rate {error:.1%}", xlabel="false accept rate", ylabel="true accept rate")
    figure.savefig(path, dpi=130)


def plot_retrieval_grid(path: Path, embeddings: np.ndarray, split: Split) -> None:
    """Sample queries with their nearest neighbours; green frames mark the query's class, red frames other classes.

    Half of the queries are sampled from those whose nearest neighbour is wrong, as far as there are enough, so that
    failures are visible.

    Args:
      path: PNG file to write.
      embeddings: [N, D] of the images of `split`.
      split: whose images are shown.
    """
    count = min(NEIGHBORS, len(embeddings) - 1)
    _, indices = neighbors.search(embeddings, embeddings, count, exclude_self=True)
    wrong = split.labels[indices[:, 0]] != split.labels
    rng = np.random.default_rng(0)
    failures = rng.permutation(np.flatnonzero(wrong))[: QUERIES // 2]
    successes = rng.permutation(np.flatnonzero(~wrong))[: QUERIES - len(failures)]
    queries = np.concatenate([successes, failures])
    rows = [[split.read(int(i), None) for i in (query, *indices[query])] for query in queries]
    correct = [[bool(split.labels[i] == split.labels[query]) for i in indices[query]] for query in queries]
    plot_retrieved_images(path, rows, correct)


def plot_retrieved_images(
    path: Path, rows: Sequence[Sequence[np.ndarray]], correct: Sequence[Sequence[bool]] | None = None
) -> None:
    """One row per query, followed by its neighbours, nearest first.

    Args:
      path: PNG file to write.
      rows: images uint8 [H, W, 3], the query first, the same number in each row.
      correct: whether each neighbour has the query's class (green or red frame); None for grey frames.
    """
    figure = _figure(len(rows[0]) + 0.6, len(rows))
    cells = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            axes = cells[i, j]
            axes.imshow(image)
            axes.set(xticks=[], yticks=[])
            colour = INK if j == 0 else GREY if correct is None else GREEN if correct[i][j - 1] else RED
            for spine in axes.spines.values():
                spine.set(color=colour, linewidth=3)
            if i == 0:
                axes.set_title(str(j) if j else "query", fontsize=9)
    figure.savefig(path, dpi=80)
