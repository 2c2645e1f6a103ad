"""Histograms of the distances between images of the same class and of different classes."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dml_jax.analysis import drawing
from dml_jax.analysis.evaluated_model import EvaluatedModel
from dml_jax.analysis.findings import Finding, Panel
from dml_jax.analysis.retrieval import gallery_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 100
MOST = 10_000  # images whose pairs are compared
BLOCK = 512  # rows compared at once


def histograms(
    rows: np.ndarray, labels: np.ndarray, others: np.ndarray | None = None, other_labels: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of pairs of one class and of different classes by Euclidean distance: int [BINS] each, from 0 to 2.

    Rows float [N, D], of unit length, with labels int [N], are compared with others, [M, D] and [M], or without them
    with each other, as unordered pairs.
    """
    within = others is None or other_labels is None
    columns, column_labels = (rows, labels) if others is None or other_labels is None else (others, other_labels)
    same, different = np.zeros(BINS, np.int64), np.zeros(BINS, np.int64)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        distances = np.sqrt(np.maximum(2 - 2 * block @ columns.T, 0))
        counted = np.ones(distances.shape, bool)
        if within:
            counted = np.arange(len(columns))[None, :] > np.arange(start, start + len(block))[:, None]
        equal = labels[start : start + BLOCK, None] == column_labels[None, :]
        bins = np.minimum((distances * (BINS / 2)).astype(np.int64), BINS - 1)
        same += np.bincount(bins[counted & equal], minlength=BINS)
        different += np.bincount(bins[counted & ~equal], minlength=BINS)
    return same, different


def overlap(same: np.ndarray, different: np.ndarray) -> float:
    """Common area of two histograms, each normalised to area 1: 0 (separate) to 1 (equal)."""
    return float(np.minimum(same / max(same.sum(), 1), different / max(different.sum(), 1)).sum())


def findings(run: EvaluatedModel, split: str) -> list[Finding]:
    """The two histograms."""
    name, rng = gallery_of(run, split), np.random.default_rng(0)

    def sample(part: str) -> tuple[np.ndarray, np.ndarray]:
        chosen = rng.permutation(len(run.split(part).labels))[:MOST]
        return run.embeddings(part)[chosen], run.split(part).labels[chosen]

    same, different = histograms(*sample(split)) if name == split else histograms(*sample(split), *sample(name))
    edges = np.linspace(0, 2, BINS + 1)
    pairs = "pairs of images" if name == split else "pairs of a query and a gallery image"
    return [
        Finding(
            "distances",
            f"Euclidean distances of unit embeddings over all {pairs} of the split '{split}' (of at most {MOST:,} "
            f"random images). The histograms overlap by {overlap(same, different):.0%}.",
            partial(plot, same=same, different=different),
            ("from", "to", "pairs_of_one_class", "pairs_of_different_classes"),
            list(zip(edges[:-1].tolist(), edges[1:].tolist(), same.tolist(), different.tolist(), strict=True)),
            panel=Panel(partial(draw, same=same, different=different), "same axes"),
        )
    ]


def plot(path: Path, *, same: np.ndarray, different: np.ndarray) -> None:
    """Draws both histograms, each with area 1."""
    figure = drawing.figure(7, 3.2)
    axes = figure.subplots()
    draw(axes, same=same, different=different)
    drawing.legend(axes)
    drawing.save(figure, path)


def draw(axes: "Axes", *, same: np.ndarray, different: np.ndarray) -> None:
    """Draws both histograms in axes."""
    drawing.style(axes)
    edges = np.linspace(0, 2, BINS + 1)
    kinds = ((same, "same class", drawing.BLUE, "-"), (different, "different classes", drawing.ORANGE, "--"))
    for counts, label, colour, line in kinds:
        density = counts / max(counts.sum(), 1) * BINS / 2
        axes.stairs(density, edges, color=colour, linestyle=line, linewidth=1.5, label=label)
        axes.stairs(density, edges, color=colour, fill=True, alpha=0.15)
    axes.set(xlabel="Euclidean distance of unit embeddings", ylabel="density of pairs", xlim=(0, 2))
