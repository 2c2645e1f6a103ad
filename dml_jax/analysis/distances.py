"""Pairs of images of one class and of different classes: histograms of distances, error rates of verification."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dml_jax.analysis import drawing, html
from dml_jax.analysis.evaluated_model import EvaluatedModel
from dml_jax.analysis.findings import Finding, Panel
from dml_jax.analysis.retrieval import gallery_of
from dml_jax.errors import DataError
from dml_jax.evaluation import geometry
from dml_jax.evaluation.geometry import Verification

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 100
MOST = 10_000  # images whose pairs are compared
BLOCK = 512  # rows compared at once
TARGETS = (0.1, 0.03, 0.01, 0.003, 0.001)  # false accept rates


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
    draw_both = partial(draw, same=same, different=different)
    pairs = "pairs of images" if name == split else "pairs of a query and a gallery image"
    return [
        Finding(
            "distances",
            f"Euclidean distances of unit embeddings over all {pairs} of the split '{split}' (of at most {MOST:,} "
            f"random images). The histograms overlap by {overlap(same, different):.0%}.",
            partial(drawing.plot_alone, draw=draw_both, size=(7, 3.2)),
            ("from", "to", "pairs_of_one_class", "pairs_of_different_classes"),
            list(zip(edges[:-1].tolist(), edges[1:].tolist(), same.tolist(), different.tolist(), strict=True)),
            panel=Panel(draw_both, "same axes"),
        )
    ]


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


def reason_not_to_verify(run: EvaluatedModel) -> str:
    """Why verification does not apply to a run; empty if it does."""
    return "" if run.split("test").gallery is None else "its queries search a separate gallery"


def transferred(chosen_on: Verification, applied_to: Verification, targets: Sequence[float]) -> list[tuple[float, ...]]:
    """Thresholds chosen on some pairs and applied to others; both are measured at the same thresholds.

    For each target, the lowest cosine threshold that keeps this false accept rate on the former: (target, threshold,
    false accepts and false rejects of the latter).
    """
    columns = (applied_to.thresholds, applied_to.false_accepts, applied_to.false_rejects)
    return [(target, *(float(column[chosen_on.lowest(target)]) for column in columns)) for target in targets]


def verification_findings(run: EvaluatedModel, split: str) -> list[Finding]:
    """Error rates of the pairs within a split; pairs with a gallery are not included."""
    try:
        rates = geometry.sample_rates(run.embeddings(split), run.split(split).labels)
    except DataError as error:
        run.console.print(f"verification: skipped ({error})")
        return []
    chosen = transferred(rates, rates, TARGETS)
    cells = [(target, (f"{cosine:.3f}", cosine), accepts, rejects) for target, cosine, accepts, rejects in chosen]
    return [
        Finding(
            "errors",
            f"Two images of the split '{split}' are accepted as the same class if their cosine reaches a threshold. "
            "Left: error rates over the threshold; they are equal, "
            f"{rates.equal_error_rate:.1%}, at {rates.threshold:.3f}. Right: the ROC curve; the dotted diagonal is "
            "chance. Table: thresholds for some rates of false accepts.",
            partial(plot_rates, rates=rates),
            ("target_false_accepts", "cosine_threshold", "false_accepts", "false_rejects"),
            chosen,
            html.listing(("at most", "cosine threshold", "false accepts", "false rejects"), cells),
        )
    ]


def plot_rates(path: Path, *, rates: Verification) -> None:
    """Draws false accept and false reject rates over the threshold, and the ROC curve."""
    figure = drawing.figure(9, 3.4)
    left, right = figure.subplots(1, 2)
    accepts, rejects = rates.false_accepts, rates.false_rejects
    drawing.style(left).plot(rates.thresholds, accepts, color=drawing.ORANGE, linestyle="--", label="false accepts")
    left.plot(rates.thresholds, rejects, color=drawing.BLUE, label="false rejects")
    error, cosine = rates.equal_error_rate, rates.threshold
    left.axvline(cosine, color=drawing.GREY, linestyle=":", linewidth=1, label=f"equal at {cosine:.3f}")
    left.set(title="Errors over the threshold", xlabel="cosine threshold", ylabel="rate", ylim=(0, 1.02))
    drawing.legend(left)
    drawing.style(right).plot([0, 1], [0, 1], color=drawing.GREY, linestyle=":", linewidth=1, label="chance")
    right.plot(accepts, 1 - rejects, color=drawing.BLUE, label="these embeddings")
    right.plot(
        error, 1 - error, "o", color=drawing.INK, markersize=5, label=f"equal error rate {error:.1%}", linestyle="none"
    )
    right.set(title="ROC curve", xlabel="false accept rate", ylabel="true accept rate", ylim=(0, 1.02), xlim=(0, 1))
    drawing.legend(right, loc="lower right")
    drawing.save(figure, path)
