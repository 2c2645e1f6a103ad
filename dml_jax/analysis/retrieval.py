"""Retrieved images: a sample of queries, the worst queries, and the best of some classes."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax.analysis import figures, views
from dml_jax.analysis.findings import Finding
from dml_jax.analysis.trained_run import TrainedRun
from dml_jax.analysis.views import Picture, Pictures
from dml_jax.data.split import Split
from dml_jax.evaluation import metrics, neighbors

TITLE = "Retrieved images"
WORST, BEST = 10, 5  # queries in the figures
COLUMNS = ("query", "class", "first_relevant_rank", "average_precision_at_r", "nearest", "its_class", "distance")
FRAMES = (
    "✓, solid blue frame: the class of the query; ✗, dashed orange frame: another class; the number is the cosine. "
)


def gallery_of(run: TrainedRun, split: str) -> str:
    """Name of the split in which the queries of a split search: "gallery", or the split itself."""
    return split if run.split(split).gallery is None else "gallery"


def search(run: TrainedRun, split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine distances and gallery rows of the nearest images, [N, count] each; a query never finds itself."""
    gallery = gallery_of(run, split)
    rows, others = run.embeddings(split), run.embeddings(gallery)
    count = min(count, len(others) - (gallery == split))
    return neighbors.search(rows, others, count, exclude_self=gallery == split)


def worst_first(first_rank: np.ndarray, average_precision: np.ndarray) -> np.ndarray:
    """Queries by decreasing rank of their first relevant image, then by increasing average precision: int [M].

    Queries without a relevant image, whose first_rank int [N] is 0, are left out.
    """
    order = np.lexsort((np.nan_to_num(average_precision), -first_rank))
    return order[first_rank[order] > 0]


def best_first(labels: np.ndarray, average_precision: np.ndarray, cosine: np.ndarray) -> np.ndarray:
    """The best query of each class, by decreasing average precision, then by decreasing cosine to its nearest image.

    int [C], from [N] of each; the average precision of queries without a relevant image is NaN.
    """
    order = np.lexsort((-cosine, -np.nan_to_num(average_precision)))
    return order[np.sort(np.unique(labels[order], return_index=True)[1])]


def picture(split: Split, index: int, note: str = "", mark: views.Mark = "") -> Picture:
    """The thumbnail of an image of a split."""
    return Picture(
        views.jpeg(split.read(index, None)), split.ids[index], split.classes[split.labels[index]], note, mark
    )


def findings(run: TrainedRun, split: str) -> list[Finding]:
    """Sampled queries, the worst and the best, with their nearest images."""
    name = gallery_of(run, split)
    queries, gallery = run.split(split), run.split(name)
    against: dict[str, Any] = {}
    if name != split:
        against = {"gallery": run.embeddings(name), "gallery_labels": gallery.labels}
    found = metrics.retrieval(run.embeddings(split), queries.labels, ks=(1,), per_query=True, **against)
    distances, indices = search(run, split, figures.NEIGHBORS)
    correct = gallery.labels[indices] == queries.labels[:, None]
    rank, precision = found["rank"], found["map@r_per_query"]

    def row(query: int) -> tuple[Any, ...]:
        nearest = indices[query, 0]
        return (
            queries.ids[query], queries.classes[queries.labels[query]], int(rank[query]), float(precision[query]),
            gallery.ids[nearest], gallery.classes[gallery.labels[nearest]], float(distances[query, 0]),
        )  # fmt: skip

    def grid(path: Path, shown: np.ndarray) -> None:
        rows = [
            [queries.read(int(query), None), *(gallery.read(int(i), None) for i in indices[query])] for query in shown
        ]
        figures.plot_retrieved_images(path, rows, correct[shown].tolist())

    def strip(query: int) -> list[Picture]:
        near = zip(indices[query], distances[query], correct[query], strict=True)
        return [picture(queries, query, mark="query")] + [
            picture(gallery, int(i), f"{1 - distance:.3f}", "right" if hit else "wrong") for i, distance, hit in near
        ]

    def finding(title: str, caption: str, shown: np.ndarray, listed: np.ndarray) -> Finding:
        first = [f"first of its class at rank {rank[q]:,}" if rank[q] > 1 else "" for q in shown]
        rows = [(label, strip(int(query))) for label, query in zip(first, shown, strict=True)]
        return Finding(
            title, caption, partial(grid, shown=shown), COLUMNS, [row(int(query)) for query in listed], Pictures(rows)
        )

    sample = figures.sample_queries(~correct[:, 0])
    grids = [
        finding(
            "retrieval",
            f"Sampled queries of the split '{split}' and their nearest images, nearest first. {FRAMES}Half of the "
            "queries are sampled from those whose nearest image is of another class, so that more failures are shown "
            "than there are.",
            sample,
            sample,
        ),
    ]
    if len(worst := worst_first(rank, precision)):
        best = best_first(queries.labels, precision, 1 - distances[:, 0])[:BEST]
        grids += [
            finding(
                "worst_queries",
                f"The queries of the split '{split}' whose first relevant image comes last. {FRAMES}The CSV file lists "
                "all queries that have a relevant image, worst first.",
                worst[:WORST],
                worst,
            ),
            finding(
                "best_queries",
                f"The best queries of the split '{split}', one per class, by average precision. {FRAMES}",
                best,
                best,
            ),
        ]
    return grids
