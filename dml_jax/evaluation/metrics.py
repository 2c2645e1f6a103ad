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
    """Exact Recall@K, MRR, R-precision, MAP@R (Musgrave et al., ECCV 2020); ties by lower index.

    Args:
      queries: [Q, D] real numbers.
      labels: [Q] integers or strings. For several classes per row, a list per row or an array
        [Q, C] of bool or 0 and 1; rows that share a class are relevant to each other.
      ks: values of K for Recall@K, at most the number of candidates.
      metric: distance that ranks the gallery: a name or a function of two blocks of rows (see
        `user_distances`).
      gallery: [G, D]; by default the queries are their own gallery.
      gallery_labels: [G], lists or [G, C], of the same kind as `labels`.
      exclude_self: whether query i excludes gallery row i; by default only if the queries are their
        own gallery. Without this and `groups`, a gallery equal to the queries is an error, and one
        that contains more than a tenth of them, in any order, causes a warning.
      exclusion: whether to exclude the query by its "index" or, as in the code of several papers,
        the row at the first "position" of the ranking.
      groups: [Q] integers or strings, such as cameras. A query excludes the relevant rows of its
        group, as in the re-identification of persons and vehicles (Zheng et al., ICCV 2015). If
        queries are in the gallery, but in a different order, make each image a group; otherwise
        every query finds itself first.
      gallery_groups: [G], of the same kind as `groups`.
      lone_queries: whether a query without a relevant row, such as the only image of its class, is
        a "miss" in Recall@K and MRR, or omitted from all metrics.
      functions: further metrics by name: functions of the ranking, bool [G], True for relevant
        rows, nearest first, that return a number. Their means over the queries with a relevant row
        are returned as "user/NAME". A function with an argument `grades` also gets the grades of
        the ranking, float [G], which are 0 and 1 without a `relation`. Every query is then sorted.
      relation: grades of relevance that replace equal classes: a function of distinct labels of the
        queries and of the gallery, [n] and [m], that returns [n, m]: above 0 for relevant rows, 0
        for irrelevant rows, NaN for rows that the query excludes. Adds "ndcg" and "ndcg@K", the
        normalised discounted cumulative gain with the grades as gains. Every query is then sorted.
      per_query: also return "rank" (int [Q], 1-based rank of the nearest relevant row, 0 without
        one) and, for each metric that is a mean over the queries with a relevant row,
        "METRIC_per_query" (float [Q], NaN for queries without one).

    Returns:
      Python numbers. "recall@K", "macro_recall@1" (Recall@1 averaged over the queries of a class,
      then over the classes; only with one class per query) and "mrr" (mean reciprocal rank of the
      nearest relevant row): queries without a relevant row count as misses unless
      `lone_queries="omit"`. "r_precision", "map@r" and all further metrics: means over the queries
      with a relevant row, NaN without any. "..._stderr": the standard error of each.
      "lone_queries": the number of queries without a relevant row. Rows that a query excludes are
      neither ranked nor relevant; a query whose relevant rows are all excluded has none.
    """
    validation.check_metric(metric, "cosine", "euclidean")
    validation.check_choice("exclusion", exclusion, ("index", "position"))
    validation.check_choice("lone_queries", lone_queries, get_args(Lone))
    if functions is not None and not isinstance(functions, Mapping):
        raise ConfigError(f"functions must be a dict from names to functions; got {functions!r}")
    alone = gallery is None  # the queries are their own gallery
    grouped = not alone and groups is not None
    for name, value, required, sources, verb in (
        ("gallery_labels", gallery_labels, not alone, "a gallery", "requires"),
        ("gallery_groups", gallery_groups, grouped, "a gallery and groups", "require"),
    ):
        if required and value is None:
            raise DataError(f"{sources} {verb} {name}")
        if not required and value is not None:
            raise DataError(f"{name} have no effect without {sources}; remove them")
    rows = queries if gallery is None else gallery
    points, gallery_points = validation.check_pair(queries, rows)
    ks = validation.recall_ks(ks)
    sizes = len(points), len(gallery_points)
    classes, gallery_classes, judge = validation.find_relevance(
        labels, gallery_labels, *sizes, alone=alone, relation=relation
    )
    common_groups = validation.common_groups(groups, gallery_groups, *sizes, alone=alone)
    drop_nearest = exclusion == "position"
    if drop_nearest and (judge or common_groups):
        raise DataError("exclusion='position' requires one class per row and no groups")
    if not alone and exclude_self is None and groups is None:
        _check_no_query_in_gallery(points, gallery_points)
    exclude_self = alone if exclude_self is None else exclude_self
    if exclude_self and not np.array_equal(classes, gallery_classes[: len(points)]):
        rule = "requires a gallery that begins with the queries"
        raise DataError(f"exclude_self {rule}, but their classes differ")
    candidates = validation.count_candidates(gallery_points, exclude_self=exclude_self)
    if max(ks, default=0) > candidates:
        rule = f"exceeds the number of candidates, {candidates}"
        raise DataError(f"ks: K={max(ks)} {rule}; choose K in 1..{candidates}")
    drop_nearest &= exclude_self
    exclusions = exclude_self and not drop_nearest, drop_nearest
    user_metrics = tuple((functions or {}).values())
    relevance = classes, gallery_classes, judge, common_groups
    task = Task(*relevance, *exclusions, user_metrics, ks if relation else None)
    if callable(metric):
        blocks = user_distances.blocks(metric, points, gallery_points)
        results = _engine.rank_by_distance(task, blocks)
    else:
        searched, dtype = None if alone else gallery_points, validation.compute_dtype(points)
        results = _engine.rank(task, points, searched, metric=metric, dtype=dtype)
    macro_classes = classes if judge is None else None
    summary: dict[str, Any] = summarize(*results[:4], macro_classes, ks, lone_queries)
    names = [f"{USER}{name}" for name in functions or ()]
    names += ["ndcg", *(f"ndcg@{k}" for k in ks)] if relation else []
    columns = np.concatenate([results.by_functions, results.graded], axis=1).T
    values = dict(zip(names, columns, strict=True))
    for name, column in values.items():
        summary |= _mean_with_error(name, column[results.relevant > 0])
    if per_query:
        values |= {"r_precision": results.r_precision, "map@r": results.average_precision}
        summary["rank"] = results.first_rank
        summary |= {f"{name}{PER_QUERY}": column for name, column in values.items()}
    return summary


def _check_no_query_in_gallery(queries: np.ndarray, gallery: np.ndarray) -> None:
    """Raises DataError if the gallery equals the queries; warns if it contains many of them."""
    if validation.equal_rows(queries, gallery):
        problem = "equals the queries, so every query would find itself"
        raise DataError(f"gallery {problem}; omit the gallery, or set exclude_self")
    shared = validation.shared_rows(queries, gallery)
    if shared > MANY_SHARED * len(queries):
        warnings.warn(
            f"gallery: {shared:,} of {len(queries):,} queries equal one of its rows and may find "
            "themselves; remove these rows, or make each image a group (groups, gallery_groups)",
            stacklevel=3,
        )


def relevant_counts(
    labels: np.ndarray, gallery_labels: np.ndarray, *, exclude_self: bool
) -> np.ndarray:
    """R of each query, the number of gallery rows of its class, less 1 if it excludes itself."""
    labels, gallery_labels = validation.number_labels(labels, gallery_labels)
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
        the gallery. L must be at least the largest K and the largest R (see `relevant_counts`).
      labels: [Q] integers or strings.
      gallery_labels: [G]; None if the queries are the gallery.
      ks: K of Recall@K, at most L.
      lone_queries: as for `retrieval`.

    Returns:
      The dictionary of `retrieval`, with the same conventions; for "mrr", a relevant row beyond the
      end of a list is a miss.
    """
    lists = np.asarray(indices)
    validation.check_choice("lone_queries", lone_queries, get_args(Lone))
    if lists.ndim != 2 or lists.dtype.kind not in "iu" or not len(lists):
        rule = "must be integers [Q, L]"
        raise DataError(f"indices {rule}; got {lists.dtype} {list(lists.shape)}")
    queries = validation.labels(labels, len(lists), of="indices")
    ks = validation.recall_ks(ks)
    exclude_self = gallery_labels is None
    gallery = queries
    if gallery_labels is not None:
        rows = len(np.asarray(gallery_labels))
        gallery = validation.labels(gallery_labels, rows, name="gallery_labels")
        queries, gallery = validation.number_labels(queries, gallery)
    if lists.size and not (lists.min() >= 0 and lists.max() < len(gallery)):
        rule = f"must be in 0..{len(gallery) - 1}, the rows of the gallery"
        raise DataError(f"indices {rule}; got {lists.min()}..{lists.max()}")
    relevant = relevant_counts(queries, gallery, exclude_self=exclude_self)
    length = max(*ks, int(relevant.max(initial=0)), 1)
    if lists.shape[1] < length:
        rule = f"must have at least {length} columns for these K and class sizes"
        raise DataError(f"indices {rule}; got {lists.shape[1]}")
    if exclude_self and (own := lists == np.arange(len(lists))[:, None]).any():
        query = own.any(axis=1).argmax()
        raise DataError(
            f"indices: list {query} contains its query; remove each query from its list"
        )
    for part in validation.slices(*lists.shape):
        ranked = np.sort(lists[part], axis=1)
        if (twice := (ranked[:, 1:] == ranked[:, :-1]).any(axis=1)).any():
            raise DataError(f"indices: list {part.start + twice.argmax()} contains a row twice")
    return summarize_lists([lists], queries, gallery, relevant, ks, lone_queries)


def summarize_lists(
    blocks: Iterable[np.ndarray],
    labels: np.ndarray,
    gallery_labels: np.ndarray,
    relevant: np.ndarray,
    ks: tuple[int, ...],
    lone_queries: Lone,
) -> dict[str, float]:
    """`of_ranked_lists` for blocks of lists, int [_, L], and the queries' `relevant_counts`."""
    values, start = [], 0
    for block in blocks:
        part = slice(start, start := start + len(block))
        hits, counts = gallery_labels[block] == labels[part, None], relevant[part]
        values.append(_engine.metrics_from_ranks(hits * np.arange(1, hits.shape[1] + 1), counts))
    first, precision, average = (np.concatenate(parts) for parts in zip(*values, strict=True))
    return summarize(first, precision, average, relevant, labels, ks, lone_queries)


def summarize(
    first_rank: np.ndarray,
    r_precision: np.ndarray,
    average_precision: np.ndarray,
    relevant: np.ndarray,
    labels: np.ndarray | None,
    ks: tuple[int, ...],
    lone_queries: Lone = "miss",
) -> dict[str, float]:
    """Means of values [Q] over the queries and their standard errors, with the keys of `retrieval`.

    `first_rank` is 1-based, 0 without a relevant row. "macro_recall@1" requires `labels`.
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
    """The mean and its standard error by key; NaN without values."""
    mean = error = np.nan
    if len(values):
        mean, error = values.mean(), values.std() / np.sqrt(len(values))
    return {name: float(mean), f"{name}_stderr": float(error)}
