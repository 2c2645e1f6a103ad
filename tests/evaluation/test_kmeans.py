"""k-means: given centres against NumPy, quality against scikit-learn, seeds, empty clusters,
invalid input."""

import jax
import numpy as np
import pytest

from dml_jax.evaluation import kmeans
from tests.evaluation import brute


def blobs(seed, k=12, count=600, width=16, spread=0.6):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(k, width))[rng.integers(0, k, count)]
        + spread * rng.normal(size=(count, width))
    ).astype(np.float32)


def lloyd(points, centers, iterations):
    """Lloyd's algorithm in NumPy float64: centres, assignments, inertia and iterations."""
    points, centers = points.astype(np.float64), centers.astype(np.float64)
    nearest = np.full(len(points), -1)
    for iteration in range(1, iterations + 2):
        distances = ((points[:, None] - centers[None]) ** 2).sum(-1)
        assignments = distances.argmin(1)
        if np.array_equal(assignments, nearest) or iteration > iterations:
            break
        nearest = assignments
        centers = np.stack([points[nearest == i].mean(0) for i in range(len(centers))])
    return centers, assignments, distances.min(1).sum(), min(iteration, iterations)


@pytest.mark.parametrize("k", [1, 2, 12, 37])
@pytest.mark.parametrize("iterations", [1, 3, 300])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-11)])
def test_given_centers_against_numpy(k, iterations, dtype, tolerance):
    points = blobs(k).astype(dtype)
    centers, nearest, inertia, done = lloyd(points, points[:k], iterations)
    with jax.enable_x64(dtype == np.float64):
        result = kmeans.fit(points, k, init=points[:k], max_iterations=iterations)
    assert result.centers.dtype == dtype
    np.testing.assert_array_equal(result.assignments, nearest)
    np.testing.assert_allclose(result.centers, centers, rtol=10 * tolerance, atol=tolerance)
    assert result.inertia == pytest.approx(inertia, rel=tolerance)
    assert result.iterations == done


@pytest.mark.parametrize("scatter", [True, False])
def test_neither_blocks_nor_the_way_of_adding_change_the_result(scatter, monkeypatch):
    points = blobs(1)
    centers, nearest, *_ = kmeans.lloyd(points, points[:12], 300, True)
    monkeypatch.setattr(kmeans, "BLOCK", 96)
    monkeypatch.setattr(kmeans, "BLOCK_SCORES", 1)
    lloyd = kmeans.lloyd.__wrapped__  # compiled anew, with smaller blocks
    others, same, *_ = jax.jit(lambda *arguments: lloyd(*arguments, scatter))(
        points, points[:12], 300
    )
    np.testing.assert_array_equal(nearest, same)
    np.testing.assert_allclose(centers, others, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_a_seed_is_bit_reproducible(init):
    points = blobs(2)
    one, two, other = (
        kmeans.fit(points, 12, init=init, seed=seed, restarts=2) for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(one.centers, two.centers)
    np.testing.assert_array_equal(one.assignments, two.assignments)
    assert one.inertia == two.inertia
    assert not np.array_equal(one.centers, other.centers)


def test_empty_clusters_move_to_the_farthest_points():
    """Two blobs on either side of the origin, and ten initial centres far away from both."""
    side = np.where(np.arange(600) % 2, 10, -10)[:, None].astype(np.float32)
    points = blobs(5, k=1) + side
    start = np.concatenate([points[:2], np.full((10, 16), 1e3, np.float32)])
    result = kmeans.fit(points, 12, init=start, max_iterations=1)
    first = ((points[:, None].astype(np.float64) - points[None, :2]) ** 2).sum(-1).min(1)
    np.testing.assert_allclose(result.centers[2:], points[np.argsort(-first)[:10]], rtol=1e-6)
    whole = kmeans.fit(points, 12, init=start)
    assert np.bincount(whole.assignments, minlength=12).min() > 0


def test_equal_centers_tie_to_the_lower_index():
    points = blobs(10)
    assign = jax.jit(kmeans._assign)
    for k in (2, 30):
        np.testing.assert_array_equal(assign(points, np.repeat(points[:1], k, axis=0)), 0)


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_as_many_clusters_as_points_or_more_than_distinct_ones(init):
    points = blobs(6, count=12)
    whole = kmeans.fit(points, 12, init=init)
    assert len(np.unique(whole.assignments)) == 12
    few = kmeans.fit(np.repeat(np.eye(3, 16, dtype=np.float32), 4, axis=0), 12, init=init)
    assert max(whole.inertia, few.inertia) < 1e-8
    assert np.isfinite(few.centers).all()


@pytest.mark.parametrize(("shift", "scale"), [(2.0**12, 1), (0, 2.0**70), (0, 2.0**-70)])
def test_far_from_the_origin_and_out_of_the_range_of_squares(shift, scale):
    points = blobs(7)
    plain = kmeans.fit(points, 12, init=points[:12])
    moved = (points.astype(np.float64) + shift) * scale
    result = kmeans.fit(moved, 12, init=moved[:12])
    np.testing.assert_array_equal(result.assignments, plain.assignments)
    assert result.inertia == pytest.approx(plain.inertia * scale**2, rel=1e-3)


@pytest.mark.parametrize("exponent", [-1060, -700, 600, 1015])
def test_scales_near_the_ends_of_float64(exponent):
    points = (blobs(7) * 8).round()  # exact, also as subnormal numbers
    plain = kmeans.fit(points, 12, init=points[:12])
    scaled = np.ldexp(points.astype(np.float64), exponent)
    result = kmeans.fit(scaled, 12, init=scaled[:12])
    np.testing.assert_array_equal(result.assignments, plain.assignments)
    np.testing.assert_allclose(np.ldexp(result.centers, -exponent), plain.centers, atol=0.1)
    assert result.inertia == (0 if exponent < 0 else np.inf)


def test_rows_of_subnormal_float32_numbers():
    points = (blobs(7) * 8).round()
    plain = kmeans.fit(points, 12, init=points[:12])
    small = np.ldexp(points, -140)
    result = kmeans.fit(small, 12, init=small[:12])
    np.testing.assert_array_equal(result.assignments, plain.assignments)
    assert result.inertia == pytest.approx(np.ldexp(plain.inertia, -280), rel=1e-3)


@pytest.mark.parametrize("init", ["k-means++", "given"])
def test_far_groups(init):
    points, _ = brute.far_groups()
    result = kmeans.fit(points, 21, init=points[:21] if init == "given" else init, restarts=5)
    assert result.centers.dtype == np.float32
    if init == "given":
        centers, nearest, inertia, _ = lloyd(points, points[:21], 300)
        np.testing.assert_array_equal(result.assignments, nearest)
        assert result.inertia == pytest.approx(inertia, rel=1e-6)
        np.testing.assert_allclose(result.centers, centers, rtol=1e-6)
    means = np.stack(
        [points[result.assignments == i].mean(axis=0, dtype=np.float64) for i in range(21)]
    )
    distances = np.linalg.norm(points[:, None].astype(np.float64) - means[None], axis=-1)
    np.testing.assert_array_equal(result.assignments, distances.argmin(axis=1))
