"""Re-ranking against a dense float64 implementation; metrics of ranked lists against brute
force."""

import numpy as np
import pytest

from dml_jax.errors import DataError
from dml_jax.evaluation import metrics, neighbors, reranking
from tests.evaluation import brute


def points(count=90, classes=9, seed=0, width=6):
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    return (
        rng.normal(size=(classes, width))[labels] + 0.8 * rng.normal(size=(count, width))
    ).astype(np.float32), labels


def dense(queries, gallery, k1, k2, weight):
    """d* [Q, G] by the equations of the module, with N×N matrices and sets; `gallery` None: among
    the queries."""
    rows = np.asarray(
        queries if gallery is None else np.concatenate([queries, gallery]), np.float64
    )
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
    jaccard = np.array(
        [[1 - np.minimum(a, b).sum() / np.maximum(a, b).sum() for b in v] for a in v]
    )
    found = (1 - weight) * jaccard + weight * d
    return found if gallery is None else found[: len(queries), len(queries) :]


def check(far, distances, indices):
    """Checks that the lists are sorted by the float64 distances, up to float32 rounding."""
    np.testing.assert_allclose(np.take_along_axis(far, indices, axis=1), distances, atol=2e-6)
    np.testing.assert_allclose(np.sort(far, axis=1)[:, : indices.shape[1]], distances, atol=2e-6)
    assert all(len(set(row)) == len(row) for row in indices.tolist())


@pytest.mark.parametrize(("k1", "k2", "weight"), [(20, 6, 0.3), (7, 1, 0.0), (5, 3, 0.8)])
@pytest.mark.parametrize("terms", [1 << 22, 300])
def test_queries_and_gallery(k1, k2, weight, terms, monkeypatch):
    monkeypatch.setattr(reranking, "TERMS", terms)
    monkeypatch.setattr(reranking, "ROWS", terms)
    x, _ = points()
    far = dense(x[:30], x[30:], k1, k2, weight)
    for k in (4, 60):
        check(far, *reranking.search(x[:30], x[30:], k, k1=k1, k2=k2, weight=weight))


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
    np.testing.assert_array_equal(
        reranking.search(x, x, 9, k1=5, k2=2, weight=1.0, exclude_self=True)[1],
        neighbors.search(x, x, 9, exclude_self=True)[1],
    )
    same = np.ones((30, 3), np.float32)
    distances, indices = reranking.search(same, same, 3, k1=5, k2=2, exclude_self=True)
    assert np.isfinite(distances).all()
    assert not (indices == np.arange(30)[:, None]).any()


@pytest.mark.parametrize("scale", [1e-60, 1e60])
def test_rows_that_leave_the_range_of_float32(scale):
    x = points(30, 5)[0].astype(np.float64)
    options = {"k1": 5, "k2": 2, "exclude_self": True}
    distances, indices = reranking.search(scale * x, scale * x, 9, **options)
    check(dense(x, None, 5, 2, reranking.WEIGHT) + 9 * np.eye(30), distances, indices)


def test_invalid_arguments():
    x, _ = points(20, 4)
    with pytest.raises(DataError, match="re-ranking: compares the 20 nearest of 20 rows"):
        reranking.search(x, x, 3, k1=20, exclude_self=True)


@pytest.mark.parametrize("own", [True, False])
def test_metrics_of_lists_equal_those_of_distances(own):
    """Against brute force, with queries that have no relevant row."""
    x, labels = points(70, 7, seed=3)
    labels = labels.copy()
    labels[:3] = [50, 51, -4]
    gallery, gallery_labels = (x, labels) if own else (x[20:], labels[20:])
    queries, query_labels = (x, labels) if own else (x[:20], labels[:20])
    far = brute.distances(queries, gallery, "cosine")
    indices = np.argsort(far + (1e9 * np.eye(len(far)) if own else 0), axis=1, kind="stable")[
        :, :20
    ]
    found = metrics.of_ranked_lists(
        indices, query_labels, None if own else gallery_labels, ks=(1, 4, 20)
    )
    omitted = np.eye(len(far), dtype=bool) if own else None
    relevant = query_labels[:, None] == gallery_labels
    means, _ = brute.retrieval(far, relevant, (1, 4, 20), omitted=omitted, labels=query_labels)
    brute.check({key: value for key, value in found.items() if key != "mrr"}, (means, {}))
    assert found["lone_queries"] == 3
    blocks = np.array_split(indices, 3)
    relevant = metrics.relevant_counts(query_labels, gallery_labels, exclude_self=own)
    assert (
        metrics.of_blocks_of_lists(
            blocks, query_labels, gallery_labels, relevant, (1, 4, 20), "miss"
        )
        == found
    )
    omitted = metrics.of_ranked_lists(
        indices, query_labels, None if own else gallery_labels, ks=(4,), lone_queries="omit"
    )
    assert omitted["recall@4"] == pytest.approx(
        found["recall@4"] * len(queries) / (len(queries) - 3)
    )


def test_invalid_lists():
    labels = np.zeros(6, int)
    with pytest.raises(DataError, match="lists have 3 rows, but these K and class sizes need 5"):
        metrics.of_ranked_lists(np.zeros((6, 3), int), labels, ks=(1,))
