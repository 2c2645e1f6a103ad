"""Evaluation of a split's embeddings: all metrics, and a line that describes the computation."""

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

# Published code clusters about a hundred classes with scikit-learn (k-means++, ten restarts, to
# convergence) and many thousands with faiss (random rows, one start, 20 iterations), where
# k-means++ would dominate the cost.
FEW_CLASSES = {"init": "k-means++", "restarts": 10, "max_iterations": 300}
MANY_CLASSES = {"init": "random", "restarts": 1, "max_iterations": 20}
MANY = 1000  # classes; above it MANY_CLASSES applies

MANY_COPIES = 0.1  # share of queries above which metrics measure near-copies


def near_copies(queries: ArrayLike, gallery: ArrayLike | None = None) -> float:
    """The share of queries [Q, D] whose nearest row, of the gallery if given, is a near-copy."""
    searched = queries if gallery is None else gallery
    if len(searched) == (gallery is None):  # one image alone
        return 0.0
    distances, _ = neighbors.search(queries, searched, 1, exclude_self=gallery is None)
    return float((distances < 1 - open_set.NEAR_COPY).mean())


def clustering_options(classes: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `kmeans.fit` for a number of classes; `given` ones replace the defaults."""
    return {**(FEW_CLASSES if classes <= MANY else MANY_CLASSES), **given}


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
    """Computes all metrics of a split, as fractions; a wrapper of `metrics.retrieval`.

    Args:
      embeddings: [N, D], the queries.
      labels: [N] integers or strings, or, without clusters, another form that `metrics.retrieval`
        takes.
      protocol: "clean" excludes each query from its own neighbours by index; "paper" drops the
        first neighbour, as the published codes do, so that a query with a duplicate ranked first
        counts as its own hit.
      cluster: also compute the NMI of k-means on the queries, with as many clusters as classes.
      clustering: "init", "restarts" and "max_iterations" of k-means that replace those of
        `clustering_options`.
      average: mean of the entropies in the NMI; HIST's code uses the geometric mean, the others the
        arithmetic mean.
      gallery: [G, D] to search instead of the other queries; nothing is excluded then.
      metric: distance that ranks the gallery; with "cosine", k-means runs on rows of unit length.
      options: other arguments of `metrics.retrieval`.

    Returns:
      The entries of `metric_table.METRICS` that were requested, each with "..._stderr" if known,
      and "lone_queries", the number of queries without a relevant gallery row.
    """
    validation.choice("protocol", protocol, get_args(Protocol))
    validation.choice("average", average, get_args(Average))
    points = validation.embeddings(embeddings)
    options |= {"metric": metric, "exclusion": "index" if protocol == "clean" else "position"}
    result = metrics.retrieval(points, labels, gallery=gallery, **options)
    if cluster:
        classes = validation.labels(labels, len(points))
        count = len(np.unique(classes))
        if metric == "cosine":
            # Long rows leave the range of float32 unless they are normalised before.
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
    """The distance that a `description` states, and the description of any distance."""
    found = RANKING.search(text)
    without = RANKING.sub("exact ranking", text).replace("k-means on unit-length", "k-means on")
    return (found[1] or found[2] if found else ""), without


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
