"""Pictures of a run: how it went, where the unseen classes lie, what each query finds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dml_jax.data.split import Split
from dml_jax.evaluation import neighbors
from dml_jax.evaluation.verification import Verification

INK, GREY, RIGHT, WRONG = "#1f2933", "#9aa5b1", "#2f9e44", "#e03131"
MOST_CLASSES = 10  # coloured in the map
QUERIES, FOUND = 10, 8  # rows and neighbours of the retrieval grid


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _plain(axes: Axes) -> Axes:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=INK, labelsize=8)
    return axes


def curves(path: Path, lines: Sequence[dict[str, Any]], controls: dict[str, float]) -> None:
    """Loss and Recall@1 over the steps.

    Args:
      path: png to write.
      lines: of `metrics.jsonl`.
      controls: Recall@1 of what the model is compared with, drawn as dotted lines.
    """
    figure = _figure(9, 3.2)
    left, right = figure.subplots(1, 2)
    loss = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    _plain(left).plot(*zip(*loss, strict=True), color=INK, linewidth=1)
    left.set(title="training loss", xlabel="step")
    _plain(right).set(title="Recall@1", xlabel="step", ylim=(0, 1))
    for split, colour in (("validation", "#1971c2"), ("test", RIGHT)):
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


def principal(embeddings: np.ndarray, dimensions: int = 2) -> np.ndarray:
    """The first principal components of rows [N, D] -> [N, dimensions]; zeros beyond the D-th."""
    centred = embeddings - embeddings.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)  # ascending
    found = centred @ axes[:, ::-1][:, :dimensions]
    return np.pad(found, ((0, 0), (0, dimensions - found.shape[1])))


def scatter(path: Path, embeddings: np.ndarray, labels: np.ndarray, classes: Sequence[str]) -> None:
    """The unseen classes on their first two principal components; the largest ten in colour."""
    figure = _figure(6, 5)
    axes = _plain(figure.subplots())
    points = principal(embeddings)
    largest = np.argsort(-np.bincount(labels, minlength=len(classes)), kind="stable")[:MOST_CLASSES]
    rest = ~np.isin(labels, largest)
    axes.scatter(points[rest, 0], points[rest, 1], s=4, color=GREY, linewidths=0)
    for label in sorted(largest):
        x, y = points[labels == label].T
        name = classes[label].replace("$", r"\$")  # no formula
        axes.scatter(x, y, s=9, linewidths=0, label=name, alpha=0.8)
    axes.set(title="unseen classes, first two principal components", xticks=[], yticks=[])
    axes.legend(frameon=False, fontsize=8, markerscale=2, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=130)


def errors(path: Path, verified: Verification) -> None:
    """The two errors of the same/different rule over its threshold, and one against the other (ROC)."""
    figure = _figure(9, 3.2)
    left, right = figure.subplots(1, 2)
    _plain(left).plot(verified.thresholds, verified.false_accepts, color=WRONG, label="different, accepted")
    left.plot(verified.thresholds, verified.false_rejects, color=INK, label="same, rejected")
    left.axvline(verified.threshold, color=GREY, linestyle=":", linewidth=1)
    left.set(title="errors over the threshold", xlabel="cosine", ylim=(0, 1))
    left.legend(frameon=False, fontsize=8)
    _plain(right).plot(verified.false_accepts, 1 - verified.false_rejects, color=RIGHT)
    right.plot(verified.equal_error, 1 - verified.equal_error, "o", color=INK, markersize=4)
    right.set(
        title=f"ROC, equal error {verified.equal_error:.1%}",
        xlabel="different, accepted",
        ylabel="same, accepted",
    )
    figure.savefig(path, dpi=130)


def grid(path: Path, embeddings: np.ndarray, split: Split) -> None:
    """Queries and their nearest neighbours: green frames are of the query's class, red ones are not.

    Half of the queries are drawn from those whose nearest neighbour is wrong, where there are that many, so that the
    failures are seen.
    """
    count = min(FOUND, len(embeddings) - 1)
    _, indices = neighbors.search(embeddings, embeddings, count, exclude_self=True)
    wrong = split.labels[indices[:, 0]] != split.labels
    rng = np.random.default_rng(0)
    failing = rng.permutation(np.flatnonzero(wrong))[: QUERIES // 2]
    passing = rng.permutation(np.flatnonzero(~wrong))[: QUERIES - len(failing)]
    queries = np.concatenate([passing, failing])
    rows = [[split.read(int(i), None) for i in (query, *indices[query])] for query in queries]
    right = [[split.labels[i] == split.labels[query] for i in indices[query]] for query in queries]
    found(path, rows, right)


def found(path: Path, rows: Sequence[Sequence[np.ndarray]], right: Sequence[Sequence[bool]] | None = None) -> None:
    """Each row a query and what it finds, nearest first.

    Args:
      path: png to write.
      rows: images uint8 [H, W, 3], the query first, equally many in each row.
      right: whether each neighbour is of the query's class: green frames or red ones; None: no frames.
    """
    figure = _figure(len(rows[0]) + 0.6, len(rows))
    cells = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            axes = cells[i, j]
            axes.imshow(image)
            axes.set(xticks=[], yticks=[])
            colour = INK if j == 0 else GREY if right is None else RIGHT if right[i][j - 1] else WRONG
            for spine in axes.spines.values():
                spine.set(color=colour, linewidth=3)
            if i == 0:
                axes.set_title(str(j) if j else "query", fontsize=9)
    figure.savefig(path, dpi=80)
