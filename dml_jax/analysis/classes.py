"""Recall@1 of every class, and which classes are confused with each other."""

from functools import partial
from pathlib import Path

import numpy as np

from dml_jax.analysis import drawing, retrieval, views
from dml_jax.analysis.evaluated_model import EvaluatedModel
from dml_jax.analysis.findings import Finding
from dml_jax.analysis.views import Picture, Pictures

SHOWN = 10  # pairs in the figure
EXAMPLES = 4  # pictures of each pair


def recall_by_class(labels: np.ndarray, nearest: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Recall@1 of each class, from the labels of the queries and of their nearest neighbours, int [N] each.

    The result is (classes int [C], increasing; recall float [C]; number of queries int [C]).
    """
    classes, members, counts = np.unique(labels, return_inverse=True, return_counts=True)
    hits = np.bincount(members, weights=nearest == labels, minlength=len(classes))
    return classes, hits / counts, counts


def confused_pairs(labels: np.ndarray, nearest: np.ndarray) -> list[tuple[int, int, int]]:
    """Unordered pairs of classes, most confused first, from the labels of queries and nearest neighbours, int [N] each.

    (a, b, count) with a < b: how many queries of one have their nearest neighbour in the other; pairs with equal counts
    by increasing a and b.
    """
    wrong = labels != nearest
    pairs = np.sort(np.stack([labels[wrong], nearest[wrong]], axis=1), axis=1)
    found, counts = np.unique(pairs, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(int(a), int(b), int(n)) for (a, b), n in zip(found[order], counts[order], strict=True)]


def findings(run: EvaluatedModel, split: str) -> list[Finding]:
    """Recall@1 by class, and confused pairs of classes."""
    data, gallery = run.split(split), run.split(retrieval.gallery_of(run, split))
    distances, indices = retrieval.search(run, split, 1)
    nearest = gallery.labels[indices[:, 0]]
    classes, recall, counts = recall_by_class(data.labels, nearest)
    names, pairs = data.classes, confused_pairs(data.labels, nearest)
    size = dict(zip(classes.tolist(), counts.tolist(), strict=True))
    order = np.argsort(recall, kind="stable")
    rows = [(names[classes[i]], float(recall[i]), int(counts[i])) for i in order]
    confused = [(names[a], names[b], n, size.get(a, 0) + size.get(b, 0)) for a, b, n in pairs]

    def examples(a: int, b: int) -> list[Picture]:
        found = np.flatnonzero(((data.labels == a) & (nearest == b)) | ((data.labels == b) & (nearest == a)))
        shown: dict[frozenset[str], list[Picture]] = {}  # show mutual nearest neighbours once
        for query in found[np.argsort(distances[found, 0], kind="stable")].tolist():
            other = int(indices[query, 0])
            images = frozenset((data.ids[query], gallery.ids[other]))
            if images not in shown and len(shown) < EXAMPLES:
                shown[images] = [
                    retrieval.picture(data, query, mark="query"),
                    retrieval.picture(gallery, other, f"{1 - distances[query, 0]:.3f}", "wrong"),
                ]
        return [picture for pair in shown.values() for picture in pair]

    shown = [
        (f"{names[a]} / {names[b]}: {n:,} of {queries:,} queries, {n / queries:.0%}", examples(a, b))
        for (a, b, n), (_, _, _, queries) in zip(pairs[:SHOWN], confused, strict=False)
    ]
    return [
        Finding(
            "classes",
            f"Recall@1 of the {len(classes)} classes of the split '{split}', worst first.",
            partial(plot_recall, recall=recall[order]),
            ("class", "recall@1", "queries"),
            rows,
            views.listing(("class", "Recall@1", "queries"), rows),
        ),
        Finding(
            "confused_classes",
            "The most frequently confused pairs of classes, with the fraction of the queries of both whose nearest "
            "image is of the other class. Each query is followed by that image and their cosine, most similar first.",
            partial(
                plot_pairs,
                pairs=[
                    (f"{drawing.text(a)} / {drawing.text(b)}", n / queries, n) for a, b, n, queries in confused[:SHOWN]
                ],
            ),
            ("class", "other_class", "confusions", "queries_of_both"),
            confused,
            Pictures(shown) if shown else None,
        ),
    ]


def plot_recall(path: Path, *, recall: np.ndarray) -> None:
    """Draws the sorted recall of the classes, and their mean."""
    figure = drawing.figure(8, 3)
    axes = drawing.style(figure.subplots())
    axes.fill_between(np.arange(len(recall) + 1), np.append(recall, recall[-1]), step="post", color=drawing.BLUE)
    axes.axhline(recall.mean(), color=drawing.YELLOW, linestyle="--", label=f"mean of the classes {recall.mean():.3f}")
    axes.set(xlabel="classes, worst first", ylabel="Recall@1", ylim=(0, 1.15), xlim=(0, len(recall)))
    drawing.legend(axes, loc="upper left")
    drawing.save(figure, path)


def plot_pairs(path: Path, *, pairs: list[tuple[str, float, int]]) -> None:
    """Draws one bar per pair of classes: (name, fraction, count)."""
    figure = drawing.figure(8, 1.2 + 0.3 * len(pairs))
    axes = drawing.style(figure.subplots())
    places = range(len(pairs))  # not the names, which may coincide when shortened
    bars = axes.barh(places, [share for _, share, _ in pairs], color=drawing.ORANGE)
    axes.bar_label(bars, labels=[str(count) for _, _, count in pairs], fontsize=8, padding=3)
    axes.set_yticks(places, [name for name, _, _ in pairs])
    axes.invert_yaxis()
    axes.set(xlabel="fraction of the queries of both classes, and their number")
    axes.margins(x=0.15)
    if not pairs:
        axes.set(title="no query has a nearest neighbour of another class", yticks=[])
    drawing.save(figure, path)
