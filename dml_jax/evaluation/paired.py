"""Paired tests between two models on the same queries.

The queries of a class are not independent: a model that fails on one often fails on all. Classes
are therefore the units: with d_q the difference of a query and s_c the sum of d_q - mean(d) over
the queries of class c, the variance of the mean is C / (C - 1) sum_c s_c^2 / Q^2, and t has C - 1
degrees of freedom (the cluster-robust t-test; with one query per class, the paired t-test).
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
    """The mean difference of two models, the second less the first."""

    mean: float
    stderr: float
    low: float  # bounds of the 95 % interval
    high: float
    p: float  # two-sided; 1 if all differences are 0
    queries: int  # that have a value of both
    classes: int


def compare(first: ArrayLike, second: ArrayLike, classes: ArrayLike | None = None) -> Difference:
    """The paired test of the values of single queries, float [Q] each; NaN values are left out.

    `classes` [Q], integers or strings, are the units that differ independently; by default each
    query is one.
    """
    one, other = np.asarray(first, np.float64), np.asarray(second, np.float64)
    units = np.arange(one.size) if classes is None else np.asarray(classes)
    if one.ndim != 1 or one.shape != other.shape or one.shape != units.shape:
        shapes = f"{list(one.shape)} and {list(other.shape)} values, {list(units.shape)} classes"
        raise DataError(f"first, second, classes: {shapes}; give one of each per query")
    differences = other - one
    known = ~np.isnan(differences)
    differences, units = differences[known], np.unique(units[known], return_inverse=True)[1]
    queries, count = len(differences), len(np.unique(units))
    if count < 2:
        raise DataError(f"classes: {count} have values of both models; a test needs two or more")
    mean = differences.mean()
    sums = np.bincount(units, differences - mean)
    stderr = np.sqrt(count / (count - 1) * np.sum(sums**2)) / queries
    if stderr == 0:
        return Difference(mean, 0.0, mean, mean, 1.0 if mean == 0 else 0.0, queries, count)
    half = stderr * stats.t.ppf((1 + LEVEL) / 2, count - 1)
    p = 2 * stats.t.sf(abs(mean) / stderr, count - 1)
    found = float(mean), float(stderr), float(mean - half), float(mean + half), float(p)
    return Difference(*found, queries, count)


def query_values(found: Mapping[str, Any], *, omit: bool = False) -> dict[str, np.ndarray]:
    """All metrics of each query, float [Q] by name, from `metrics.retrieval(…, per_query=True)`.

    Queries without a relevant row have NaN, but in Recall@K and MRR only if `omit` leaves them out.
    """
    rank = np.asarray(found["rank"])
    values = {"mrr": np.where(rank > 0, 1 / np.maximum(rank, 1), 0.0)}
    ks = [name.removeprefix("recall@") for name in found if name.startswith("recall@")]
    values |= {f"recall@{k}": ((rank > 0) & (rank <= int(k))) * 1.0 for k in ks if k.isdecimal()}
    if omit:
        lone = np.isnan(found[f"r_precision{PER_QUERY}"])
        values = {name: np.where(lone, np.nan, each) for name, each in values.items()}
    keys = [key for key in found if key.endswith(PER_QUERY)]
    return values | {key.removesuffix(PER_QUERY): np.asarray(found[key]) for key in keys}


def compare_all(
    first: Mapping[str, Any], second: Mapping[str, Any], classes: Any, *, omit: bool = False
) -> dict[str, dict[str, float]]:
    """`compare` for each metric of two results with values per query, on the same queries."""
    one, other = (query_values(found, omit=omit) for found in (first, second))
    return {
        name: compare(one[name], other[name], classes)._asdict() for name in one if name in other
    }
