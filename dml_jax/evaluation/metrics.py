"""All metrics under one name: of retrieval, clusterings (`clustering`) and spaces (`geometry`)."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from dml_jax.errors import ConfigError, DataError
from dml_jax.evaluation import _engine, user_distances, validation
from dml_jax.evaluation._engine import RowFunction, Task
from dml_jax.evaluation.clustering import ami, f1_pairs, nmi, nmi_stderr
from dml_jax.evaluation.geometry import density, effective_rank, singular_values, spectral_decay
from dml_jax.evaluation.metric_table import PER_QUERY, USER
from dml_jax.evaluation.validation import ArrayLike

Lone = Literal["miss", "omit"]
MANY_SHARED = 0.1  # share of queries that are rows of the gallery above which retrieval warns

__all__ = [
    "ami",
    "density",
    "effective_rank",
    "f1_pairs",
    "nmi",
    "nmi_stderr",
    "of_ranked_lists",
    "retrieval",
    "singular_values",
    "spectral_decay",
]


def retrieval(
    queries: ArrayLike,
    labels: validation.Labels,
    *,
    ks: int | Sequence[int] = (1, 2, 4, 8),
    metric: user_distances.Metric = "cosine",
    gallery: ArrayLike | None = None,
    gallery_labels: validation.Labels | None = None,
    exclude_self: bool | None = None,
    exclusion: Literal["index", "position"] = "index",
    groups: ArrayLike | None = None,
    gallery_groups: ArrayLike | None = None,
    lone_queries: Lone = "miss",
    functions: Mapping[str, RowFunction] | None = None,
    relation: validation.Relation | None = None,
    per_query: bool = False,
) -> dict[str, Any]:
    """Exact Recall@K, MRR, R-precision, MAP@R (Musgrave et al., ECCV 2020); ties to lower indices.

    Args:
      queries: [Q, D] real numbers.
      labels: [Q] integers or strings. With several classes per row, a list of them for each row or
        an array [Q, C] of bool or 0 and 1; rows that share a class are relevant to each other.
      ks: values of K for Recall@K, at most the number of candidates.
      metric: distance that ranks the gallery, or a function of two blocks of rows (see
        `user_distances`).
      gallery: [G, D]; by default the queries are their own gallery.
      gallery_labels: [G], lists or [G, C], of the same kind as `labels`.
      exclude_self: whether query i excludes gallery row i; by default only if the queries are their
        own gallery. Unless this or `groups` is given, a gallery equal to the queries is an error,
        and one that holds more than a tenth of them, in any order, a warning.
      exclusion: exclude the query by its index, or, as in the code of several papers, whatever is
        ranked first.
      groups: [Q] integers or strings, such as cameras. A query leaves out the relevant rows of its
        group, as in the re-identification of persons and vehicles (Zheng et al., ICCV 2015). For
        queries that are part of the gallery in any order, give each image its group; otherwise
        every query finds itself first.
      gallery_groups: [G], of the same kind as `groups`.
      lone_queries: whether a query without a relevant row, such as the only image of its class, is
        a miss in Recall@K and MRR, or left out of all metrics.
      functions: further metrics by name, functions from whether each row is relevant, nearest
        first, bool [G], to a number; their means over the queries that have a relevant row are
        returned as "user/NAME". Functions with an argument `grades` also get these, float [G], 0
        and 1 without a `relation`. Every query is then sorted.
      relation: grades of relevance in place of equal classes: a function from some of the labels
        and of the gallery's, each once, [n] and [m], to [n, m]: above 0 for relevant rows, 0 for
        others, NaN for rows that the query leaves out. Also returns "ndcg" and "ndcg@K", normalised
        discounted cumulative gains with the grades as gains. Every query is then sorted.
      per_query: also return "rank" (int [Q], 1-based rank of the nearest relevant row, 0 if there
        is none) and, for each metric that is a mean over the queries with a relevant row,
        "METRIC_per_query" (float [Q], NaN for queries without one).

    Returns:
      Python numbers. "recall@K", "macro_recall@1" (the mean over the classes of their queries'
      Recall@1; only with one class per query) and "mrr" (mean reciprocal rank of the nearest
      relevant row), where a query without a relevant row is a miss unless `lone_queries="omit"`;
      "r_precision", "map@r" and all others, means over the queries that have a relevant row, NaN if
      none has; the standard error of each as "..._stderr"; and "lone_queries", the number of
      queries without a relevant row. Rows that a query leaves out are neither ranked nor relevant;
      a query that leaves out all its relevant rows has none.
    """
    validation.metric(metric, "cosine", "euclidean")
    validation.choice("exclusion", exclusion, ("index", "position"))
    validation.choice("lone_queries", lone_queries, get_args(Lone))
    if functions is not None and not isinstance(functions, Mapping):
        raise ConfigError(f"functions={functions!r}: must be a dict of functions by their names")
    alone = gallery is None  # the queries are their own gallery
    grouped = not alone and groups is not None
    for name, given, needed, without in (
        ("gallery_labels", gallery_labels, not alone, "a gallery"),
        ("gallery_groups", gallery_groups, grouped, "a gallery and groups"),
    ):
        if (given is not None) != needed:
            problem = "are missing" if needed else f"are given without {without}"
            raise DataError(f"{name}: {problem}; give all of these arguments, or none")
    searched = queries if gallery is None else gallery
    points, gallery_points = validation.searched_pair(queries, searched)
    ks = validation.recall_ks(ks)
    sizes = len(points), len(gallery_points)
    classes, gallery_classes, judge = validation.targets(
        labels, gallery_labels, *sizes, alone=alone, relation=relation
    )
    common_groups = validation.common_groups(groups, gallery_groups, *sizes, alone=alone)
    drop_nearest = exclusion == "position"
    if drop_nearest and (judge or common_groups):
        raise DataError("exclusion='position': needs one class per row, without groups")
    if not alone and exclude_self is None and groups is None:
        _check_no_query_in_gallery(points, gallery_points)
    exclude_self = alone if exclude_self is None else exclude_self
    if exclude_self and not np.array_equal(classes, gallery_classes[: len(points)]):
        problem = "the gallery must begin with the queries, but their classes differ"
        raise DataError(f"exclude_self: {problem}")
    candidates = validation.candidates(gallery_points, exclude_self=exclude_self)
    if max(ks, default=0) > candidates:
        raise DataError(
            f"ks: K={max(ks)}, but there are {candidates} candidates; K must be in 1..{candidates}"
        )
    drop_nearest &= exclude_self
    exclusions = exclude_self and not drop_nearest, drop_nearest
    further = tuple((functions or {}).values())
    of_rows = classes, gallery_classes, judge, common_groups
    task = Task(*of_rows, *exclusions, further, ks if relation else None)
    if callable(metric):
        blocks = user_distances.blocks(metric, points, gallery_points)
        results = _engine.rank_by_distance(task, blocks)
    else:
        others, dtype = None if alone else gallery_points, validation.compute_dtype(points)
        results = _engine.rank(task, points, others, metric=metric, dtype=dtype)
    classes_of_mean = classes if judge is None else None
    summarized: dict[str, Any] = summary(*results[:4], classes_of_mean, ks, lone_queries)
    names = [f"{USER}{name}" for name in functions or ()]
    names += ["ndcg", *(f"ndcg@{k}" for k in ks)] if relation else []
    columns = np.concatenate([results.by_functions, results.graded], axis=1).T
    found = dict(zip(names, columns, strict=True))
    for name, column in found.items():
        summarized |= _mean_with_error(name, column[results.relevant > 0])
    if per_query:
        found |= {"r_precision": results.r_precision, "map@r": results.average_precision}
        summarized["rank"] = results.first_rank
        summarized |= {f"{name}{PER_QUERY}": column for name, column in found.items()}
    return summarized


def _check_no_query_in_gallery(queries: np.ndarray, gallery: np.ndarray) -> None:
    """Raises DataError for a gallery equal to the queries, and warns of one with many of them."""
    if validation.equal_rows(queries, gallery):
        problem = "equals the queries, so every query would find itself"
        raise DataError(f"gallery: {problem}; omit it, or give exclude_self")
    shared = validation.shared_rows(queries, gallery)
    if shared > MANY_SHARED * len(queries):
        warnings.warn(
            f"gallery: {shared:,} of {len(queries):,} queries equal a row of it and may find "
            "themselves; leave these rows out, or give every image a group of its own (groups, "
            "gallery_groups)",
            stacklevel=3,
        )


def relevant_counts(
    labels: np.ndarray, gallery_labels: np.ndarray, *, exclude_self: bool
) -> np.ndarray:
    """R of each query, the gallery rows of its class without `exclude_self` itself: int64 [Q]."""
    labels, gallery_labels = validation.numbered(labels, gallery_labels)
    sizes = np.bincount(gallery_labels, minlength=labels.max() + 1)
    return sizes[labels] - exclude_self


def of_ranked_lists(
    indices: ArrayLike,
    labels: ArrayLike,
    gallery_labels: ArrayLike | None = None,
    *,
    ks: int | Sequence[int] = (1, 2, 4, 8),
    lone_queries: Lone = "miss",
) -> dict[str, float]:
    """Recall@K, MRR, R-precision and MAP@R (Musgrave et al., ECCV 2020) of ranked lists.

    Args:
      indices: int [Q, L], gallery rows, nearest first; without the query itself if the queries are
        the gallery. L must reach every K and the largest R (see `relevant_counts`).
      labels: [Q] integers or strings.
      gallery_labels: [G]; None if the queries are the gallery.
      ks: K of Recall@K, at most L.
      lone_queries: as for `retrieval`.

    Returns:
      The same dictionary as `retrieval`, by the same conventions; for "mrr", a relevant row beyond
      the end of a list is a miss.
    """
    lists = np.asarray(indices)
    validation.choice("lone_queries", lone_queries, get_args(Lone))
    if lists.ndim != 2 or lists.dtype.kind not in "iu" or not len(lists):
        raise DataError(
            f"indices: hold {lists.dtype} of shape {list(lists.shape)}; give integers [Q, L]"
        )
    queries = validation.labels(labels, len(lists), of="indices")
    ks = validation.recall_ks(ks)
    exclude_self = gallery_labels is None
    gallery = queries
    if gallery_labels is not None:
        rows = len(np.asarray(gallery_labels))
        gallery = validation.labels(gallery_labels, rows, name="gallery_labels")
        queries, gallery = validation.numbered(queries, gallery)
    if lists.size and not (lists.min() >= 0 and lists.max() < len(gallery)):
        found = f"{lists.min()}..{lists.max()}"
        raise DataError(f"indices: are in {found}, but the gallery has {len(gallery)} rows")
    relevant = relevant_counts(queries, gallery, exclude_self=exclude_self)
    needed = max(*ks, int(relevant.max(initial=0)), 1)
    if lists.shape[1] < needed:
        raise DataError(
            f"indices: lists have {lists.shape[1]} rows, but these K and class sizes need {needed}"
        )
    if exclude_self and (own := lists == np.arange(len(lists))[:, None]).any():
        query = own.any(axis=1).argmax()
        raise DataError(f"indices: list {query} holds its own query; leave every query out")
    for part in validation.slices(*lists.shape):
        ranked = np.sort(lists[part], axis=1)
        if (twice := (ranked[:, 1:] == ranked[:, :-1]).any(axis=1)).any():
            raise DataError(f"indices: list {part.start + twice.argmax()} holds a row twice")
    return of_blocks_of_lists([lists], queries, gallery, relevant, ks, lone_queries)


def of_blocks_of_lists(
    blocks: Iterable[np.ndarray],
    labels: np.ndarray,
    gallery_labels: np.ndarray,
    relevant: np.ndarray,
    ks: tuple[int, ...],
    lone_queries: Lone,
) -> dict[str, float]:
    """`of_ranked_lists` for blocks of lists, int [_, L], and the queries' `relevant_counts`."""
    found, start = [], 0
    for block in blocks:
        part = slice(start, start := start + len(block))
        hits, counts = gallery_labels[block] == labels[part, None], relevant[part]
        found.append(_engine.metrics_from_ranks(hits * np.arange(1, hits.shape[1] + 1), counts))
    first, precision, average = (np.concatenate(values) for values in zip(*found, strict=True))
    return summary(first, precision, average, relevant, labels, ks, lone_queries)


def summary(
    first_rank: np.ndarray,
    r_precision: np.ndarray,
    average_precision: np.ndarray,
    relevant: np.ndarray,
    labels: np.ndarray | None,
    ks: tuple[int, ...],
    lone_queries: Lone = "miss",
) -> dict[str, float]:
    """Means over the queries of values [Q] and their standard errors, by the keys of `retrieval`.

    `first_rank` is 1-based, 0 without a relevant row; "macro_recall@1" needs `labels`.
    """
    result: dict[str, float] = {}
    has_relevant = relevant > 0
    if lone_queries == "omit":
        first_rank = first_rank[has_relevant]
        labels = None if labels is None else labels[has_relevant]
    for k in ks:
        result |= _mean_with_error(f"recall@{k}", (first_rank > 0) & (first_rank <= k))
    if labels is not None:
        _, members, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        recalls = np.bincount(members, first_rank == 1) / sizes
        variance, count = np.sum(recalls * (1 - recalls) / sizes), len(sizes) or np.nan
        result["macro_recall@1"] = float(recalls.sum() / count)
        result["macro_recall@1_stderr"] = float(np.sqrt(variance) / count)
    result |= _mean_with_error("mrr", np.where(first_rank > 0, 1 / np.maximum(first_rank, 1), 0))
    result |= _mean_with_error("r_precision", r_precision[has_relevant])
    result |= _mean_with_error("map@r", average_precision[has_relevant])
    result["lone_queries"] = int((~has_relevant).sum())
    return result


def _mean_with_error(name: str, values: np.ndarray) -> dict[str, float]:
    """The mean and its standard error under their keys; NaN if there are no values."""
    mean = error = np.nan
    if len(values):
        mean, error = values.mean(), values.std() / np.sqrt(len(values))
    return {name: float(mean), f"{name}_stderr": float(error)}
