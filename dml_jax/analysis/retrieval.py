"""Retrieved images: a sample of queries, and the queries whose first relevant image comes last."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax.analysis import figures
from dml_jax.analysis.findings import Finding
from dml_jax.analysis.trained_run import TrainedRun
from dml_jax.evaluation import metrics, neighbors

TITLE = "Retrieved images"
WORST = 10  # queries in the figure


def gallery_of(run: TrainedRun, split: str) -> str:
    """Name of the split that the queries of a split search: "gallery", or the split itself."""
    return split if run.split(split).gallery is None else "gallery"


def search(run: TrainedRun, split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine distances and gallery rows of the nearest images, [N, count] each; a query never finds itself."""
    gallery = gallery_of(run, split)
    rows, others = run.embeddings(split), run.embeddings(gallery)
    count = min(count, len(others) - (gallery == split))
    return neighbors.search(rows, others, count, exclude_self=gallery == split)


def nearest_labels(run: TrainedRun, split: str) -> np.ndarray:
    """The class of each query's nearest image: int [N]."""
    return run.split(gallery_of(run, split)).labels[search(run, split, 1)[1][:, 0]]


def worst_first(first_rank: np.ndarray, average_precision: np.ndarray) -> np.ndarray:
    """Queries by decreasing rank of their first relevant image, then by increasing average precision: int [M].

    Args:
      first_rank: int [N]; 0 for queries without a relevant image, which are left out.
      average_precision: float [N].
    """
    order = np.lexsort((np.nan_to_num(average_precision), -first_rank))
    return order[first_rank[order] > 0]


def findings(run: TrainedRun, split: str) -> list[Finding]:
    """A grid of sampled queries and one of the worst."""
    name = gallery_of(run, split)
    queries, gallery = run.split(split), run.split(name)
    against: dict[str, Any] = {}
    if name != split:
        against = {"gallery": run.embeddings(name), "gallery_labels": gallery.labels}
    found = metrics.retrieval(run.embeddings(split), queries.labels, ks=(1,), per_query=True, **against)
    distances, indices = search(run, split, figures.NEIGHBORS)
    rank, precision = found["rank"], found["map@r_per_query"]
    worst = worst_first(rank, precision)
    sample = figures.sample_queries(gallery.labels[indices[:, 0]] != queries.labels)

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
        figures.plot_retrieved_images(
            path, rows, (gallery.labels[indices[shown]] == queries.labels[shown, None]).tolist()
        )

    columns = ("query", "class", "first_relevant_rank", "average_precision_at_r", "nearest", "its_class", "distance")
    frames = "Solid blue frames: same class as the query; dashed orange frames: another class."
    grids = [
        Finding(
            "retrieval",
            f"Queries of the split '{split}' (left column) and their nearest images. {frames} Half of the queries are "
            "sampled from those whose nearest image is of another class.",
            partial(grid, shown=sample),
            columns,
            [row(int(query)) for query in sample],
        ),
    ]
    if len(worst):
        ranks = ", ".join(str(r) for r in rank[worst[:WORST]])
        caption = (
            f"The queries of the split '{split}' whose first relevant image comes last, at ranks {ranks}. {frames} The "
            "CSV file lists all queries, worst first."
        )
        rows = [row(int(query)) for query in worst]
        grids.append(Finding("worst_queries", caption, partial(grid, shown=worst[:WORST]), columns, rows))
    return grids
