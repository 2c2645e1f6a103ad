"""Paired tests between two models on the same queries.

The queries of a class are not independent: a model that fails on one query often fails on all.
Classes are therefore the independent units. With the difference d_q of query q, and the sum s_c of
d_q - mean(d) over the queries of class c, the mean has the variance C / (C - 1) sum_c s_c^2 / Q^2,
and t has C - 1 degrees of freedom (cluster-robust t-test; with one query per class, the paired
t-test).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from dml_jax.errors import DataError
from dml_jax.evaluation.metric_table import PER_QUERY
from dml_jax.evaluation.validation import ArrayLike

LEVEL = 0.95


class Difference(NamedTuple):
    """The mean difference of two models, second minus first."""

    mean: float
    stderr: float
    low: float  # bounds of the 95 % interval
    high: float
    p: float  # two-sided; 1 if all differences are 0
    queries: int  # queries with values of both models
    classes: int


def compare(first: ArrayLike, second: ArrayLike, classes: ArrayLike | None = None) -> Difference:
    """Paired test of the values of single queries, float [Q] each; queries with NaN are dropped.

    `classes` [Q], integers or strings, are the independent units; by default, each query is a unit.
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    units = np.arange(a.size) if classes is None else np.asarray(classes)
    if a.ndim != 1 or a.shape != b.shape or a.shape != units.shape:
        shapes = f"{list(a.shape)}, {list(b.shape)} and {list(units.shape)}"
        raise DataError(f"first, second and classes must have one entry per query; got {shapes}")
    differences = b - a
    valid = ~np.isnan(differences)
    differences, units = differences[valid], np.unique(units[valid], return_inverse=True)[1]
    queries, count = len(differences), len(np.unique(units))
    if count < 2:
        raise DataError(
            f"a test needs at least two classes with values of both models; got {count}"
        )
    mean = differences.mean()
    sums = np.bincount(units, differences - mean)
    stderr = np.sqrt(count / (count - 1) * np.sum(sums**2)) / queries
    if stderr == 0:
        return Difference(mean, 0.0, mean, mean, 1.0 if mean == 0 else 0.0, queries, count)
    half = stderr * stats.t.ppf((1 + LEVEL) / 2, count - 1)
    p = 2 * stats.t.sf(abs(mean) / stderr, count - 1)
    interval = float(mean - half), float(mean + half)
    return Difference(float(mean), float(stderr), *interval, float(p), queries, count)


def query_values(results: Mapping[str, Any], *, omit: bool = False) -> dict[str, np.ndarray]:
    """All metrics of each query, float [Q] by name, from `metrics.retrieval(…, per_query=True)`.

    Queries without a relevant row are NaN, or, in Recall@K and MRR without `omit`, misses.
    """
    rank = np.asarray(results["rank"])
    values = {"mrr": np.where(rank > 0, 1 / np.maximum(rank, 1), 0.0)}
    ks = [name.removeprefix("recall@") for name in results if name.startswith("recall@")]
    values |= {f"recall@{k}": ((rank > 0) & (rank <= int(k))) * 1.0 for k in ks if k.isdecimal()}
    if omit:
        lone = np.isnan(results[f"r_precision{PER_QUERY}"])
        values = {name: np.where(lone, np.nan, column) for name, column in values.items()}
    keys = [key for key in results if key.endswith(PER_QUERY)]
    return values | {key.removesuffix(PER_QUERY): np.asarray(results[key]) for key in keys}


def compare_all(
    first: Mapping[str, Any], second: Mapping[str, Any], classes: Any, *, omit: bool = False
) -> dict[str, dict[str, float]]:
    """`compare` for each metric of two results of the same queries, with values per query."""
    a, b = (query_values(results, omit=omit) for results in (first, second))
    return {name: compare(a[name], b[name], classes)._asdict() for name in a if name in b}
