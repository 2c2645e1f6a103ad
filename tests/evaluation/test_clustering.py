"""Clustering metrics against scikit-learn."""

import numpy as np
import pytest

from dml_jax.errors import DataError
from dml_jax.evaluation import clustering, metrics

sklearn_metrics = pytest.importorskip("sklearn.metrics")


def labels_and_clusters(seed, rows, classes, clusters):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    noise = rng.random(rows) < 0.4
    return 7 * labels - 3, np.where(noise, rng.integers(0, clusters, rows), labels % clusters)


@pytest.mark.parametrize("case", [(0, 300, 10, 10), (1, 50, 30, 3), (2, 1000, 400, 300), (3, 20, 1, 4), (4, 20, 4, 1)])
def test_against_scikit_learn(case):
    labels, clusters = labels_and_clusters(*case)
    for average in ("arithmetic", "geometric"):
        expected = sklearn_metrics.normalized_mutual_info_score(labels, clusters, average_method=average)
        assert metrics.nmi(labels, clusters, average=average) == pytest.approx(expected, abs=1e-12)
    (_, one_more), (one_less, both) = sklearn_metrics.pair_confusion_matrix(labels, clusters).tolist()
    if 2 * both + one_more + one_less:
        assert metrics.f1_pairs(labels, clusters) == pytest.approx(2 * both / (2 * both + one_more + one_less))


def test_single_groups_and_singletons():
    one, many = np.zeros(6, np.int64), np.arange(6)
    assert metrics.nmi(one, one) == metrics.ami(one, one) == metrics.nmi(many, many) == metrics.ami(many, many) == 1
    assert metrics.nmi(many, one) == metrics.nmi(one, many) == 0
    assert metrics.ami(many, one) == pytest.approx(0, abs=1e-12)
    assert np.isnan(metrics.f1_pairs(many, many))


def test_standard_error_against_the_bootstrap():
    labels, clusters = labels_and_clusters(5, 2000, 20, 20)
    rng = np.random.default_rng(0)
    draws = [clustering.nmi(labels[i], clusters[i]) for i in (rng.integers(0, 2000, 2000) for _ in range(200))]
    assert metrics.nmi_stderr(labels, clusters) == pytest.approx(np.std(draws), rel=0.15)


@pytest.mark.parametrize("average", ["arithmetic", "geometric"])
def test_error_of_nmi_from_the_influence_of_every_row(average):
    """The derivative of the NMI with respect to the weight of each row; the two entropies differ by a factor."""
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, 12, 200)
    labels = np.where(rng.random(200) < 0.8, clusters // 6, 2)

    def nmi(weights):
        table = np.zeros((3, 12))
        np.add.at(table, (labels, clusters), weights / weights.sum())
        joint, rows, columns = (-np.sum(p[p > 0] * np.log(p[p > 0])) for p in (table, table.sum(1), table.sum(0)))
        mean = (rows + columns) / 2 if average == "arithmetic" else np.sqrt(rows * columns)
        return (rows + columns - joint) / mean

    one = np.eye(200)
    influence = [200 * (nmi(1 + 1e-5 * row) - nmi(1 - 1e-5 * row)) / 2e-5 for row in one]
    assert metrics.nmi(labels, clusters, average=average) == pytest.approx(nmi(np.ones(200)), rel=1e-12)
    expected = np.sqrt(np.mean(np.square(influence)) / 200)
    assert metrics.nmi_stderr(labels, clusters, average=average) == pytest.approx(expected, rel=1e-6)


def test_invalid_input():
    with pytest.raises(DataError, match=r"assignments: holds int64 of shape \[2\] for 3 rows of labels"):
        metrics.nmi([0, 1, 1], [0, 1])
