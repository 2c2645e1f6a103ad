"""k-means: given centres against NumPy, seeds, empty clusters, far and tiny numbers. Its quality is
compared with scikit-learn's by the golden tests."""

import jax
import numpy as np
import pytest

from dml_jax.evaluation import kmeans


def blobs(seed, k=12, count=300, width=16, spread=0.6):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(k, width))[rng.integers(0, k, count)]
    return (centers + spread * rng.normal(size=(count, width))).astype(np.float32)


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


@pytest.mark.parametrize("k", [1, 12, 37])
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
    smaller_blocks = jax.jit(lambda *arrays: kmeans.lloyd.__wrapped__(*arrays, scatter))
    others, same, *_ = smaller_blocks(points, points[:12], 300)
    np.testing.assert_array_equal(nearest, same)
    np.testing.assert_allclose(centers, others, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_seeds_and_few_points(init):
    """A seed is reproducible to the bit; as many clusters as points, or more than distinct ones."""
    points = blobs(2)
    one, two, other = (kmeans.fit(points, 12, init=init, seed=seed, restarts=2) for seed in (5, 5, 6))
    for found, same in zip(one, two, strict=True):
        np.testing.assert_array_equal(found, same)
    assert not np.array_equal(one.centers, other.centers)
    whole = kmeans.fit(blobs(6, count=12), 12, init=init)
    assert len(np.unique(whole.assignments)) == 12
    few = kmeans.fit(np.repeat(np.eye(3, 16, dtype=np.float32), 4, axis=0), 12, init=init)
    assert max(whole.inertia, few.inertia) < 1e-8
    assert np.isfinite(few.centers).all()


def test_empty_clusters_move_to_the_farthest_points():
    """Two blobs on either side of the origin, and ten initial centres far away from both."""
    points = blobs(5, k=1) + np.where(np.arange(300) % 2, 10, -10)[:, None].astype(np.float32)
    start = np.concatenate([points[:2], np.full((10, 16), 1e3, np.float32)])
    result = kmeans.fit(points, 12, init=start, max_iterations=1)
    first = ((points[:, None].astype(np.float64) - points[None, :2]) ** 2).sum(-1).min(1)
    np.testing.assert_allclose(result.centers[2:], points[np.argsort(-first)[:10]], rtol=1e-6)
    whole = kmeans.fit(points, 12, init=start)
    assert np.bincount(whole.assignments, minlength=12).min() > 0


@pytest.mark.parametrize("k", [2, 30])
def test_equal_centers_tie_to_the_lower_index(k):
    points = blobs(10)
    found = jax.jit(kmeans._assign)(points, np.repeat(points[:1], k, axis=0))
    np.testing.assert_array_equal(found, 0)


@pytest.mark.parametrize(
    ("exponent", "shift"), [(0, 2.0**12), *((exponent, 0) for exponent in (-1060, -700, -140, -70, 70, 600, 1015))]
)
def test_far_from_the_origin_and_out_of_the_range_of_squares(exponent, shift):
    """Also near the ends of float64, and as subnormal float32 numbers."""
    points = (blobs(7) * 8).round()  # exact, also as subnormal numbers
    plain = kmeans.fit(points, 12, init=points[:12])
    moved = points + np.float32(shift)
    moved = np.ldexp(moved if exponent == -140 else moved.astype(np.float64), exponent)
    result = kmeans.fit(moved, 12, init=moved[:12])
    np.testing.assert_array_equal(result.assignments, plain.assignments)
    centers = np.ldexp(result.centers.astype(np.float64), -exponent) - shift
    np.testing.assert_allclose(centers, plain.centers, atol=0.1)
    with np.errstate(over="ignore", under="ignore"):
        expected = np.ldexp(np.float64(plain.inertia), 2 * exponent)
    assert result.inertia == pytest.approx(expected, rel=1e-3, abs=0)


@pytest.mark.parametrize("init", ["k-means++", "given"])
def test_far_groups(init):
    """Twelve blobs in six groups, which are much farther apart than the points of a group."""
    groups = 1e4 * np.sign(np.random.default_rng(0).normal(size=(6, 16)))[np.arange(300) % 6]
    points = (groups + np.random.default_rng(1).normal(size=(12, 16))[np.arange(300) % 12]).astype(np.float32)
    points += blobs(2, k=1, spread=0.3) - blobs(2, k=1, spread=0)
    result = kmeans.fit(points, 12, init=points[:12] if init == "given" else init)
    assert result.centers.dtype == np.float32
    if init == "given":
        centers, nearest, inertia, _ = lloyd(points, points[:12], 300)
        np.testing.assert_array_equal(result.assignments, nearest)
        assert result.inertia == pytest.approx(inertia, rel=1e-6)
        np.testing.assert_allclose(result.centers, centers, rtol=1e-6)
    exact = points.astype(np.float64)
    means = np.stack([exact[result.assignments == i].mean(axis=0) for i in range(12)])
    distances = np.linalg.norm(exact[:, None] - means[None], axis=-1)
    np.testing.assert_array_equal(result.assignments, distances.argmin(axis=1))
