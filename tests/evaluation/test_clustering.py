"""Clustering metrics of single groups, the error of the NMI, and geometry of embeddings against
their definitions; `golden` compares the values of the authors."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_mutual_info_score

from dml_jax.evaluation import metrics, validation
from dml_jax.evaluation.geometry import pair_errors


def test_single_groups_and_singletons():
    one, many = np.zeros(6, np.int64), np.arange(6)
    for score in (metrics.nmi, metrics.ami):
        assert score(one, one) == score(many, many) == 1
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

    influence = [200 * (nmi(1 + 1e-5 * row) - nmi(1 - 1e-5 * row)) / 2e-5 for row in np.eye(200)]
    expected = nmi(np.ones(200)), np.sqrt(np.mean(np.square(influence)) / 200)
    for metric, value, rel in zip(("nmi", "nmi_stderr"), expected, (1e-12, 1e-6), strict=True):
        found = getattr(metrics, metric)(labels, clusters, average=average)
        assert found == pytest.approx(value, rel=rel)


def rows(seed, count=90, width=10):
    return np.random.default_rng(seed).normal(size=(count, width)) + 0.3


def units(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_density_needs_two_classes_and_a_pair():
    right, up, diagonal = [1.0, 0], [0, 2.0], [0.5**0.5, 0.5**0.5]
    between = 1 - np.cos(3 * np.pi / 8)  # the centre of the first class is at 22.5 degrees
    found = metrics.density(np.array([right, diagonal, up]), np.array([0, 0, 1]))
    assert found == pytest.approx((1 - np.sqrt(0.5)) / between, rel=1e-12)
    assert np.isnan(metrics.density(rows(1, 5), np.arange(5)))
    assert np.isnan(metrics.density(rows(1, 5), np.zeros(5, int)))


@pytest.mark.parametrize("scale", [1e-170, 1e-30, 1e30, 1e170])
def test_density_of_rows_of_any_length(scale):
    """Their squares leave the range of float64."""
    x, y = rows(4), np.arange(90) % 9
    unit, means = units(x), np.array([x[y == c].mean(axis=0) for c in range(9)])
    inside = [(10 - np.sum(unit[y == c] @ unit[y == c].T) / 10) / 9 for c in range(9)]
    between = (9 - np.sum(units(means) @ units(means).T) / 9) / 8
    assert metrics.density(scale * x, y) == pytest.approx(np.mean(inside) / between, rel=1e-9)


@pytest.mark.parametrize("shape", [(90, 10), (6, 10)])
def test_spectrum(shape, monkeypatch):
    points = rows(2, *shape)
    expected = np.linalg.svd(points, compute_uv=False)
    np.testing.assert_allclose(metrics.singular_values(points), expected, rtol=1e-12)
    monkeypatch.setattr(validation, "BLOCK_ELEMENTS", 80)
    np.testing.assert_allclose(metrics.singular_values(points), expected, rtol=1e-12)
    share = expected / expected.sum()
    divergence = np.sum(np.log(1 / len(share) / share)) / len(share)
    assert metrics.spectral_decay(points) == pytest.approx(divergence, rel=1e-12)


def test_degenerate_spectra():
    assert metrics.spectral_decay(np.eye(8)) == pytest.approx(0, abs=1e-12)
    assert metrics.effective_rank(np.eye(8)) == pytest.approx(8, rel=1e-12)
    assert metrics.effective_rank(np.diag([3.0, 1, 0])) == pytest.approx(4 / 3**0.75, rel=1e-12)
    assert np.isnan(metrics.spectral_decay(np.zeros((5, 3))))
    assert metrics.effective_rank(np.zeros((3, 2))) == 1


@pytest.mark.parametrize("scale", [1, 1e-300, 1e-25, 1e20, 1e300])
def test_errors_of_pairs(scale):
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 4, 700)
    points = rng.standard_normal((4, 8))[classes] + 0.9 * rng.standard_normal((700, 8))
    found = pair_errors(scale * points, np.array(["ant", "bee", "cat", "dog"])[classes])
    first, second = np.triu_indices(700, 1)
    cosines = (units(points) @ units(points).T)[first, second]
    same = classes[first] == classes[second]
    threshold = found["equal_error_cosine"]
    rejected, accepted = (cosines[same] < threshold).mean(), (cosines[~same] >= threshold).mean()
    assert rejected == pytest.approx(accepted, abs=2e-3)
    assert found["equal_error_rate"] == pytest.approx((rejected + accepted) / 2, abs=1e-3)
    impostors = np.sort(cosines[~same])[::-1]
    for rate in (0.01, 0.001):
        threshold = impostors[int(rate * len(impostors))]  # so many are above it
        assert found[f"fnmr@{rate}"] == pytest.approx((cosines[same] <= threshold).mean(), abs=2e-3)


def test_errors_of_few_pairs():
    """Separable classes; rows of zeros, whose cosines are 0; and a rate of 1 in 100 pairs, which is met exactly."""
    separable = pair_errors(np.repeat(np.eye(3), 4, axis=0), np.repeat(np.arange(3), 4))
    assert separable["equal_error_rate"] == 0
    zeros = pair_errors(np.array([[0.0, 0], [3, 0], [0, 2]]), np.array([0, 0, 1]))
    assert zeros["equal_error_rate"] == 0.5
    axis = [0] * 9 + [2] + [1] * 9 + [2]
    found = pair_errors(np.eye(3)[axis], np.repeat([0, 1], 10))
    assert found["fnmr@0.01"] == pytest.approx(0.2)  # 9 of 45 pairs of a class
