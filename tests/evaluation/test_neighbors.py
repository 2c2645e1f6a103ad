"""Nearest neighbours against brute force in float64: ties, exclusion, devices and streamed
galleries."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from dml_jax.errors import DataError
from dml_jax.evaluation import metrics, neighbors
from dml_jax.evaluation._engine import tiles
from tests.evaluation import brute


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "choose_tile_size", lambda rows, mesh: 64)


def rows(seed, count=300, width=12):
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def expected(distances, k, exclude_self):
    if exclude_self:
        distances = np.where(np.eye(*distances.shape, dtype=bool), np.inf, distances)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, axis=1), order


def test_zero_rows_are_as_far_as_orthogonal_ones():
    """1 - cosine, where the cosine with a zero row is 0, however many rows tie and whichever side
    is zero."""
    distances, indices = neighbors.search(
        np.array([[1.0, 0]]), np.array([[0.0, 0], [0, 0], [0.1, 1]]), 1
    )
    assert (indices.tolist(), distances[0, 0]) == (
        [[2]],
        pytest.approx(1 - 0.1 / np.hypot(0.1, 1), rel=1e-6),
    )
    queries = np.array([[1, 0], [0, 0], [-1, 1e-3]], np.float32)
    gallery = np.array([[0, 0], [0, 1], [0, 0], [1, 0], [1, 1e-4], [-1, 0]], np.float32)
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(gallery, axis=1)
    exact = 1 - queries.astype(np.float64) @ gallery.T / np.where(lengths > 0, lengths, 1)
    for k in (1, 3, 6):
        distances, indices = neighbors.search(queries, gallery, k)
        np.testing.assert_allclose(distances, np.sort(exact, axis=1)[:, :k], atol=1e-6)
        np.testing.assert_allclose(np.take_along_axis(exact, indices, axis=1), distances, atol=1e-6)
    own, other = np.array([1, 1, 0]), np.array([0, 1, 0, 0, 0, 0])
    options = {
        "gallery": gallery,
        "gallery_labels": other,
        "exclude_self": False,
        "ks": 1,
        "per_query": True,
    }
    assert metrics.retrieval(queries, own, **options)["rank"].tolist() == [4, 2, 1]


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("exclude_self", [True, False])
@pytest.mark.parametrize("k", [1, 10, 120])
def test_against_brute_force(metric, exclude_self, k):
    queries, gallery = rows(0, 170), rows(1, 230)
    gallery[:170] = queries + 0.3 * rows(2, 170)
    distances, indices = neighbors.search(
        queries, gallery, k, metric=metric, exclude_self=exclude_self
    )
    reference, order = expected(brute.distances(queries, gallery, metric), k, exclude_self)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_allclose(distances, reference, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("exponent", [-1000, 1000])
def test_distances_that_float32_does_not_hold(exponent):
    queries, gallery = rows(0, 170), rows(1, 230)
    reference, order = expected(brute.distances(queries, gallery, "euclidean"), 5, False)
    large = (np.ldexp(side.astype(np.float64), exponent) for side in (queries, gallery))
    distances, indices = neighbors.search(*large, 5, metric="euclidean")
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_allclose(np.ldexp(distances, -exponent), reference, rtol=2e-6)


@pytest.mark.parametrize(
    ("count", "memory"), [(8, None), (2, 5_000)]
)  # the second holds 2 tiles of 5 at once
def test_ties_go_to_the_lower_index(count, memory, monkeypatch):
    monkeypatch.setattr(
        tiles, "local_mesh", lambda: Mesh(np.array(jax.devices()[:count]), ("data",))
    )
    if memory:
        monkeypatch.setattr(tiles, "memory_budget", lambda mesh: memory)
    points = np.random.default_rng(3).integers(0, 3, (300, 4))
    reference, order = expected(brute.distances(points, points, "euclidean"), 40, True)
    distances, indices = neighbors.search(points, points, 40, metric="euclidean", exclude_self=True)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_allclose(distances, reference, rtol=1e-6)


@pytest.mark.parametrize("way", [neighbors._selected, neighbors._sorted])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_both_forms_of_merging_order_ties_by_index(way, dtype, x64):
    scores = np.random.default_rng(0).integers(-3, 3, (5, 40)).astype(dtype) / 4
    scores[:, ::7], scores[1] = -np.inf, 0
    indices = np.sort(
        np.random.default_rng(1).permutation(1000)[:200].reshape(5, 40), axis=1
    ).astype(np.int32)
    order = np.lexsort((indices, -scores), axis=1)[:, :25]
    for found, given in zip(
        jax.jit(way, static_argnums=0)(25, scores, indices), (scores, indices), strict=True
    ):
        np.testing.assert_array_equal(found, np.take_along_axis(given, order, axis=1))


@pytest.mark.parametrize("unit", [1e-4, 1, 1e4])
def test_small_distances_between_long_rows_are_accurate(unit):
    gallery = np.float32(unit) * rows(5, 100)
    queries = gallery + np.float32(1e-4 * unit) * rows(6, 100)
    distances, indices = neighbors.search(queries, gallery, 1, metric="euclidean")
    np.testing.assert_array_equal(indices[:, 0], np.arange(100))
    reference = np.linalg.norm(queries.astype(np.float64) - gallery, axis=1)
    np.testing.assert_allclose(distances[:, 0], reference, rtol=1e-6)


@pytest.mark.parametrize("spread", [1e-4, 1e-3, 1e-2, 0.1])
def test_narrow_cones(spread):
    points, _ = brute.narrow_cone(spread, 400)
    distances, indices = neighbors.search(points, points, 10, exclude_self=True)
    reference, order = expected(brute.distances(points, points, "cosine"), 10, True)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_allclose(distances, reference, rtol=1e-6)


@pytest.mark.parametrize(
    ("shift", "dtype"), [(1e3, np.float32), (1e3, np.float64), (1e8, np.float64)]
)
def test_rows_find_themselves_in_far_groups(shift, dtype):
    side = np.where(np.arange(400) % 2, shift, -shift)[:, None]
    points = (side + 0.1 * np.random.default_rng(0).normal(size=(400, 8))).astype(dtype)
    distances, indices = neighbors.search(points, points.copy(), 3, metric="euclidean")
    reference, order = expected(brute.distances(points, points, "euclidean"), 3, False)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_allclose(distances, reference, rtol=1e-6)


@pytest.mark.parametrize("count", [1, 3, 6])
def test_results_do_not_depend_on_the_devices(count, monkeypatch):
    points = rows(7)
    others, same = neighbors.search(points, points, 15)
    monkeypatch.setattr(
        tiles, "local_mesh", lambda: Mesh(np.array(jax.devices()[:count]), ("data",))
    )
    distances, indices = neighbors.search(points, points, 15)
    np.testing.assert_array_equal(indices, same)
    np.testing.assert_array_equal(distances, others)


def test_float64(x64):
    points = rows(8).astype(np.float64)
    points += 1e-10 * rows(9)
    distances, indices = neighbors.search(points, points, 5, exclude_self=True)
    reference, order = expected(brute.distances(points, points, "cosine"), 5, True)
    assert distances.dtype == np.float64
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_allclose(distances, reference, rtol=1e-12)


def test_invalid_input():
    points = rows(10, 20)
    with pytest.raises(DataError, match=r"k=20: must be a whole number in 1\.\.19"):
        neighbors.search(points, points, 20, exclude_self=True)
    with pytest.raises(DataError, match="a single row or image has nothing to search"):
        neighbors.search(points[:1], points[:1], 1, exclude_self=True)
