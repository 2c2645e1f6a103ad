"""How the embeddings of a split are judged, and one line that says so beside the numbers."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from dml_jax.evaluation import kmeans, metrics, validation
from dml_jax.evaluation._ranking.tiles import Metric, normalize

Name = Literal["clean", "paper"]
Average = Literal["arithmetic", "geometric"]


class Start(NamedTuple):
    """How k-means begins and how long it goes on.

    Attributes:
      init: see `kmeans.fit`.
      restarts: how many starts.
      iterations: at most.
    """

    init: str
    restarts: int
    iterations: int


# The published codes cluster a hundred classes with scikit-learn (k-means++, ten starts, to convergence) and many
# thousand with faiss (random rows, one start, 20 iterations): there k-means++ costs more than the clustering itself.
FEW_CLASSES = Start("k-means++", 10, 300)
MANY_CLASSES = Start("random", 1, 20)
MANY = 1000


def begin(classes: int, restarts: int | None = None) -> Start:
    """The start for a number of clusters."""
    usual = FEW_CLASSES if classes <= MANY else MANY_CLASSES
    return usual if restarts is None else usual._replace(restarts=restarts)


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
    metric: Metric = "cosine",
    memory: int | None = None,
    announce: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    cluster_progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """All metrics of a split, as fractions.

    Args:
      embeddings: [N, D], the queries.
      labels: int [N].
      ks: of Recall@K; those larger than the number of candidates are left out.
      protocol: "clean" leaves a query out of its own neighbours by index; "paper" leaves out whatever comes first, as
        the published codes do, which counts the query itself as a hit where a copy of it comes first.
      cluster: also k-means of the queries with as many clusters as classes, and its NMI.
      seed: of k-means.
      restarts: of k-means; by default as many as `begin` says.
      average: of the entropies in the NMI; geometric in HIST's code, arithmetic in the others'.
      gallery: [G, D] to search instead of the other queries; nothing is left out then.
      gallery_labels: int [G].
      metric: what ranks the gallery, and whether k-means sees unit rows.
      memory, announce, progress: see `metrics.retrieval`.
      cluster_progress: the `progress` of `kmeans.fit`.

    Returns:
      "recall@K", "r_precision", "map@r", "nmi", each with "..._stderr", and "lone_queries".

    Raises:
      DataError: see `metrics.retrieval`.
    """
    points = validation.embeddings(embeddings)
    candidates = len(points) - 1 if gallery is None else len(gallery)
    result: dict[str, float] = metrics.retrieval(
        points,
        labels,
        ks=tuple(k for k in ks if k <= candidates),
        metric=metric,
        gallery=gallery,
        gallery_labels=gallery_labels,
        exclusion="index" if protocol == "clean" else "position",
        memory=memory,
        announce=announce,
        progress=progress,
    )
    if cluster:
        classes = len(np.unique(labels))
        if metric == "cosine":
            points = points.astype(validation.working(points))
            normalize(points)
        start = begin(classes, restarts)
        found = kmeans.fit(
            points,
            classes,
            init=start.init,
            seed=seed,
            restarts=start.restarts,
            max_iterations=start.iterations,
            progress=cluster_progress,
        )
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
    metric: Metric = "cosine",
) -> str:
    """One line naming how the numbers of `judge` were made; same arguments, `classes` being their number."""
    exclusion = {
        "clean": "query left out by index",
        "paper": "first neighbour left out (as the authors' codes)",
    }
    parts = [
        f"{protocol} protocol",
        f"exact {metric} ranking in float32",
        "separate gallery" if gallery else exclusion[protocol],
        "ties to the lower index",
        "a query without a relevant row is a miss in recall and left out of r_precision and map@r",
    ]
    if cluster:
        start = begin(classes or 0, restarts)
        rows = "unit rows" if metric == "cosine" else "rows"
        parts.append(
            f"NMI ({average} mean of entropies) of k-means on {rows}{' of the queries' * gallery}, as many clusters as "
            f"classes, {start.init} start, best of {start.restarts}, at most {start.iterations} iterations, seed {seed}"
        )
    return "; ".join(parts)
