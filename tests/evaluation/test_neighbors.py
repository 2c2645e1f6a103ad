"""Nearest neighbours against brute force in float64: ties, exclusion, devices and streamed galleries."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from dml_jax.evaluation import metrics, neighbors
from dml_jax.evaluation._engine import tiles
from tests.evaluation import brute


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "choose_tile_size", lambda rows, mesh: 64)


def rows(seed, count=230, width=12):
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def check(found, queries, gallery, k, metric, *, exclude_self=False, rtol=1e-6, atol=0.0):
    """Checks (distances, indices) of `search`."""
    distances = brute.distances(queries, gallery, metric)
    if exclude_self:
        distances = np.where(np.eye(*distances.shape, dtype=bool), np.inf, distances)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(found[1], order)
    expected = np.take_along_axis(distances, order, axis=1)
    np.testing.assert_allclose(found[0], expected, rtol=rtol, atol=atol)


def test_zero_rows_are_as_far_as_orthogonal_ones():
    """1 - cosine, where the cosine with a zero row is 0, however many rows tie and whichever side is zero."""
    queries = np.array([[1, 0], [0, 0], [-1, 1e-3]], np.float32)
    gallery = np.array([[0, 0], [0, 1], [0, 0], [1, 0], [1, 1e-4], [-1, 0]], np.float32)
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(gallery, axis=1)
    exact = 1 - queries.astype(np.float64) @ gallery.T / np.where(lengths > 0, lengths, 1)
    for k in (1, 3, 6):
        distances, indices = neighbors.search(queries, gallery, k)
        np.testing.assert_allclose(distances, np.sort(exact, axis=1)[:, :k], atol=1e-6)
        np.testing.assert_allclose(np.take_along_axis(exact, indices, axis=1), distances, atol=1e-6)
    own, other = np.array([1, 1, 0]), np.array([0, 1, 0, 0, 0, 0])
    options = {"gallery": gallery, "gallery_labels": other, "exclude_self": False}
    found = metrics.retrieval(queries, own, ks=1, per_query=True, **options)
    assert found["rank"].tolist() == [4, 2, 1]


QUERIES, GALLERY = rows(0, 170), rows(1)
NEAR = np.concatenate([QUERIES + 0.3 * rows(2, 170), GALLERY[170:]])
SMALL, SIDE = (
    np.float32(1e-4) * rows(6),
    np.where(np.arange(230) % 2, 1, -1)[:, None],
)  # two groups, in which rows find themselves


@pytest.mark.parametrize(
    ("queries", "gallery", "metric", "k", "exclude_self", "tolerance"),
    [
        (QUERIES, NEAR, "cosine", 10, True, 2e-6),
        (QUERIES, NEAR, "cosine", 1, False, 2e-6),
        (QUERIES, NEAR, "euclidean", 120, False, 2e-6),
        (QUERIES, NEAR, "euclidean", 1, True, 2e-6),
        *((u * (rows(5) + SMALL), u * rows(5), "euclidean", 1, False, 0) for u in np.float32([1e-4, 1e4])),
        *((*[1 + spread * rows(7).astype(float)] * 2, "cosine", 10, True, 0) for spread in (1e-4, 1e-2, 0.1)),
        (*[(1e3 * SIDE + 0.1 * rows(8)).astype("f4")] * 2, "euclidean", 3, False, 0),
        (*[1e8 * SIDE + 0.1 * rows(8).astype("f8")] * 2, "euclidean", 3, False, 0),
    ],
)
def test_against_brute_force(queries, gallery, metric, k, exclude_self, tolerance):
    """Also small distances between long rows, in narrow cones and in groups that are far apart."""
    found = neighbors.search(queries, gallery.copy(), k, metric=metric, exclude_self=exclude_self)
    check(found, queries, gallery, k, metric, exclude_self=exclude_self, rtol=max(tolerance, 1e-6), atol=tolerance)


@pytest.mark.parametrize("exponent", [-1000, 1000])
def test_distances_that_float32_does_not_hold(exponent):
    large = (np.ldexp(side.astype(np.float64), exponent) for side in (QUERIES, GALLERY))
    distances, indices = neighbors.search(*large, 5, metric="euclidean")
    found = np.ldexp(distances, -exponent), indices
    check(found, QUERIES, GALLERY, 5, "euclidean", rtol=2e-6)


@pytest.mark.parametrize(("count", "memory"), [(8, None), (2, 5_000)])  # 2 tiles of 4 at once
def test_ties_go_to_the_lower_index(count, memory, monkeypatch):
    mesh = Mesh(np.array(jax.devices()[:count]), ("data",))
    monkeypatch.setattr(tiles, "local_mesh", lambda: mesh)
    if memory:
        monkeypatch.setattr(tiles, "memory_budget", lambda mesh: memory)
    points = np.random.default_rng(3).integers(0, 3, (230, 4))
    found = neighbors.search(points, points, 40, metric="euclidean", exclude_self=True)
    check(found, points, points, 40, "euclidean", exclude_self=True)


@pytest.mark.parametrize("way", [neighbors._selected, neighbors._sorted])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_both_forms_of_merging_order_ties_by_index(way, dtype, x64):
    rng = np.random.default_rng(0)
    scores = rng.integers(-3, 3, (5, 40)).astype(dtype) / 4
    scores[:, ::7], scores[1] = -np.inf, 0
    indices = np.sort(rng.permutation(1000)[:200].reshape(5, 40), axis=1).astype(np.int32)
    order = np.lexsort((indices, -scores), axis=1)[:, :25]
    merged = jax.jit(way, static_argnums=0)(25, scores, indices)
    for found, given in zip(merged, (scores, indices), strict=True):
        np.testing.assert_array_equal(found, np.take_along_axis(given, order, axis=1))


@pytest.mark.parametrize("count", [1, 3])
def test_results_do_not_depend_on_the_devices(count, monkeypatch):
    points, mesh = rows(7), Mesh(np.array(jax.devices()[:count]), ("data",))
    expected = neighbors.search(points, points, 15)
    monkeypatch.setattr(tiles, "local_mesh", lambda: mesh)
    for found, same in zip(neighbors.search(points, points, 15), expected, strict=True):
        np.testing.assert_array_equal(found, same)


def test_float64(x64):
    points = rows(8).astype(np.float64) + 1e-10 * rows(9)
    found = neighbors.search(points, points, 5, exclude_self=True)
    assert found[0].dtype == np.float64
    check(found, points, points, 5, "cosine", exclude_self=True, rtol=1e-12)
