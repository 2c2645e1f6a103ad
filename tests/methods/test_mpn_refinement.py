"""Batches of reciprocal neighbours against an implementation with Python sets; clusters against
known blobs and scikit-learn; chunks of neighbours against sorted distances."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn import cluster, metrics

from dml_jax.config import Data, Evaluation
from dml_jax.methods.mpn import refinement


def clustered(rows: int, dim: int, seed: int) -> np.ndarray:
    rng, count = np.random.default_rng(seed), max(rows // 12, 1)
    points = rng.normal(size=(count, dim))[rng.integers(0, count, rows)]
    points = points + 0.5 * rng.normal(size=(rows, dim))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def ranked(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distances = ((points[:, None] - points[None]) ** 2).sum(-1)
    return distances, np.argsort(distances, axis=1, kind="stable")


def by_sets(points: np.ndarray, k: int, size: int, rule: str) -> list[list[int]]:
    """Batches by the definitions, for queries that search each other."""
    distances, order = ranked(points)
    paper = rule == "paper"

    def near(q: int, k: int) -> list[int]:
        return [g for g in order[q] if g != q][:k] if paper else list(order[q][: k + 1])

    def mutual(q: int, k: int) -> set[int]:
        return {g for g in near(q, k) if q in near(g, k)}

    batches = []
    for q in range(len(points)):
        original = mutual(q, k)
        expanded = set(original)
        for g in original:
            half = mutual(g, round(k / 2))
            shared, bound = len(half & original), 2 / 3 * len(half)
            if shared >= bound if paper else shared > bound:
                expanded |= half
        chosen = [q, *sorted(expanded - {q}, key=lambda g: distances[q, g])]
        batches.append((chosen + [g for g in order[q] if g not in chosen])[:size])
    return batches


@pytest.mark.parametrize("rule", ["authors", "paper"])
@pytest.mark.parametrize(("rows", "k", "size"), [(90, 10, 7), (71, 5, 20), (40, 7, 3)])
def test_reciprocal_neighbours(rows: int, k: int, size: int, rule: refinement.Rule, x64: None) -> None:
    points = clustered(rows, 6, seed=k)
    found = refinement.reciprocal_sets(points, k=k, size=size, rule=rule)
    np.testing.assert_array_equal(found.batches, by_sets(points, k, size, rule))


def test_fewer_images_than_neighbours(x64: None) -> None:
    points = clustered(4, 3, seed=0)
    found = refinement.reciprocal_sets(points, k=30, size=7).batches
    np.testing.assert_array_equal(found, ranked(points)[1])
    found = refinement.reciprocal_sets(points[:1], points[1:], k=30, size=7).batches
    assert found.shape == (1, 4)


def blobs(count: int, each: int, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows float32 [count * each, 8] around orthogonal directions, and the direction index of each row."""
    rng = np.random.default_rng(0)
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
def test_clusters_are_those_of_scikit_learn(kind: refinement.Algorithm, estimator: cluster.KMeans) -> None:
    points, _ = blobs(6, 15, 0.15)
    found = refinement.cluster(points, kind, count=4, eps=0.5, min_samples=4, seed=3)
    expected = estimator.fit_predict(points)
    np.testing.assert_array_equal(np.unique(found.labels), np.arange(found.labels.max() + 1))
    assert metrics.adjusted_rand_score(expected, found.labels) == 1
    assert found.noise == np.sum(expected == -1)
    assert found.number == len(set(expected.tolist()) - {-1})


def test_noise_is_a_cluster_of_its_own() -> None:
    points, labels = blobs(3, 10, 0.02)
    outliers = np.float32([[0, 0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0]])
    found = refinement.cluster(np.concatenate([points, outliers]), "dbscan")
    assert (found.number, found.noise) == (3, 2)
    assert metrics.adjusted_rand_score([*labels, 3, 3], found.labels) == 1


def run_of(*kinds: str, clusters: int = 900) -> Any:
    method = SimpleNamespace(clusters=clusters, eps=0.9, min_samples=5)
    data = Data(batch_size=4, images_per_class=2)
    return SimpleNamespace(data=data, evaluation=Evaluation(refine=kinds), method=method, seed=0)


def test_groups_of_each_kind_hold_every_image() -> None:
    points, labels = blobs(6, 2, 0.001)
    for kind, facts in (("neighbors", {}), ("ward", {"clusters": 6, "noise": 0})):
        groups, found = refinement.groups(kind, points, run_of(kind, clusters=6))
        assert found == facts
        assert set(groups.batches[:, : groups.refined].ravel().tolist()) == set(range(12))
    for chunk in groups.batches.reshape(-1, 2):
        assert len(set(labels[chunk].tolist())) == 1


def test_chunks_of_nearest_neighbours() -> None:
    points, _ = blobs(4, 6, 0.3)
    groups = refinement.neighbor_chunks(points, chunk=3, chunks=5, seed=1)
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
    alone = refinement.neighbor_chunks(np.eye(4, dtype=np.float32), chunk=1, chunks=4)
    np.testing.assert_array_equal(np.sort(alone.batches), [[0, 1, 2, 3]])


def test_batches_are_chunks_of_clusters() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(6), [1, 2, 3, 4, 9, 16]))
    groups = refinement.batches_from_clusters(labels, Data(batch_size=12, images_per_class=3), seed=0)
    assert groups.batches.shape[1] == groups.refined == 12
    assert set(groups.batches.ravel().tolist()) == set(range(35))
    for chunk in groups.batches.reshape(-1, 3):
        assert len(set(labels[chunk].tolist())) == 1


def test_fewer_images_than_a_batch_holds() -> None:
    groups = refinement.batches_from_clusters(
        np.array([0, 0, 1, 1, 1]), Data(batch_size=64, images_per_class=4), seed=0
    )
    assert groups.batches.shape[1] == 8
    assert set(groups.batches.ravel().tolist()) == set(range(5))
