"""Paired tests of two models' queries, against SciPy and a simulation."""

import numpy as np
import pytest
from scipy import stats

from dml_jax.evaluation import metrics, paired

RNG = np.random.default_rng(0)


def test_with_one_query_per_class_it_is_the_paired_t_test():
    first, second = RNG.random(40), RNG.random(40)
    first[3] = np.nan  # left out
    found = paired.compare(first, second)
    known = np.arange(40) != 3
    expected = stats.ttest_rel(second[known], first[known])
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    interval = expected.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert (found.queries, found.classes) == (39, 39)
    assert found.mean == pytest.approx((second - first)[known].mean())


def test_queries_of_a_class_are_not_independent():
    """If all classes differ by chance, 5 % of tests are significant; with single queries, most."""
    by_class, by_query = [], []
    for _ in range(400):
        effects = np.repeat(RNG.normal(size=20), 10)
        names = np.repeat(list("abcdefghijklmnopqrst"), 10)
        differences = effects + 0.1 * RNG.normal(size=200)
        by_class.append(paired.compare(np.zeros(200), differences, names).p)
        by_query.append(paired.compare(np.zeros(200), differences).p)
    assert 0.02 < np.mean(np.array(by_class) < 0.05) < 0.09
    assert np.mean(np.array(by_query) < 0.05) > 0.4


def test_all_metrics_of_two_models():
    points = RNG.normal(size=(60, 4))
    labels = np.append(np.arange(59) % 6, 9)  # one query is alone
    options = {"ks": (1, 4), "per_query": True, "lone_queries": "omit"}
    one, other = (
        metrics.retrieval(rows, labels, **options, functions={"first": lambda hits: hits[0]})
        for rows in (points, points + 2 * np.eye(6, 4)[labels % 6])
    )
    found = paired.compare_all(one, other, labels, omit=True)
    assert set(found) == {"recall@1", "recall@4", "mrr", "r_precision", "map@r", "user/first"}
    for name, difference in found.items():
        assert difference["mean"] == pytest.approx(other[name] - one[name], rel=1e-9), name
        assert (difference["queries"], difference["classes"]) == (59, 6)
    same = paired.compare_all(one, one, labels, omit=True)
    assert all((each["mean"], each["p"]) == (0, 1) for each in same.values())
