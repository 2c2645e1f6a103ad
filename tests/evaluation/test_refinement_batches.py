"""Clusters against known blobs and scikit-learn; chunks of neighbours against sorted distances."""

import numpy as np
import pytest
from sklearn import cluster, metrics

from dml_jax.errors import ConfigError, DataError
from dml_jax.evaluation import refinement_batches


def blobs(count: int, each: int, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows float32 [count * each, 8] around orthogonal directions, and the direction index of
    each row."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(count), each))
    points = np.eye(8)[labels] + spread * rng.normal(size=(len(labels), 8))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize(
    ("kind", "estimator"),
    [
        ("kmeans", cluster.KMeans(4, random_state=3)),
        ("ward", cluster.AgglomerativeClustering(4, linkage="ward")),
        ("spectral", cluster.SpectralClustering(4, assign_labels="discretize", random_state=3)),
        ("birch", cluster.Birch(threshold=0.5, n_clusters=4)),
        ("dbscan", cluster.DBSCAN(eps=0.5, min_samples=4)),
        ("optics", cluster.OPTICS(max_eps=0.5, min_samples=4)),
    ],
)
def test_clusters_are_those_of_scikit_learn(
    kind: refinement_batches.Algorithm, estimator: cluster.KMeans
) -> None:
    points, _ = blobs(6, 15, 0.15)
    found = refinement_batches.cluster(points, kind, count=4, eps=0.5, min_samples=4, seed=3)
    expected = estimator.fit_predict(points)
    np.testing.assert_array_equal(np.unique(found.labels), np.arange(found.labels.max() + 1))
    assert metrics.adjusted_rand_score(expected, found.labels) == 1
    assert found.noise == np.sum(expected == -1)
    assert found.found == len(set(expected.tolist()) - {-1})


def test_noise_is_a_cluster_of_its_own() -> None:
    points, labels = blobs(3, 10, 0.02)
    outliers = np.float32([[0, 0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0]])
    found = refinement_batches.cluster(np.concatenate([points, outliers]), "dbscan")
    assert (found.found, found.noise) == (3, 2)
    assert metrics.adjusted_rand_score([*labels, 3, 3], found.labels) == 1


@pytest.mark.parametrize(
    ("kind", "points", "eps", "words"),
    [
        (
            "dbscan",
            np.eye(8, dtype=np.float32),
            0.9,
            "finds 0 clusters and 8 images of noise among 8 images; set",
        ),
        ("dbscan", blobs(3, 10, 0.02)[0], 1.9, r"finds 1 cluster and 0 images .*refine_eps \(=1.9"),
        (
            "kmeans",
            np.ones((9, 4), np.float32) / 2,
            0.9,
            "among 9 images; the embeddings are too close",
        ),
    ],
)
def test_fewer_than_two_clusters(
    kind: refinement_batches.Algorithm, points: np.ndarray, eps: float, words: str
) -> None:
    with pytest.raises(DataError, match=rf"evaluation\.refine={kind}: .*{words}"):
        refinement_batches.cluster(points, kind, count=3, eps=eps)


def test_invalid_options() -> None:
    refinement_batches.check_options(("reciprocal", "neighbors", "optics"), 900, 5, 10**6)
    refinement_batches.check_options(("ward", "kmeans"), 900, 5, 900)
    with pytest.raises(
        ConfigError, match=r"evaluation\.refine_clusters=900: must not exceed the 899 images"
    ):
        refinement_batches.check_options(("dbscan", "birch"), 900, 5, 899)
    with pytest.raises(ConfigError, match=r"evaluation\.refine=ward: is limited to 20,000 images"):
        refinement_batches.check_options(("ward",), 900, 5, 60_502)
    with pytest.raises(
        ConfigError, match=r"evaluation\.refine_min_samples=50: must not exceed the 40 images"
    ):
        refinement_batches.check_options(("optics",), 9, 50, 40)


def test_chunks_of_nearest_neighbours() -> None:
    points, _ = blobs(4, 6, 0.3)
    groups = refinement_batches.neighbor_chunks(points, chunk=3, chunks=5, seed=1)
    assert groups.batches.shape == (5, 15)  # 24 anchors and one repeated
    assert groups.refined == 5
    anchors = groups.batches[:, :5].ravel()
    np.testing.assert_array_equal(np.sort(anchors[:24]), np.arange(24))
    assert not np.array_equal(anchors[:24], np.arange(24))
    cosine = points.astype(np.float64) @ points.T
    np.fill_diagonal(cosine, -2)
    nearest = np.argsort(-cosine, axis=1)[:, :2]
    for batch in groups.batches:
        np.testing.assert_array_equal(batch[5:], nearest[batch[:5]].ravel())


def test_chunks_of_anchors_alone() -> None:
    groups = refinement_batches.neighbor_chunks(np.eye(4, dtype=np.float32), chunk=1, chunks=4)
    np.testing.assert_array_equal(np.sort(groups.batches), [[0, 1, 2, 3]])
