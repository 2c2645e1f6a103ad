"""All metrics under one name: retrieval, clusterings (from `clustering`) and embedding spaces (from `geometry`)."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from jax.sharding import Mesh

from dml_jax.errors import DataError, DataWarning
from dml_jax.evaluation import _engine, check_inputs, copies
from dml_jax.evaluation._engine.sharing import among_processes
from dml_jax.evaluation.check_inputs import ArrayLike
from dml_jax.evaluation.clustering import ami, f1_pairs, nmi, nmi_stderr
from dml_jax.evaluation.geometry import alignment, density, effective_rank, singular_values, spectral_decay, uniformity

__all__ = [
    "alignment",
    "ami",
    "density",
    "effective_rank",
    "f1_pairs",
    "nmi",
    "nmi_stderr",
    "retrieval",
    "singular_values",
    "spectral_decay",
    "uniformity",
]


def retrieval(
    queries: ArrayLike,
    labels: ArrayLike,
    *,
    ks: int | Sequence[int] = (1, 2, 4, 8),
    metric: Literal["cosine", "euclidean"] = "cosine",
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    exclude: ArrayLike | None = None,
    exclude_self: bool | None = None,
    exclusion: Literal["index", "position"] = "index",
    full_ranking: bool = False,
    per_query: bool = False,
    mesh: Mesh | None = None,
    shared: bool = False,
    memory: int | None = None,
    announce: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Exact Recall@K, MRR, R-precision and MAP@R (Musgrave et al., ECCV 2020); ties go to the lower index.

    Args:
      queries: [Q, D] real numbers.
      labels: [Q] integers or strings.
      ks: values of K for Recall@K, at most the number of candidates.
      metric: distance that ranks the gallery.
      gallery: [G, D]; by default the queries are their own gallery.
      gallery_labels: [G], of the same kind as `labels`.
      exclude: int [Q], the gallery row to leave out for each query, -1 for none. If the queries are part of the
        gallery, give each one's own row; otherwise every query finds itself first.
      exclude_self: whether query i excludes gallery row i; by default only if the queries are their own gallery. A
        gallery equal to the queries is an error unless this or `exclude` is given.
      exclusion: exclude the query by its index, or, as in the code of several papers, whatever is ranked first.
      full_ranking: also return "map", the mean average precision over the whole ranking, and "precision@K" for `ks`.
      per_query: also return "rank" (int [Q], 1-based rank of the nearest relevant row, 0 if there is none),
        "r_precision_per_query" and "map@r_per_query" (float [Q], NaN for queries without a relevant row).
      mesh: devices, by default all of this process; the results do not depend on them.
      shared: divide the work among all processes of `jax.distributed`, which must all call this with the same values.
      memory: bytes to use per device; by default 60 % of an accelerator's memory, and 1 GiB in all on CPUs.
      announce: called once with a line that describes sizes, devices and memory.
      progress: called with the number of tiles done and the total.

    Returns:
      Python numbers. "recall@K", "macro_recall@1" (the mean over the classes of their queries' Recall@1) and "mrr"
      (mean reciprocal rank of the nearest relevant row), where a query without a relevant row is a miss; "r_precision",
      "map@r", "map" and "precision@K", means over the queries that have a relevant row, NaN if none has; the standard
      error of each as "..._stderr"; and "lone_queries", the number of queries without a relevant row.

    Warns:
      DataWarning: nearly every query has a gallery row at distance 0, and none is excluded.
    """
    points = check_inputs.embeddings(queries, name="queries")
    classes = check_inputs.labels(labels, len(points), of="queries")
    ks = check_inputs.recall_ks(ks)
    if metric not in ("cosine", "euclidean"):
        raise DataError(f"metric={metric!r}: give 'cosine' or 'euclidean'")
    if exclusion not in ("index", "position"):
        raise DataError(f"exclusion={exclusion!r}: give 'index' or 'position'")
    if gallery is None and gallery_labels is None:
        gallery_points, gallery_classes = points, classes
    elif gallery is None or gallery_labels is None:
        raise DataError("gallery and gallery_labels: give both or neither")
    else:
        gallery_points = check_inputs.embeddings(gallery, name="gallery")
        gallery_classes = check_inputs.labels(gallery_labels, len(gallery_points), name="gallery_labels", of="gallery")
        check_inputs.check_same_width(points, gallery_points)
        check_inputs.check_same_kind(classes, gallery_classes)
        if exclude is None and exclude_self is None and check_inputs.equal_rows(points, gallery_points):
            raise DataError(
                "gallery: equals the queries, so every query would find itself; omit the gallery, or give the row that "
                "each query must not find as exclude"
            )
    excluded = None
    if exclude is not None:
        if gallery is None or exclude_self is not None or exclusion == "position":
            raise DataError("exclude: give it with a gallery, and without exclude_self and exclusion")
        excluded = check_inputs.excluded_rows(exclude, classes, gallery_classes, name="exclude")
    elif exclude_self or (exclude_self is None and gallery is None):
        excluded = check_inputs.excluded_rows(np.arange(len(points)), classes, gallery_classes, name="exclude_self")
    unspecified = gallery is not None and excluded is None and exclude_self is None
    if unspecified and (problem := copies.warning(points, gallery_points, metric)):
        warnings.warn(problem, DataWarning, stacklevel=2)
    candidates = len(gallery_points) - (excluded is not None and bool((excluded >= 0).any()))
    for k in ks:
        if not 0 < k <= candidates:
            raise DataError(f"ks: K={k}, but there are {candidates} candidates; K must be in 1..{candidates}")
    plan = _engine.make_plan(
        points,
        classes,
        None if gallery is None else gallery_points,
        gallery_classes,
        metric=metric,
        excluded=excluded if exclusion == "index" else None,
        drop_nearest=excluded is not None and exclusion == "position",
        dtype=check_inputs.compute_dtype(points),
        mesh=mesh,
        memory=memory,
        share=among_processes(shared),
        full_ks=ks if full_ranking else None,
    )
    if announce is not None:
        announce(plan.describe())
    results = _engine.execute(plan, progress)
    summarized: dict[str, Any] = summary(
        results.first_rank, results.r_precision, results.average_precision, results.relevant, classes, ks
    )
    if results.full is not None:
        for name, values in zip(("map", *(f"precision@{k}" for k in ks)), results.full.T, strict=True):
            summarized |= _mean_with_error(name, values[results.relevant > 0])
    if per_query:
        summarized["rank"] = results.first_rank
        summarized["r_precision_per_query"] = results.r_precision
        summarized["map@r_per_query"] = results.average_precision
    return summarized


def summary(
    first_rank: np.ndarray,
    r_precision: np.ndarray,
    average_precision: np.ndarray,
    relevant: np.ndarray,
    labels: np.ndarray,
    ks: tuple[int, ...],
) -> dict[str, float]:
    """Means over the queries and their standard errors, with the keys of `retrieval`.

    Args:
      first_rank: int [Q], 1-based rank of the nearest relevant row; 0 if there is none.
      r_precision: float [Q].
      average_precision: float [Q], average precision at R.
      relevant: int [Q], the number R of relevant rows.
      labels: [Q], class of each query.
      ks: values of K for Recall@K.
    """
    result: dict[str, float] = {}
    for k in ks:
        recall = float(((first_rank > 0) & (first_rank <= k)).mean())
        result[f"recall@{k}"] = recall
        result[f"recall@{k}_stderr"] = float(np.sqrt(recall * (1 - recall) / len(first_rank)))
    _, members, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    recalls = np.bincount(members, first_rank == 1) / sizes
    result["macro_recall@1"] = float(recalls.mean())
    result["macro_recall@1_stderr"] = float(np.sqrt(np.sum(recalls * (1 - recalls) / sizes)) / len(sizes))
    result |= _mean_with_error("mrr", np.where(first_rank > 0, 1 / np.maximum(first_rank, 1), 0))
    has_relevant = relevant > 0
    result |= _mean_with_error("r_precision", r_precision[has_relevant])
    result |= _mean_with_error("map@r", average_precision[has_relevant])
    result["lone_queries"] = int((~has_relevant).sum())
    return result


def _mean_with_error(name: str, values: np.ndarray) -> dict[str, float]:
    """The mean and its standard error under their keys; NaN if there are no values."""
    if not len(values):
        return {name: float("nan"), f"{name}_stderr": float("nan")}
    return {name: float(values.mean()), f"{name}_stderr": float(values.std() / np.sqrt(len(values)))}
