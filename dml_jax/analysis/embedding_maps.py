"""Maps of embeddings in the plane, with classes as colours and with thumbnails; shared by t-SNE and UMAP."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from dml_jax.analysis import drawing, figures
from dml_jax.analysis.findings import Finding
from dml_jax.analysis.trained_run import TrainedRun

MOST = 6000  # images in a map
CELLS = 16  # thumbnails per side
COMPONENTS = 50  # principal components that the maps start from

Project = Callable[[np.ndarray], np.ndarray]


def reduced(embeddings: np.ndarray) -> np.ndarray:
    """Rows [N, D] of unit length on their first principal components: float32 [N, at most COMPONENTS]."""
    rows = np.asarray(embeddings, np.float64)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return figures.principal_components(rows, min(COMPONENTS, rows.shape[1])).astype(np.float32)


def thumbnail_positions(points: np.ndarray, cells: int = CELLS) -> list[tuple[int, int, int]]:
    """One point for each cell of a grid over the map that holds any.

    Args:
      points: float [N, 2].
      cells: per side.

    Returns:
      (index of the point nearest to the centre of the cell, column, row).
    """
    low, high = points.min(axis=0), points.max(axis=0)
    scaled = (points - low) / np.maximum(high - low, 1e-12) * cells
    cell = np.minimum(scaled.astype(int), cells - 1)
    offset = np.sum((scaled - cell - 0.5) ** 2, axis=1)
    order = np.lexsort((offset, cell[:, 1], cell[:, 0]))
    _, first = np.unique(cell[order], axis=0, return_index=True)
    return [(int(i), int(cell[i, 0]), int(cell[i, 1])) for i in order[np.sort(first)]]


def findings(run: TrainedRun, split: str, project: Project, name: str, title: str) -> list[Finding]:
    """A map of a split.

    Args:
      run: the run.
      split: whose images are shown, at most MOST of them at random.
      project: rows [N, D] -> points [N, 2].
      name: of the files.
      title: of the projection, in captions.
    """
    data = run.split(split)
    rows = np.sort(np.random.default_rng(0).permutation(len(data.labels))[:MOST])
    run.console.print(f"{title} of {len(rows):,} embeddings")
    points = project(reduced(run.embeddings(split)[rows])).astype(np.float64)
    labels = data.labels[rows]
    return [
        Finding(
            name,
            f"{title} of the embeddings of the split '{split}' ({len(rows):,} of {len(data.labels):,} images). Left: "
            "the largest classes in colours, all others in grey. Right: images at their places in the map. Distances "
            "between far groups mean little.",
            partial(plot, run=run, split=split, rows=rows, points=points),
            ("image", "class", "x", "y"),
            [
                (data.ids[row], data.classes[label], float(x), float(y))
                for row, label, (x, y) in zip(rows, labels, points, strict=True)
            ],
        )
    ]


def plot(path: Path, *, run: TrainedRun, split: str, rows: np.ndarray, points: np.ndarray) -> None:
    """Points by class, and thumbnails on a grid."""
    figure = drawing.figure(12, 6)
    left, right = figure.subplots(1, 2)
    data = run.split(split)
    figures.scatter_classes(left, points, data.labels[rows], data.classes)
    shown = thumbnail_positions(points)
    images = run.images(split, rows[[i for i, _, _ in shown]])
    for image, (_, column, row) in zip(images, shown, strict=True):
        right.imshow(image, extent=(column + 0.04, column + 0.96, row + 0.04, row + 0.96))
    right.set(xlim=(0, CELLS), ylim=(0, CELLS), xticks=[], yticks=[], aspect="equal")
    for axes in (left, right):
        for spine in axes.spines.values():
            spine.set(color=drawing.GREY, linewidth=0.5)
    drawing.legend(left, loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=3, markerscale=2)
    figure.savefig(path, dpi=110)
