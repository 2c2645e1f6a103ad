"""Retrieval and clustering metrics of any embeddings."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from jax.sharding import Mesh

from dml_jax.errors import DataError
from dml_jax.evaluation import validation
from dml_jax.evaluation._ranking import plan
from dml_jax.evaluation.clustering import ami, f1_pairs, nmi, nmi_stderr
from dml_jax.evaluation.geometry import density, singular_values, spectral_decay
from dml_jax.evaluation.uniformity import uniformity

__all__ = [
    "ami",
    "density",
    "f1_pairs",
    "nmi",
    "nmi_stderr",
    "retrieval",
    "singular_values",
    "spectral_decay",
    "uniformity",
]


def retrieval(
    queries: Any,
    labels: Any,
    *,
    ks: tuple[int, ...] = (1, 2, 4, 8),
    metric: Literal["cosine", "euclidean"] = "cosine",
    gallery: Any = None,
    gallery_labels: Any = None,
    exclude_self: bool | None = None,
    exclusion: Literal["index", "position"] = "index",
    per_query: bool = False,
    mesh: Mesh | None = None,
    memory: int | None = None,
    announce: Callable[[str], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Recall@K, R-precision and MAP@R (Musgrave et al., ECCV 2020), exact, ties to the lower index.

    Args:
      queries: [Q, D] real numbers.
      labels: int [Q].
      ks: which K of Recall@K.
      metric: distance that ranks the gallery.
      gallery: [G, D] to search instead of the queries themselves.
      gallery_labels: int [G].
      exclude_self: whether query i must not find gallery row i; by default where the queries are the gallery.
      exclusion: the query left out by its index, or, as the authors' codes did, whatever comes first left out.
      per_query: also return "rank" (1-based, of the nearest relevant row, 0 if none), "r_precision_per_query" and
        "map@r_per_query" (NaN where a query has no relevant row).
      mesh: devices, all by default; no result depends on them.
      memory: bytes that may be used on a device, by default 60 % of an accelerator and 1 GiB of a CPU.
      announce: called with the plan, sizes and memory, in one line.
      progress: called with tiles done and in all.

    Returns:
      "recall@K" (a query without a relevant row is a miss), "r_precision", "map@r" (means over queries that have one;
      NaN if none has), each with "..._stderr", and "lone_queries", how many queries have no relevant row.

    Raises:
      DataError: wrong shapes or types, rows that are not finite, K larger than the number of candidates.
    """
    points = validation.embeddings(queries, name="queries")
    classes = validation.labels(labels, len(points), of="queries")
    if metric not in ("cosine", "euclidean"):
        raise DataError(f"metric={metric!r}: give 'cosine' or 'euclidean'")
    if exclusion not in ("index", "position"):
        raise DataError(f"exclusion={exclusion!r}: give 'index' or 'position'")
    if (gallery is None) != (gallery_labels is None):
        raise DataError("gallery and gallery_labels: give both or neither")
    if exclude_self is None:
        exclude_self = gallery is None
    if gallery is None:
        others, other_classes = points, classes
    else:
        others = validation.embeddings(gallery, name="gallery")
        other_classes = validation.labels(gallery_labels, len(others), name="gallery_labels", of="gallery")
        validation.same_width(points, others)
        if exclude_self and not np.array_equal(other_classes[: len(classes)], classes):
            raise DataError(
                "exclude_self: gallery row i is not of the class of query i; begin the gallery with the queries"
            )
    candidates = len(others) - exclude_self
    for k in ks:
        if not 0 < k <= candidates:
            raise DataError(f"ks: K={k}, but there are {candidates} candidates; K must be in 1..{candidates}")
    task = plan.plan(
        points,
        classes,
        None if gallery is None else others,
        other_classes,
        metric=metric,
        exclusion=exclusion if exclude_self else "none",
        dtype=validation.working(points),
        devices=mesh,
        limit=memory,
    )
    if announce is not None:
        announce(task.describe())
    first, precision, average, relevant = plan.judge(task, progress)
    result = summary(first, precision, average, relevant, ks)
    if per_query:
        result |= {"rank": first, "r_precision_per_query": precision, "map@r_per_query": average}
    return result


def summary(
    first: np.ndarray, precision: np.ndarray, average: np.ndarray, relevant: np.ndarray, ks: tuple[int, ...]
) -> dict[str, Any]:
    """Means over the queries and their standard errors, as `retrieval` returns them.

    Args:
      first: int [Q], 1-based rank of the nearest relevant row; 0 where there is none.
      precision: float [Q], R-precision.
      average: float [Q], average precision at R.
      relevant: int [Q], R.
      ks: of Recall@K.
    """
    result: dict[str, Any] = {}
    for k in ks:
        recall = float(((first > 0) & (first <= k)).mean())
        result[f"recall@{k}"] = recall
        result[f"recall@{k}_stderr"] = float(np.sqrt(recall * (1 - recall) / len(first)))
    has = relevant > 0
    for name, values in (("r_precision", precision), ("map@r", average)):
        kept = values[has]
        result[name] = float(kept.mean()) if len(kept) else float("nan")
        result[f"{name}_stderr"] = float(kept.std() / np.sqrt(len(kept))) if len(kept) else float("nan")
    result["lone_queries"] = int((~has).sum())
    return result
