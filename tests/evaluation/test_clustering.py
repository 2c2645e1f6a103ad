"""Clustering metrics of single groups, and the error of the NMI; `golden` compares the values."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_mutual_info_score

from dml_jax.errors import DataError
from dml_jax.evaluation import metrics


def test_single_groups_and_singletons():
    one, many = np.zeros(6, np.int64), np.arange(6)
    assert (
        metrics.nmi(one, one)
        == metrics.ami(one, one)
        == metrics.nmi(many, many)
        == metrics.ami(many, many)
        == 1
    )
    assert metrics.nmi(many, one) == metrics.nmi(one, many) == 0
    assert metrics.ami(many, one) == pytest.approx(0, abs=1e-12)
    assert np.isnan(metrics.f1_pairs(many, many))


@pytest.mark.parametrize(("classes", "clusters"), [(2, 2), (300, 40), (40, 1500), (1500, 1500)])
def test_adjusted_information_against_scikit_learn(classes, clusters):
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, classes, 3000)
    mixed = np.where(rng.random(3000) < 0.2, rng.integers(0, clusters, 3000), labels % clusters)
    for assignments in (mixed, rng.integers(0, clusters, 3000), np.arange(3000)):
        expected = adjusted_mutual_info_score(labels, assignments)
        assert metrics.ami(labels, assignments) == pytest.approx(expected, abs=1e-9)


def test_adjusted_information_takes_no_work_for_every_class_and_cluster():
    labels, clusters = np.repeat(np.arange(10**5), 2), np.tile(np.arange(10**5), 2)
    assert metrics.ami(labels, clusters) == pytest.approx(-1e-5, abs=1e-5)  # hours otherwise


@pytest.mark.parametrize("name", ["nmi", "nmi_stderr", "ami", "f1_pairs"])
def test_no_rows(name):
    with pytest.raises(DataError, match="labels: there are none"):
        getattr(metrics, name)(np.zeros(0, int), np.zeros(0, int))


@pytest.mark.parametrize("average", ["arithmetic", "geometric"])
def test_error_of_nmi_from_the_influence_of_every_row(average):
    """The derivative of the NMI with respect to the weight of each row; the two entropies differ by
    a factor."""
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, 12, 200)
    labels = np.where(rng.random(200) < 0.8, clusters // 6, 2)

    def nmi(weights):
        table = np.zeros((3, 12))
        np.add.at(table, (labels, clusters), weights / weights.sum())
        joint, rows, columns = (
            -np.sum(p[p > 0] * np.log(p[p > 0])) for p in (table, table.sum(1), table.sum(0))
        )
        mean = (rows + columns) / 2 if average == "arithmetic" else np.sqrt(rows * columns)
        return (rows + columns - joint) / mean

    one = np.eye(200)
    influence = [200 * (nmi(1 + 1e-5 * row) - nmi(1 - 1e-5 * row)) / 2e-5 for row in one]
    assert metrics.nmi(labels, clusters, average=average) == pytest.approx(
        nmi(np.ones(200)), rel=1e-12
    )
    expected = np.sqrt(np.mean(np.square(influence)) / 200)
    assert metrics.nmi_stderr(labels, clusters, average=average) == pytest.approx(
        expected, rel=1e-6
    )


def test_invalid_input():
    with pytest.raises(
        DataError, match=r"assignments: holds int64 of shape \[2\] for 3 rows of labels"
    ):
        metrics.nmi([0, 1, 1], [0, 1])
