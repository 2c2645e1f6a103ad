"""Evaluates the embeddings of a split: all metrics, and a line that describes the computation."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np

from dml_jax.evaluation import kmeans, metric_table, metrics, neighbors, open_set, validation
from dml_jax.evaluation._engine.tiles import normalize
from dml_jax.evaluation.clustering import Average
from dml_jax.evaluation.user_distances import Metric, name_of
from dml_jax.evaluation.validation import ArrayLike

Protocol = Literal["clean", "paper"]

# Published code clusters about a hundred classes with scikit-learn (k-means++, ten restarts, until
# convergence) and many thousands of classes with faiss (random rows, one start, 20 iterations),
# because k-means++ would dominate the cost.
FEW_CLASSES = {"init": "k-means++", "restarts": 10, "max_iterations": 300}
MANY_CLASSES = {"init": "random", "restarts": 1, "max_iterations": 20}
MANY = 1000  # number of classes above which MANY_CLASSES applies

MANY_COPIES = 0.1  # share of queries with near-copies above which metrics mainly measure copies


def near_copies(queries: ArrayLike, gallery: ArrayLike | None = None) -> float:
    """The share of queries [Q, D] whose nearest row, in the gallery if any, is a near-copy."""
    rows = queries if gallery is None else gallery
    if len(rows) == (gallery is None):  # a single image
        return 0.0
    distances, _ = neighbors.search(queries, rows, 1, exclude_self=gallery is None)
    return float((distances < 1 - open_set.NEAR_COPY).mean())


def clustering_options(classes: int, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `kmeans.fit` for a number of classes: the defaults with `overrides`."""
    return {**(FEW_CLASSES if classes <= MANY else MANY_CLASSES), **overrides}


def evaluate(
    embeddings: ArrayLike,
    labels: validation.Labels,
    *,
    protocol: Protocol = "clean",
    cluster: bool = True,
    clustering: Mapping[str, Any] = MappingProxyType({}),
    average: Average = "arithmetic",
    gallery: ArrayLike | None = None,
    metric: Metric = "cosine",
    **options: Any,
) -> dict[str, Any]:
    """Computes all metrics of a split, as fractions, with `metrics.retrieval` and k-means.

    Args:
      embeddings: [N, D], the queries.
      labels: [N] integers or strings; without `cluster`, in any form for `metrics.retrieval`.
      protocol: "clean" excludes each query from its neighbours by index; "paper" drops the first
        neighbour, as published code does, so that a query whose duplicate ranks first counts as its
        own hit.
      cluster: also compute the NMI of k-means on the queries, with as many clusters as classes.
      clustering: "init", "restarts" and "max_iterations" of k-means, instead of the values in
        `clustering_options`.
      average: mean of the entropies in the NMI: geometric in HIST's code, arithmetic in the code of
        the other papers.
      gallery: [G, D] to search instead of the other queries, without exclusions.
      metric: distance that ranks the gallery; with "cosine", k-means runs on rows of unit length.
      options: other arguments of `metrics.retrieval`.

    Returns:
      The requested entries of `metric_table.METRICS`, each with "..._stderr" if known, and
      "lone_queries", the number of queries without a relevant gallery row.
    """
    validation.check_choice("protocol", protocol, get_args(Protocol))
    validation.check_choice("average", average, get_args(Average))
    points = validation.embeddings(embeddings)
    options |= {"metric": metric, "exclusion": "index" if protocol == "clean" else "position"}
    result = metrics.retrieval(points, labels, gallery=gallery, **options)
    if cluster:
        classes = validation.labels(labels, len(points))
        count = len(np.unique(classes))
        if metric == "cosine":
            # Normalised first, because long rows would leave the range of float32.
            points = np.array(points, np.float64 if points.dtype == np.float64 else np.float32)
            normalize(points)
        assignments = kmeans.fit(points, count, **clustering_options(count, clustering)).assignments
        result["nmi"] = metrics.nmi(classes, assignments, average=average)
        result["nmi_stderr"] = metrics.nmi_stderr(classes, assignments, average=average)
    return metric_table.in_display_order(result)


RANKING = re.compile(
    r"exact (\w+) ranking in float32|ranking by (\S+), computed in float64 and rounded to float32"
)


def distance_of(text: str) -> tuple[str, str]:
    """Splits a `description` into the name of the distance and a text without it."""
    match = RANKING.search(text)
    rest = RANKING.sub("exact ranking", text).replace("k-means on unit-length", "k-means on")
    return (match[1] or match[2] if match else ""), rest


def description(
    protocol: Protocol = "clean",
    *,
    cluster: bool = True,
    classes: int | None = None,
    clustering: Mapping[str, Any] = MappingProxyType({}),
    average: Average = "arithmetic",
    gallery: bool = False,
    groups: bool = False,
    metric: Metric = "cosine",
    lone_queries: metrics.Lone = "miss",
    relation: str = "",
) -> str:
    """One line that states how `evaluate` computed its metrics."""
    ranking = f"exact {metric} ranking in float32"
    if callable(metric):
        ranking = f"ranking by {name_of(metric)}, computed in float64 and rounded to float32"
    exclusion = {
        "clean": "query excluded by index",
        "paper": "first neighbour dropped (as in the authors' code)",
    }
    lone = {
        "miss": "count as misses in Recall@K and MRR and are excluded from R-precision and MAP@R",
        "omit": "left out",
    }
    parts = [
        f"{protocol} protocol",
        ranking,
        "separate gallery" if gallery else exclusion[protocol],
        *[f"relevance by {relation}, above 0"] * bool(relation),
        *["relevant rows of the query's group excluded"] * groups,
        "ties broken by lower index",
        f"queries without a relevant row {lone[lone_queries]}",
    ]
    if cluster:
        options = clustering_options(classes or 0, clustering)
        rows = "unit-length embeddings" if metric == "cosine" else "embeddings"
        parts.append(
            f"NMI ({average} mean of entropies) of k-means on {rows}{' of the queries' * gallery}, "
            f"as many clusters as classes, {options['init']} initialisation, best of "
            f"{options['restarts']}, at most {options['max_iterations']} iterations, seed 0"
        )
    return "; ".join(parts)
