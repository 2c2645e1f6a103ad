"""Re-ranking against a dense float64 implementation; metrics of ranked lists against brute force."""

import numpy as np
import pytest

from dml_jax.evaluation import metrics, neighbors, reranking
from tests.evaluation import brute


def points(count=60, classes=6, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    rows = rng.normal(size=(classes, 6))[labels] + 0.8 * rng.normal(size=(count, 6))
    return rows.astype(np.float32), labels


def dense(queries, gallery, k1, k2, weight):
    """d* [Q, G] by the equations of the module, with N×N matrices and sets; `gallery` None: among the queries."""
    rows = np.asarray(queries if gallery is None else np.concatenate([queries, gallery]), float)
    d = brute.distances(rows, rows, "cosine")
    order = np.argsort(d - 10 * np.eye(len(d)), axis=1, kind="stable")
    d = np.maximum(d, 0) / d.max(axis=1, keepdims=True)

    def mutual(p, k):
        return {int(g) for g in order[p, : k + 1] if p in order[g, : k + 1]}

    v = np.zeros_like(d)
    for p in range(len(d)):
        core = mutual(p, k1)
        grown = set(core)
        for q in core:
            near = mutual(q, round(k1 / 2))
            if len(near & core) > 2 / 3 * len(near):
                grown |= near
        v[p, sorted(grown)] = np.exp(-d[p, sorted(grown)])
    v /= v.sum(axis=1, keepdims=True)
    v = np.stack([v[order[p, :k2]].mean(axis=0) for p in range(len(d))])
    smallest, largest = (pick(v[:, None], v[None]).sum(axis=2) for pick in (np.minimum, np.maximum))
    found = (1 - weight) * (1 - smallest / largest) + weight * d
    return found if gallery is None else found[: len(queries), len(queries) :]


def check(far, distances, indices):
    """Checks that the lists are sorted by the float64 distances, up to float32 rounding."""
    np.testing.assert_allclose(np.take_along_axis(far, indices, axis=1), distances, atol=2e-6)
    np.testing.assert_allclose(np.sort(far, axis=1)[:, : indices.shape[1]], distances, atol=2e-6)
    assert all(len(set(row)) == len(row) for row in indices.tolist())


@pytest.mark.parametrize(
    ("k1", "k2", "weight", "terms"), [(20, 6, 0.3, 1 << 22), (20, 6, 0.3, 300), (7, 1, 0.0, 300), (5, 3, 0.8, 1 << 22)]
)
def test_queries_and_gallery(k1, k2, weight, terms, monkeypatch):
    monkeypatch.setattr(reranking, "TERMS", terms)
    monkeypatch.setattr(reranking, "ROWS", terms)
    x, _ = points()
    far = dense(x[:20], x[20:], k1, k2, weight)
    for k in (4, 40):
        check(far, *reranking.search(x[:20], x[20:], k, k1=k1, k2=k2, weight=weight))


def test_queries_search_each_other():
    x, labels = points(seed=1)
    far = dense(x, None, 10, 4, 0.3)
    np.fill_diagonal(far, np.inf)
    distances, indices = reranking.search(x, x, 40, k1=10, k2=4, exclude_self=True)
    check(far, distances, indices)
    copied = reranking.search(x, x.copy(), 40, k1=10, k2=4, exclude_self=True)
    np.testing.assert_array_equal(copied[1], indices)
    same, itself = labels[:, None] == labels, np.eye(len(x), dtype=bool)
    found = metrics.of_ranked_lists(indices, labels, ks=(1, 5, 40))
    del found["mrr"]  # a list ends before the ranking
    brute.check(found, brute.retrieval(far, same, (1, 5, 40), omitted=itself, labels=labels))
    plain, _ = brute.retrieval(brute.distances(x, x, "cosine"), same, (1,), omitted=itself)
    assert found["map@r"] > plain["map@r"] + 0.02  # re-ranking must help here


def test_weight_one_gives_the_original_ranking_and_duplicates_are_handled():
    x, _ = points(40, 5)
    found = reranking.search(x, x, 9, k1=5, k2=2, weight=1.0, exclude_self=True)
    np.testing.assert_array_equal(found[1], neighbors.search(x, x, 9, exclude_self=True)[1])
    same = np.ones((30, 3), np.float32)
    distances, indices = reranking.search(same, same, 3, k1=5, k2=2, exclude_self=True)
    assert np.isfinite(distances).all()
    assert not (indices == np.arange(30)[:, None]).any()


@pytest.mark.parametrize("scale", [1e-60, 1e60])
def test_rows_that_leave_the_range_of_float32(scale):
    x = points(30, 5)[0].astype(np.float64)
    found = reranking.search(scale * x, scale * x, 9, k1=5, k2=2, exclude_self=True)
    check(dense(x, None, 5, 2, reranking.WEIGHT) + 9 * np.eye(30), *found)


@pytest.mark.parametrize("own", [True, False])
def test_metrics_of_lists_equal_those_of_distances(own):
    """Against brute force, with queries that have no relevant row; also of blocks of lists."""
    x, labels = points(70, 7, seed=3)
    labels[:3] = [50, 51, -4]
    gallery, of_gallery = (x, labels) if own else (x[20:], labels[20:])
    queries, of_queries = (x, labels) if own else (x[:20], labels[:20])
    far = brute.distances(queries, gallery, "cosine")
    omitted = np.eye(len(far), dtype=bool) if own else None
    indices = np.argsort(far + (1e9 * np.eye(len(far)) if own else 0), axis=1, kind="stable")
    given = indices[:, :20], of_queries, None if own else of_gallery
    found = metrics.of_ranked_lists(*given, ks=(1, 4, 20))
    relevant = of_queries[:, None] == of_gallery
    means, _ = brute.retrieval(far, relevant, (1, 4, 20), omitted=omitted, labels=of_queries)
    brute.check({key: value for key, value in found.items() if key != "mrr"}, (means, {}))
    assert found["lone_queries"] == 3
    blocks = np.array_split(given[0], 3), of_queries, of_gallery
    counts = metrics.relevant_counts(of_queries, of_gallery, exclude_self=own)
    assert metrics.summarize_lists(*blocks, counts, (1, 4, 20), "miss") == found
    omitting = metrics.of_ranked_lists(*given, ks=(4,), lone_queries="omit")["recall@4"]
    assert omitting == pytest.approx(found["recall@4"] * len(queries) / (len(queries) - 3))
