"""Retrieved images of sampled queries, and Recall@1 of every class."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dml_jax import drawing
from dml_jax.analysis.analysed_model import AnalysedModel
from dml_jax.analysis.findings import Finding
from dml_jax.data import sessions
from dml_jax.data.split import Split
from dml_jax.drawing import Mark, Picture, thumbnail
from dml_jax.evaluation import metrics, neighbors

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

QUERIES, NEIGHBORS = 10, 8  # rows and columns of the sample of queries


def picture(split: Split, index: int, mark: Mark, note: str = "") -> Picture:
    """The thumbnail of an image of a split."""
    name = split.classes[split.labels[index]]
    return Picture(thumbnail(split.read(index, None)), split.ids[index], name, mark, note)


def gallery_of(run: AnalysedModel, split: str) -> str:
    """Name of the split in which the queries of a split search: "gallery", or the split itself."""
    return "gallery" if split == "test" and "gallery" in run.splits else split


def ranked(run: AnalysedModel, split: str) -> dict[str, Any]:
    """`metrics.retrieval` with values per query, by the distance and sessions of the results."""
    gallery, distance = gallery_of(run, split), run.model.method.distance
    options: dict[str, Any] = {"ks": (1,), "per_query": True, "metric": distance}
    if gallery != split:
        options |= {"gallery": run.embeddings(gallery), "gallery_labels": run.split(gallery).labels}
    options |= _sessions(run, split)
    return metrics.retrieval(run.embeddings(split), run.split(split).labels, **options)


def _sessions(run: AnalysedModel, split: str) -> dict[str, Any]:
    """`groups` and `gallery_groups` of the queries and the gallery; empty without sessions."""
    names = dict.fromkeys((split, gallery_of(run, split)))
    parts = {name: run.split(name) for name in names}
    return dict(sessions.session_groups(parts)) if run.config.data.session else {}


def search(run: AnalysedModel, split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances and gallery rows of the nearest other images, [N, count] each; those of the query's
    class and session come last."""
    gallery, across = gallery_of(run, split), _sessions(run, split)
    rows, others, omitted = run.embeddings(split), run.embeddings(gallery), 0
    if across:
        sides = across["groups"], across.get("gallery_groups", across["groups"])
        numbered = np.unique(np.concatenate(sides), return_inverse=True)[1]
        own, other = (
            np.stack([run.split(name).labels, part])
            for name, part in ((split, numbered[: len(rows)]), (gallery, numbered[-len(others) :]))
        )
        omitted = int(np.unique(other, axis=1, return_counts=True)[1].max())
    most = min(count + omitted, len(others) - (gallery == split))
    distances, indices = neighbors.search(
        rows, others, most, metric=run.model.method.distance, exclude_self=gallery == split
    )
    if across:
        same = (own[:, :, None] == other[:, indices]).all(axis=0)
        order = np.argsort(same, axis=1, kind="stable")
        distances, indices = (
            np.take_along_axis(part, order, axis=1) for part in (distances, indices)
        )
    return distances[:, :count], indices[:, :count]


def sample_queries(wrong: np.ndarray) -> np.ndarray:
    """Up to QUERIES random queries, at most half of them with a `wrong` nearest image: int [n]."""
    rng = np.random.default_rng(0)
    failures = rng.permutation(np.flatnonzero(wrong))[: QUERIES // 2]
    successes = rng.permutation(np.flatnonzero(~wrong))[: QUERIES - len(failures)]
    return np.concatenate([successes, failures])


def findings(run: AnalysedModel, split: str) -> list[Finding]:
    """Sampled queries with their nearest images."""
    name = gallery_of(run, split)
    queries, gallery = run.split(split), run.split(name)
    found, cosine = ranked(run, split), run.model.method.distance == "cosine"
    distances, indices = search(run, split, NEIGHBORS)
    correct = gallery.labels[indices] == queries.labels[:, None]
    rank, precision = found["rank"], found["map@r_per_query"]

    def strip(query: int) -> list[Picture]:
        near = zip(indices[query], distances[query], correct[query], strict=True)
        return [picture(queries, query, "query")] + [
            picture(gallery, int(i), "right" if hit else "wrong", note(far)) for i, far, hit in near
        ]

    def note(far: float) -> str:
        return f"{1 - far:.3f}" if cosine else f"{far:.3g}"

    shown = sample_queries(~correct[:, 0]).tolist()
    first = [f"first of its class at rank {r:,}" if r > 1 else "" for r in rank[shown].tolist()]
    strips = [strip(query) for query in shown]
    return [
        Finding(
            "retrieval",
            f"Sampled queries of the split '{split}' and their nearest images, nearest first. ✓, "
            "solid blue frame: the class of the query; ✗, dashed orange frame: another class; the "
            f"number is the {'cosine' if cosine else 'distance'}. Half of the "
            "queries are sampled from those whose nearest image shows another class, so failures "
            "are over-represented. All queries are in the CSV file.",
            partial(drawing.draw_pictures, rows=strips),
            {
                "query": queries.ids,
                "class": [queries.classes[label] for label in queries.labels],
                "first_relevant_rank": rank.tolist(),
                "average_precision_at_r": precision.tolist(),
                "nearest": [gallery.ids[i] for i in indices[:, 0]],
                "its_class": [gallery.classes[label] for label in gallery.labels[indices[:, 0]]],
                "distance": distances[:, 0].tolist(),
            },
            size=drawing.size_of_pictures(strips),
            pictures=list(zip(first, strips, strict=True)),
        )
    ]


def recall_by_class(
    labels: np.ndarray, hits: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Classes int [C], increasing, their Recall@1 float [C] and numbers of queries int [C], from
    the labels of the queries int [N] and whether their nearest neighbour is right, bool [N]."""
    classes, members, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return classes, np.bincount(members, weights=hits, minlength=len(classes)) / counts, counts


def class_findings(run: AnalysedModel, split: str) -> list[Finding]:
    """Recall@1 by class."""
    data, found = run.split(split), ranked(run, split)
    # Across sessions, as in the results, a query without another session of its class is left out.
    counted = np.isfinite(found["map@r_per_query"]) | (not run.config.data.session)
    classes, recall, counts = recall_by_class(data.labels[counted], found["rank"][counted] == 1)
    order = np.argsort(recall, kind="stable")
    return [
        Finding(
            "classes",
            f"Recall@1 of the {len(classes)} classes of the split '{split}', worst first.",
            partial(draw_recall, recall=recall[order]),
            {
                "class": [data.classes[label] for label in classes[order]],
                "recall@1": recall[order].tolist(),
                "queries": counts[order].tolist(),
            },
            size=(8, 3),
            listed=True,
        )
    ]


def draw_recall(figure: "FigureBase", *, recall: np.ndarray) -> None:
    """Draws the sorted recall of the classes, and their mean."""
    axes = drawing.style(figure.subplots())
    count, mean = len(recall), recall.mean()
    steps = np.arange(count + 1), np.append(recall, recall[-1])
    axes.fill_between(*steps, step="post", color=drawing.BLUE)
    label = f"mean of the classes {mean:.3f}"
    axes.axhline(mean, color=drawing.YELLOW, linestyle="--", label=label)
    limits = {"ylim": (0, 1.15), "xlim": (0, count)}
    axes.set(xlabel="classes, worst first", ylabel="Recall@1", **limits)
    drawing.legend(axes)
