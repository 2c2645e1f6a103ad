"""What counts as relevant: groups, several classes per row, relations; and distances and metrics of
the user's own; against brute force in float64."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from dml_jax.evaluation import metrics, protocol, reranking, user_distances
from dml_jax.evaluation._engine import plan, tiles
from tests.evaluation import brute

KS = (1, 2, 10)
COUNT = 160
OPTIONS = {"ks": KS, "metric": "euclidean", "per_query": True}
both = pytest.mark.parametrize("separate", [True, False])


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Many tiles for few rows."""
    monkeypatch.setattr(tiles, "choose_tile_size", lambda rows, mesh: 64)


def integers(classes=16):
    """Points with small integer coordinates, so that Euclidean distances tie exactly, and their classes."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 3, (COUNT, 5)).astype(np.float32), rng.integers(0, classes, COUNT), rng


def check(found, queries, gallery, relevant, omitted, metric="euclidean"):
    between = brute.distances(queries, gallery, metric)
    brute.check(found, brute.retrieval(between, relevant & ~omitted, KS, omitted=omitted))


@pytest.mark.parametrize("sort_above", [256, 5])
@both
def test_groups_leave_out_rows_of_the_same_class_and_group(monkeypatch, sort_above, separate):
    monkeypatch.setattr(plan, "SORT_ABOVE", sort_above)
    points, labels, rng = integers()
    cameras = np.array(["a", "b", "c"])[rng.integers(0, 3, COUNT)]
    cameras[labels < 4] = "a"  # these queries leave out every row of their class
    own = slice(0, 60) if separate else slice(None)
    gallery = {"gallery": points, "gallery_labels": labels, "gallery_groups": cameras}
    options = OPTIONS | (gallery if separate else {})
    found = metrics.retrieval(points[own], labels[own], groups=cameras[own], **options)
    same = labels[own, None] == labels
    check(found, points[own], points, same, same & (cameras[own, None] == cameras))
    assert found["lone_queries"] >= (labels[own] < 4).sum() > 0


def test_close_rows_are_ranked_in_float64():
    points, labels = brute.narrow_cone()
    groups = np.arange(168) // 21 % 4
    found = metrics.retrieval(points, labels, ks=KS, groups=groups, per_query=True)
    same = labels[:, None] == labels
    check(found, points, points, same, same & (groups[:, None] == groups), "cosine")


def test_groups_of_queries_that_begin_the_gallery():
    """A query under another group in the gallery leaves out its own row, too."""
    points, labels, rng = integers()
    groups = rng.integers(0, 3, COUNT)
    gallery = {"gallery": points, "gallery_labels": labels, "gallery_groups": groups}
    moved = (groups[:60] + np.arange(60) % 2) % 3
    options = OPTIONS | gallery | {"exclude_self": True}
    found = metrics.retrieval(points[:60], labels[:60], groups=moved, **options)
    same = labels[:60, None] == labels
    omitted = (same & (moved[:, None] == groups)) | np.eye(60, COUNT, dtype=bool)
    check(found, points[:60], points, same, omitted)


@both
def test_several_classes_per_row(separate):
    points, _, rng = integers()
    hot = rng.random((COUNT, 9)) < 0.15
    hot[:, 8] = False  # a class without rows; some rows have no class
    hot[0] = False
    own = slice(0, 60) if separate else slice(None)
    gallery = {"gallery": points, "gallery_labels": hot, "exclude_self": True} if separate else {}
    found = metrics.retrieval(points[own], hot[own], **gallery, **OPTIONS)
    common = hot[own].astype(int) @ hot.T.astype(int) > 0
    check(found, points[own], points, common, np.eye(len(common), COUNT, dtype=bool))
    assert found["lone_queries"] > 0
    assert "macro_recall@1" not in found
    names = [[f"class {c}" for c in np.flatnonzero(row)] for row in hot]
    names = [row[0] if len(row) == 1 else row for row in names]
    if separate:
        gallery["gallery_labels"] = names
    lists = metrics.retrieval(points[own], names[own], **gallery, **OPTIONS)
    for key, value in found.items():
        np.testing.assert_array_equal(lists[key], value)


def test_nothing_is_relevant():
    points, labels, _ = integers()
    for given, groups in ((labels, np.zeros(COUNT, int)), (np.zeros((COUNT, 3), bool), None), ([[]] * COUNT, None)):
        found = metrics.retrieval(points, given, groups=groups, ks=KS, metric="euclidean")
        assert (found["recall@10"], found["mrr"], found["lone_queries"]) == (0, 0, COUNT)
        assert np.isnan([found["r_precision"], found["map@r"]]).all()


def test_results_do_not_depend_on_the_memory(monkeypatch):
    points, labels, rng = integers()
    groups = rng.integers(0, 3, COUNT)
    options = {"labels": labels, "groups": groups}, {"labels": [[label] for label in labels]}
    expected = [metrics.retrieval(points, metric="euclidean", **each) for each in options]
    monkeypatch.setattr(tiles, "memory_budget", lambda mesh: 1)
    assert [metrics.retrieval(points, metric="euclidean", **each) for each in options] == expected


@both
def test_grades_of_a_relation(separate):
    """nDCG equals scikit-learn's; the other metrics take grades above 0 for relevant, and rows of NaN are left out."""
    points, labels, rng = integers(10)
    names = np.array(list("abcdefghij"))
    grades = rng.integers(0, 4, (10, 10)) * (rng.random((10, 10)) < 0.4) / 2  # not symmetric
    grades[rng.random((10, 10)) < 0.1] = np.nan
    grades[:, 9] = 0.0
    grades[9] = 0.0  # queries of "j" have no relevant row

    def relation(some, others):
        return grades[np.ix_(*(np.searchsorted(names, each) for each in (some, others)))]

    own = slice(0, 60) if separate else slice(None)
    gallery = {"gallery": points, "gallery_labels": names[labels], "exclude_self": True}
    options = OPTIONS | (gallery if separate else {})
    found = metrics.retrieval(points[own], names[labels[own]], relation=relation, **options)
    pairs = grades[np.ix_(labels[own], labels)]
    omitted = np.eye(len(pairs), COUNT, dtype=bool) | np.isnan(pairs)
    check(found, points[own], points, pairs > 0, omitted)
    distances = brute.distances(points[own], points, "euclidean")
    ranks = np.argsort(np.argsort(distances, axis=1, kind="stable"), axis=1)  # without ties
    lone = ~((pairs > 0) & ~omitted).any(axis=1)
    assert lone.sum() == found["lone_queries"] > 0
    for name, k in {"ndcg": None, **{f"ndcg@{k}": k for k in KS}}.items():
        each = np.full(len(pairs), np.nan)
        for i in np.flatnonzero(~lone):
            each[i] = ndcg_score([pairs[i, ~omitted[i]]], [-ranks[i, ~omitted[i]]], k=k)
        np.testing.assert_allclose(found[f"{name}_per_query"], each, atol=1e-6)
        assert found[name] == pytest.approx(np.nanmean(each), abs=1e-6)
        error = np.nanstd(each) / (~lone).sum() ** 0.5
        assert found[f"{name}_stderr"] == pytest.approx(error, abs=1e-6)


def manhattan(a, b):
    return jnp.abs(a[:, None] - b[None]).sum(axis=2)


def one_minus_cosine(a, b):
    a, b = (x / jnp.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    return 1 - a @ b.T


def first_hit(hits):
    """Rank of the first relevant row."""
    return 1 + int(np.argmax(hits))


@both
def test_a_distance_and_a_metric_of_the_users_own(separate, monkeypatch):
    monkeypatch.setattr(user_distances, "COLUMNS", 128)
    points, labels = brute.sample(0)
    points = np.round(3 * points)  # many ties
    own, rest = (slice(0, 70), slice(70, None)) if separate else (slice(None), slice(None))
    gallery = {"gallery": points[rest], "gallery_labels": labels[rest]} if separate else {}
    options = {"ks": KS, "metric": manhattan, "functions": {"first_hit": first_hit}}
    found = metrics.retrieval(points[own], labels[own], **options, **gallery)
    between = np.abs(points[own, None].astype(np.float64) - points[None, rest]).sum(axis=2)
    omitted = None if separate else np.eye(len(points), dtype=bool)
    relevant = labels[own, None] == labels[rest]
    means, each = brute.retrieval(between, relevant, KS, omitted=omitted)
    brute.check(found, (means, each))
    expected = each["rank"][each["rank"] > 0].mean()
    assert found["user/first_hit"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("own", [True, False])
def test_reranking_by_a_function_that_is_the_cosine(own, monkeypatch):
    monkeypatch.setattr(user_distances, "PAIRS", 512)
    points, _ = brute.sample(1, [20, 25, 30], width=6)
    queries, gallery = (points, points) if own else (points[:30], points[30:])
    expected = reranking.search(queries, gallery, 10, exclude_self=own)
    found = reranking.search(queries, gallery, 10, metric=one_minus_cosine, exclude_self=own)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[0], expected[0], atol=2e-6)


def test_metrics_do_not_depend_on_the_way():
    """Functions of the ranking sort every query; the other metrics stay as they are."""
    points, labels = brute.sample(2)
    plain = metrics.retrieval(points, labels, ks=KS)
    found = metrics.retrieval(points, labels, ks=KS, functions={"one": lambda hits: 1.0})
    assert {key: found[key] for key in plain} == pytest.approx(plain, rel=1e-12)
    assert found["user/one"] == 1
    by_function = metrics.retrieval(points, labels, ks=KS, metric=one_minus_cosine)
    assert by_function == pytest.approx(plain, rel=1e-12)
    text = protocol.description(cluster=False, metric=manhattan)
    assert f"ranking by {__name__}.manhattan, computed in float64 and rounded to float32" in text
