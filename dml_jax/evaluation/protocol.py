"""How the embeddings of a split are judged, and one line that says so beside the numbers."""

from typing import Any, Literal

import numpy as np

from dml_jax.evaluation import arrays, kmeans, metrics

Name = Literal["clean", "paper"]
Average = Literal["arithmetic", "geometric"]

# Above this many classes k-means++ costs more than the clustering itself, and random rows are what the published
# numbers of such data sets (Stanford Online Products) rest on.
MANY_CLASSES = 1000
RESTARTS = 10


def start(classes: int) -> tuple[str, int]:
    """Start and number of restarts of the k-means for a number of classes."""
    return ("k-means++", RESTARTS) if classes <= MANY_CLASSES else ("random", 1)


def judge(
    embeddings: Any,
    labels: Any,
    *,
    ks: tuple[int, ...] = (1, 2, 4, 8),
    protocol: Name = "clean",
    cluster: bool = True,
    seed: int = 0,
    restarts: int | None = None,
    average: Average = "arithmetic",
    gallery: Any = None,
    gallery_labels: Any = None,
) -> dict[str, float]:
    """All metrics of a split by cosine, as fractions.

    Args:
      embeddings: [N, D], the queries.
      labels: int [N].
      ks: of Recall@K; those larger than the number of candidates are left out.
      protocol: "clean" leaves a query out of its own neighbours by index; "paper" by position, as the published codes.
      cluster: also k-means with as many clusters as classes, and its NMI.
      seed: of k-means.
      restarts: of k-means; by default 10, and 1 above a thousand classes.
      average: of the entropies in the NMI.
      gallery: [G, D] to search instead of the other queries.
      gallery_labels: int [G].

    Returns:
      "recall@K", "r_precision", "map@r", "nmi", each with "..._stderr", and "lone_queries".

    Raises:
      DataError: see `metrics.retrieval`.
    """
    points = arrays.embeddings(embeddings)
    candidates = len(points) - 1 if gallery is None else len(gallery)
    result: dict[str, float] = metrics.retrieval(
        points,
        labels,
        ks=tuple(k for k in ks if k <= candidates),
        gallery=gallery,
        gallery_labels=gallery_labels,
        exclusion="index" if protocol == "clean" else "position",
    )
    if cluster:
        classes = len(np.unique(labels))
        init, usual = start(classes)
        length = np.linalg.norm(points, axis=1, keepdims=True)
        directions = points / np.where(length > 0, length, 1)
        found = kmeans.fit(directions, classes, init=init, seed=seed, restarts=restarts or usual)
        result["nmi"] = metrics.nmi(labels, found.assignments, average=average)
        result["nmi_stderr"] = metrics.nmi_stderr(labels, found.assignments)
    return result


def describe(
    protocol: Name = "clean",
    *,
    cluster: bool = True,
    classes: int | None = None,
    seed: int = 0,
    restarts: int | None = None,
    average: Average = "arithmetic",
    gallery: bool = False,
) -> str:
    """One line naming how the numbers of `judge` were made; same arguments, `classes` being their number."""
    exclusion = {
        "clean": "query left out by index",
        "paper": "first neighbour left out (as the authors' codes)",
    }
    parts = [
        f"{protocol} protocol",
        "cosine distance of float32 unit rows, exact",
        "separate gallery" if gallery else exclusion[protocol],
        "ties to the lower index",
        "a query without a relevant row is a miss in recall and left out of r_precision and map@r",
    ]
    if cluster:
        init, usual = start(classes or 0)
        parts.append(
            f"NMI with {average} mean of one k-means into as many clusters as classes, {init} start, "
            f"best inertia of {restarts or usual}, seed {seed}"
        )
    return "; ".join(parts)
