"""Figures of a run: training curves, a map of the unseen classes, verification errors, retrieved images."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dml_jax.analysis import drawing
from dml_jax.analysis.drawing import BLUE, CORRECT, GREY, INK, ORANGE, WRONG
from dml_jax.data.split import Split
from dml_jax.evaluation import neighbors
from dml_jax.evaluation.verification import Verification

if TYPE_CHECKING:
    from matplotlib.axes import Axes

QUERIES, NEIGHBORS = 10, 8  # rows and columns of the retrieval grid


def plot_training_curves(path: Path, lines: Sequence[dict[str, Any]], controls: dict[str, float]) -> None:
    """Training loss and Recall@1 over the steps.

    Args:
      path: PNG file to write.
      lines: of `metrics.jsonl`.
      controls: Recall@1 of the baselines, drawn as dotted lines.
    """
    figure = drawing.figure(9, 3.2)
    left, right = figure.subplots(1, 2)
    loss = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    drawing.style(left).plot(*zip(*loss, strict=True), color=INK, linewidth=1)
    left.set(title="Training loss", xlabel="step", ylabel="loss")
    drawing.style(right).set(title="Recall@1", xlabel="step", ylabel="fraction of queries", ylim=(0, 1))
    for split, colour, marker in (("validation", ORANGE, "s"), ("test", BLUE, "o")):
        points = [(line["step"], line[f"{split}/recall@1"]) for line in lines if f"{split}/recall@1" in line]
        if points:
            right.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=3, label=split)
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
    drawing.legend(right)
    figure.savefig(path, dpi=130)


def principal_components(embeddings: np.ndarray, dimensions: int = 2) -> np.ndarray:
    """Projects rows [N, D] on their first principal components: [N, dimensions], zeros beyond the D-th."""
    centred = embeddings - embeddings.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)  # by increasing eigenvalue
    projected = centred @ axes[:, ::-1][:, :dimensions]
    return np.pad(projected, ((0, 0), (0, dimensions - projected.shape[1])))


def scatter_classes(axes: "Axes", points: np.ndarray, labels: np.ndarray, classes: Sequence[str]) -> None:
    """Points in the plane, those of the largest classes with a colour and marker each, the others in grey.

    Args:
      axes: to draw on.
      points: [N, 2].
      labels: int [N].
      classes: name of each class.
    """
    coloured = len(drawing.SERIES)
    largest = np.argsort(-np.bincount(labels, minlength=len(classes)), kind="stable")[:coloured]
    rest = ~np.isin(labels, largest)
    axes.scatter(points[rest, 0], points[rest, 1], s=4, color=GREY, linewidths=0, alpha=0.5)
    for label, colour, marker in zip(sorted(largest), drawing.SERIES, drawing.MARKERS, strict=False):
        x, y = points[labels == label].T
        name = drawing.text(classes[label])
        axes.scatter(x, y, s=12, linewidths=0, color=colour, marker=marker, label=name, alpha=0.85)
    axes.set(xticks=[], yticks=[])


def plot_class_map(path: Path, embeddings: np.ndarray, labels: np.ndarray, classes: Sequence[str]) -> None:
    """Embeddings on their first two principal components; the largest classes are coloured.

    Args:
      path: PNG file to write.
      embeddings: [N, D].
      labels: int [N].
      classes: name of each class.
    """
    figure = drawing.figure(6, 5)
    axes = drawing.style(figure.subplots())
    scatter_classes(axes, principal_components(embeddings), labels, classes)
    axes.set(xlabel="first principal component", ylabel="second principal component", title="Test classes")
    drawing.legend(axes, markerscale=2, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=130)


def plot_verification_errors(path: Path, verification: Verification) -> None:
    """False accept and false reject rates over the threshold, and the ROC curve, as a PNG file."""
    figure = drawing.figure(9, 3.2)
    left, right = figure.subplots(1, 2)
    accepts, rejects = verification.false_accepts, verification.false_rejects
    drawing.style(left).plot(verification.thresholds, accepts, color=ORANGE, linestyle="--", label="false accepts")
    left.plot(verification.thresholds, rejects, color=BLUE, label="false rejects")
    left.axvline(verification.threshold, color=GREY, linestyle=":", linewidth=1)
    left.set(title="Verification errors", xlabel="cosine threshold", ylabel="rate", ylim=(0, 1))
    drawing.legend(left)
    drawing.style(right).plot(accepts, 1 - rejects, color=BLUE)
    error = verification.equal_error_rate
    right.plot(error, 1 - error, "o", color=INK, markersize=4)
    right.set(title=f"ROC curve, equal error rate {error:.1%}", xlabel="false accept rate", ylabel="true accept rate")
    figure.savefig(path, dpi=130)


def sample_queries(wrong: np.ndarray) -> np.ndarray:
    """Up to QUERIES random queries: int [n].

    Half of them are sampled from those whose nearest image is wrong, as far as there are enough, so that failures are
    visible.

    Args:
      wrong: bool [N], for each query.
    """
    rng = np.random.default_rng(0)
    failures = rng.permutation(np.flatnonzero(wrong))[: QUERIES // 2]
    successes = rng.permutation(np.flatnonzero(~wrong))[: QUERIES - len(failures)]
    return np.concatenate([successes, failures])


def plot_retrieval_grid(path: Path, embeddings: np.ndarray, split: Split, gallery: np.ndarray | None = None) -> None:
    """Sample queries, see `sample_queries`, with their nearest images.

    Args:
      path: PNG file to write.
      embeddings: [N, D] of the images of `split`.
      split: the queries.
      gallery: [G, D] of the images of its gallery; None if it has none and the queries search each other.
    """
    searched, others = (split, embeddings) if split.gallery is None or gallery is None else (split.gallery, gallery)
    itself = searched is split
    _, indices = neighbors.search(embeddings, others, min(NEIGHBORS, len(others) - itself), exclude_self=itself)
    queries = sample_queries(searched.labels[indices[:, 0]] != split.labels)
    rows = [[split.read(int(q), None), *(searched.read(int(i), None) for i in indices[q])] for q in queries]
    correct = searched.labels[indices[queries]] == split.labels[queries, None]
    plot_retrieved_images(path, rows, correct.tolist())


def plot_retrieved_images(
    path: Path,
    rows: Sequence[Sequence[np.ndarray]],
    correct: Sequence[Sequence[bool]] | None = None,
    *,
    first: str = "query",
    below: Sequence[Sequence[str]] | None = None,
) -> None:
    """One row per query, followed by its neighbours, nearest first.

    Args:
      path: PNG file to write.
      rows: images uint8 [H, W, 3], the query first, the same number in each row.
      correct: whether each neighbour has the query's class (solid blue frame) or not (dashed orange frame); None for
        grey frames.
      first: heading of the first column.
      below: a label for each neighbour.
    """
    figure = drawing.figure(len(rows[0]) + 0.6, max(1, len(rows)) * (1.2 if below else 1))
    cells = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            axes = cells[i, j]
            axes.imshow(image)
            axes.set(xticks=[], yticks=[])
            wrong = bool(j and correct is not None and not correct[i][j - 1])
            colour = INK if j == 0 else GREY if correct is None else WRONG if wrong else CORRECT
            for spine in axes.spines.values():
                spine.set(color=colour, linewidth=3, capstyle="butt", linestyle=(0, (2, 1.2)) if wrong else "-")
            if i == 0:
                axes.set_title(str(j) if j else first, fontsize=9)
            if j and below is not None:
                axes.set_xlabel(below[i][j - 1], fontsize=8, labelpad=2)
    figure.savefig(path, dpi=80)
