"""Retrieval against brute force in float64: every layout, every path, ties, exclusions, devices."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from dml_jax.evaluation import metrics
from dml_jax.evaluation._ranking import plan, sort, tiles
from tests.evaluation import brute

KS = (1, 2, 10, 40)


def sample(seed, sizes, width=16, spread=1.5, shuffled=True, copies=0):
    """Rows around class means, some copied exactly onto others."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    if shuffled:
        labels = rng.permutation(labels)
    means = rng.normal(size=(len(sizes), width))
    points = (means[labels] + spread * rng.normal(size=(len(labels), width))).astype(np.float32)
    points[rng.permutation(len(points))[:copies]] = points[rng.permutation(len(points))[:copies]]
    return points, labels


def agrees(points, labels, *, metric="cosine", position=False, **options):
    far = brute.distances(points, points, metric)
    if len(np.unique(points, axis=0)) < len(points):  # copies tie exactly, whatever the rounding of the product
        _, same = np.unique(points, axis=0, return_inverse=True)
        _, kept = np.unique(same, return_index=True)
        far = far[:, kept][:, same.reshape(-1)][kept][same.reshape(-1)]
    expected, first, precision, average = brute.retrieval(far, labels, labels, KS, own=True, position=position)
    exclusion = "position" if position else "index"
    found = metrics.retrieval(points, labels, ks=KS, metric=metric, exclusion=exclusion, per_query=True, **options)
    np.testing.assert_array_equal(found["rank"], first)
    np.testing.assert_allclose(found["r_precision_per_query"], precision, rtol=1e-12)
    np.testing.assert_allclose(found["map@r_per_query"], average, rtol=1e-12)
    assert {k: found[k] for k in expected} == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("position", [True, False])
def test_uneven_classes_with_single_rows_and_copies(metric, shuffled, position):
    points, labels = sample(0, [1, 1, 2, 3, 5, 8, 13, 40, 90], shuffled=shuffled, copies=30)
    agrees(points, labels, metric=metric, position=position)


@pytest.fixture
def small_tiles(monkeypatch):
    """Many tiles for few rows."""
    monkeypatch.setattr(plan, "edge", lambda rows, mesh: 64)


@pytest.mark.parametrize("memory", [None, 40_000, 1])
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("shortlisted", [1, 1 << 30])
def test_many_tiles_resident_streamed_and_held(small_tiles, monkeypatch, metric, memory, shortlisted):
    monkeypatch.setattr(plan, "SHORTLISTED", shortlisted)
    points, labels = sample(1, [1, 2, 3, 7, 17, 30, 60, 100, 80], copies=40)
    agrees(points, labels, metric=metric, memory=memory)


@pytest.mark.parametrize("shuffled", [True, False])
def test_both_orders_of_the_tiles(small_tiles, shuffled):
    """Grouped classes keep their order, and ties between tiles are settled by one comparison."""
    points, labels = sample(2, [20] * 20, spread=4, shuffled=shuffled, copies=200)
    agrees(points, labels)


@pytest.mark.parametrize("position", [True, False])
@pytest.mark.parametrize("crowded", [0, 5, 20])
def test_sorting_agrees_with_counting(small_tiles, monkeypatch, crowded, position):
    monkeypatch.setattr(plan, "CROWDED", crowded)
    points, labels = sample(3, [1, 2, 5, 6, 21, 60, 100], copies=30)
    agrees(points, labels, position=position, metric="euclidean")


@pytest.mark.parametrize("shortlisted", [1, 1 << 30])
@pytest.mark.parametrize("seed", [0, 1])
def test_lattice_rows_tie_exactly(small_tiles, monkeypatch, seed, shortlisted):
    monkeypatch.setattr(plan, "SHORTLISTED", shortlisted)
    rng = np.random.default_rng(seed)
    points, labels = rng.integers(0, 3, (300, 5)).astype(np.float32), rng.integers(0, 12, 300)
    far = brute.distances(points, points, "euclidean")
    expected, first, _, average = brute.retrieval(far, labels, labels, KS, own=True)
    found = metrics.retrieval(points, labels, ks=KS, metric="euclidean", per_query=True)
    np.testing.assert_array_equal(found["rank"], first)
    np.testing.assert_allclose(found["map@r_per_query"], average, rtol=1e-12)
    assert found["recall@10"] == expected["recall@10"]


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("shuffled", [True, False])
def test_separate_gallery(small_tiles, metric, shuffled):
    points, labels = sample(4, [3, 4, 5, 20, 70, 90], spread=3, shuffled=shuffled)
    queries, gallery = np.arange(len(points)) % 3 == 0, np.arange(len(points)) % 3 > 0
    queries &= labels != 0
    labels = np.where(gallery & (labels == 1), 99, labels)  # class 1 asks in vain
    far = brute.distances(points[queries], points[gallery], metric)
    expected, first, _, average = brute.retrieval(far, labels[queries], labels[gallery], KS)
    found = metrics.retrieval(
        points[queries],
        labels[queries],
        ks=KS,
        metric=metric,
        gallery=points[gallery],
        gallery_labels=labels[gallery],
        per_query=True,
    )
    assert expected["lone_queries"] > 0
    np.testing.assert_array_equal(found["rank"], first)
    np.testing.assert_allclose(found["map@r_per_query"], average, rtol=1e-12)
    assert {k: found[k] for k in expected} == pytest.approx(expected, rel=1e-12)


def test_a_gallery_that_begins_with_the_queries(small_tiles):
    points, labels = sample(5, [4] * 40)
    far = brute.distances(points[:70], points, "cosine")
    expected, first, *_ = brute.retrieval(far, labels[:70], labels, KS, own=True)
    found = metrics.retrieval(
        points[:70],
        labels[:70],
        ks=KS,
        gallery=points,
        gallery_labels=labels,
        exclude_self=True,
        per_query=True,
    )
    np.testing.assert_array_equal(found["rank"], first)
    assert {k: found[k] for k in expected} == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shortlisted", [1, 1 << 30])
@pytest.mark.parametrize("count", [1, 3])
def test_devices_do_not_matter(small_tiles, monkeypatch, count, shortlisted):
    monkeypatch.setattr(plan, "SHORTLISTED", shortlisted)
    monkeypatch.setattr(plan, "CROWDED", 50)
    points, labels = sample(6, [1, 2, 3, 7, 17, 30, 60, 100], copies=40)
    few = Mesh(np.array(jax.devices()[:count]), ("data",))
    one, all_of_them = (metrics.retrieval(points, labels, per_query=True, mesh=mesh) for mesh in (few, tiles.mesh()))
    assert tiles.mesh().size == 8
    for key, value in one.items():
        np.testing.assert_array_equal(value, all_of_them[key], err_msg=key)


def test_both_zeros_are_one_score():
    scores = np.array([0.0, -0.0, 1.0, -1.0, 0.0, -0.0], np.float32)
    np.testing.assert_array_equal(sort.nearest_first(scores, -1), [2, 0, 1, 4, 5, 3])
    np.testing.assert_array_equal(sort.nearest_first(scores.astype(np.float64), 1), [2, 0, 4, 5, 3])


def test_float64(x64):
    points, labels = sample(7, [5] * 20)
    agrees(points.astype(np.float64) + 1e-9 * np.random.default_rng(0).normal(size=points.shape), labels)


def test_a_shift_does_not_blur_euclidean_ranks():
    """Squared lengths far above the distances would drown them in float32."""
    points, labels = sample(8, [5] * 40)
    plain = metrics.retrieval(points, labels, metric="euclidean", per_query=True)
    shifted = metrics.retrieval(points.astype(np.float64) + 2.0**12, labels, metric="euclidean", per_query=True)
    assert np.mean(plain["rank"] == shifted["rank"]) > 0.99
    scaled = metrics.retrieval(points * np.float32(2.0**80), labels, metric="euclidean", per_query=True)
    np.testing.assert_array_equal(plain["rank"], scaled["rank"])


def test_long_and_short_rows_by_cosine():
    points, labels = sample(9, [5] * 20)
    plain = metrics.retrieval(points, labels, per_query=True)
    for factor in (2.0**80, 2.0**-80):
        scaled = metrics.retrieval(points * np.float32(factor), labels, per_query=True)
        np.testing.assert_array_equal(plain["rank"], scaled["rank"])


def test_zero_rows_and_equal_rows():
    labels = np.repeat(np.arange(4), 3)
    found = metrics.retrieval(np.zeros((12, 8), np.float32), labels, ks=(1, 11), per_query=True)
    far = np.zeros((12, 12))
    expected, first, *_ = brute.retrieval(far, labels, labels, (1, 11), own=True)
    np.testing.assert_array_equal(found["rank"], first)
    assert found["recall@1"] == expected["recall@1"]


def test_only_single_rows_or_only_one_class():
    points, _ = sample(10, [5, 5])
    alone = metrics.retrieval(points, np.arange(10))
    assert (alone["recall@8"], alone["lone_queries"]) == (0, 10)
    assert np.isnan(alone["map@r"])
    same = metrics.retrieval(points, np.zeros(10, np.int64))
    assert (same["recall@1"], same["map@r"], same["r_precision"]) == (1, 1, 1)


def test_standard_errors():
    points, labels = sample(11, [1, 4, 9, 30], spread=4)
    found = metrics.retrieval(points, labels, per_query=True)
    hit = (found["rank"] > 0) & (found["rank"] <= 4)
    assert found["recall@4_stderr"] == pytest.approx(hit.std() / np.sqrt(len(hit)))
    kept = found["map@r_per_query"][~np.isnan(found["map@r_per_query"])]
    assert found["map@r_stderr"] == pytest.approx(kept.std() / np.sqrt(len(kept)))


def test_plan_and_progress_are_told(small_tiles):
    points, labels = sample(12, [5] * 40)
    lines, steps = [], []
    metrics.retrieval(points, labels, announce=lines.append, progress=lambda *step: steps.append(step))
    assert len(lines) == 1
    assert "200 queries x 200 candidates x 16" in lines[0]
    assert "MiB" in lines[0]
    assert steps[-1][0] == steps[-1][1]
    assert steps == sorted(steps)
