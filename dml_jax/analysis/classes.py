"""Recall@1 of every class, and which classes are confused with each other."""

from functools import partial
from pathlib import Path

import numpy as np

from dml_jax.analysis import drawing
from dml_jax.analysis.findings import Finding
from dml_jax.analysis.retrieval import nearest_labels
from dml_jax.analysis.trained_run import TrainedRun

TITLE = "Classes"
SHOWN = 12  # pairs in the figure


def recall_by_class(labels: np.ndarray, nearest: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Recall@1 of each class that has queries.

    Args:
      labels: int [N], of the queries.
      nearest: int [N], of their nearest neighbours.

    Returns:
      (classes int [C], increasing; recall float [C]; number of queries int [C]).
    """
    classes, members, counts = np.unique(labels, return_inverse=True, return_counts=True)
    hits = np.bincount(members, weights=nearest == labels, minlength=len(classes))
    return classes, hits / counts, counts


def confused_pairs(labels: np.ndarray, nearest: np.ndarray) -> list[tuple[int, int, int]]:
    """Unordered pairs of classes, most confused first.

    Args:
      labels: int [N], of the queries.
      nearest: int [N], of their nearest neighbours.

    Returns:
      (a, b, count) with a < b: how many queries of one have their nearest neighbour in the other; pairs with equal
      counts by increasing a and b.
    """
    wrong = labels != nearest
    pairs = np.sort(np.stack([labels[wrong], nearest[wrong]], axis=1), axis=1)
    found, counts = np.unique(pairs, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(int(a), int(b), int(n)) for (a, b), n in zip(found[order], counts[order], strict=True)]


def findings(run: TrainedRun, split: str) -> list[Finding]:
    """Recall@1 by class, and confused pairs of classes."""
    data = run.split(split)
    nearest = nearest_labels(run, split)
    classes, recall, counts = recall_by_class(data.labels, nearest)
    names, pairs = data.classes, confused_pairs(data.labels, nearest)
    size = dict(zip(classes.tolist(), counts.tolist(), strict=True))
    order = np.argsort(recall, kind="stable")
    return [
        Finding(
            "classes",
            f"Recall@1 of the {len(classes)} classes of the split '{split}', worst first; the CSV file names them.",
            partial(plot_recall, recall=recall[order]),
            ("class", "recall@1", "queries"),
            [(names[classes[i]], float(recall[i]), int(counts[i])) for i in order],
        ),
        Finding(
            "confused_classes",
            "The pairs of classes that are confused most: share of the queries of both whose nearest neighbour is of "
            "the other class.",
            partial(
                plot_pairs,
                pairs=[
                    (f"{drawing.text(names[a])} / {drawing.text(names[b])}", n / (size.get(a, 0) + size.get(b, 0)), n)
                    for a, b, n in pairs[:SHOWN]
                ],
            ),
            ("class", "other_class", "confusions", "queries_of_both"),
            [(names[a], names[b], n, size.get(a, 0) + size.get(b, 0)) for a, b, n in pairs],
        ),
    ]


def plot_recall(path: Path, *, recall: np.ndarray) -> None:
    """Recall of the classes in order, and their mean."""
    figure = drawing.figure(8, 3)
    axes = drawing.style(figure.subplots())
    axes.fill_between(np.arange(len(recall) + 1), np.append(recall, recall[-1]), step="post", color=drawing.SKY)
    axes.axhline(recall.mean(), color=drawing.INK, linestyle=":", label=f"mean of the classes {recall.mean():.3f}")
    axes.set(xlabel="classes, worst first", ylabel="Recall@1", ylim=(0, 1.02), xlim=(0, len(recall)))
    drawing.legend(axes, loc="lower right")
    figure.savefig(path, dpi=130)


def plot_pairs(path: Path, *, pairs: list[tuple[str, float, int]]) -> None:
    """One bar per pair of classes: (name, share, count)."""
    figure = drawing.figure(8, 1.2 + 0.3 * len(pairs))
    axes = drawing.style(figure.subplots())
    bars = axes.barh([name for name, _, _ in pairs[::-1]], [share for _, share, _ in pairs[::-1]], color=drawing.ORANGE)
    axes.bar_label(bars, labels=[str(count) for _, _, count in pairs[::-1]], fontsize=8, padding=3)
    axes.set(xlabel="share of the queries of both classes, and their number")
    axes.margins(x=0.15)
    if not pairs:
        axes.set(title="no query has a nearest neighbour of another class", yticks=[])
    figure.savefig(path, dpi=130)
