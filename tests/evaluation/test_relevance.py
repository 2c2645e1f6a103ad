"""Several classes per row, and groups, against brute force in float64."""

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from dml_jax.errors import DataError
from dml_jax.evaluation import metrics
from dml_jax.evaluation._engine import plan, tiles
from tests.evaluation import brute

KS = (1, 2, 10)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Many tiles for few rows."""
    monkeypatch.setattr(tiles, "choose_tile_size", lambda rows, mesh: 64)


def integers(rows=300, classes=30):
    """Points with small integer coordinates, so that Euclidean distances tie exactly, and their
    classes."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 3, (rows, 5)).astype(np.float32), rng.integers(0, classes, rows), rng


@pytest.mark.parametrize("sort_above", [256, 5])
@pytest.mark.parametrize("separate", [True, False])
def test_groups_leave_out_rows_of_the_same_class_and_group(monkeypatch, sort_above, separate):
    monkeypatch.setattr(plan, "SORT_ABOVE", sort_above)
    points, labels, rng = integers()
    cameras = np.array(["a", "b", "c"])[rng.integers(0, 3, 300)]
    cameras[labels < 4] = "a"  # these queries leave out every row of their class
    queries = slice(0, 100) if separate else slice(None)
    options = {"ks": KS, "metric": "euclidean", "per_query": True}
    if separate:
        options |= {"gallery": points, "gallery_labels": labels, "gallery_groups": cameras}
    found = metrics.retrieval(points[queries], labels[queries], groups=cameras[queries], **options)
    same = labels[queries, None] == labels
    omitted = same & (cameras[queries, None] == cameras)
    brute.check(
        found,
        brute.retrieval(
            brute.distances(points[queries], points, "euclidean"),
            same & ~omitted,
            KS,
            omitted=omitted,
        ),
    )
    assert found["lone_queries"] >= (labels[queries] < 4).sum() > 0


def test_close_rows_are_ranked_in_float64():
    points, labels = brute.narrow_cone()
    groups = np.arange(168) // 21 % 4
    found = metrics.retrieval(points, labels, ks=KS, groups=groups, per_query=True)
    same = labels[:, None] == labels
    omitted = same & (groups[:, None] == groups)
    brute.check(
        found,
        brute.retrieval(
            brute.distances(points, points, "cosine"), same & ~omitted, KS, omitted=omitted
        ),
    )


def test_groups_of_queries_that_begin_the_gallery():
    """A query under another group in the gallery leaves out its own row, too."""
    points, labels, rng = integers()
    groups = rng.integers(0, 3, 300)
    gallery = {
        "gallery": points,
        "gallery_labels": labels,
        "gallery_groups": groups,
        "exclude_self": True,
    }
    moved = (groups[:100] + np.arange(100) % 2) % 3
    options = {"metric": "euclidean", "per_query": True}
    found = metrics.retrieval(points[:100], labels[:100], ks=KS, groups=moved, **gallery, **options)
    same = labels[:100, None] == labels
    omitted = (same & (moved[:, None] == groups)) | np.eye(100, 300, dtype=bool)
    expected = brute.retrieval(
        brute.distances(points[:100], points, "euclidean"), same & ~omitted, KS, omitted=omitted
    )
    brute.check(found, expected)


@pytest.mark.parametrize("separate", [True, False])
def test_several_classes_per_row(separate):
    points, _, rng = integers()
    hot = rng.random((300, 9)) < 0.15
    hot[:, 8] = False  # a class without rows; some rows have no class
    hot[0] = False
    queries = slice(0, 100) if separate else slice(None)
    options = {"ks": KS, "metric": "euclidean", "per_query": True}
    gallery = {"gallery": points, "gallery_labels": hot, "exclude_self": True} if separate else {}
    found = metrics.retrieval(points[queries], hot[queries], **gallery, **options)
    common = hot[queries].astype(int) @ hot.T.astype(int) > 0
    omitted = np.eye(len(common), 300, dtype=bool)
    brute.check(
        found,
        brute.retrieval(
            brute.distances(points[queries], points, "euclidean"),
            common & ~omitted,
            KS,
            omitted=omitted,
        ),
    )
    assert found["lone_queries"] > 0
    assert "macro_recall@1" not in found
    names = [[f"class {c}" for c in np.flatnonzero(row)] for row in hot]
    names = [row[0] if len(row) == 1 else row for row in names]
    if separate:
        gallery["gallery_labels"] = names
    lists = metrics.retrieval(points[queries], names[queries], **gallery, **options)
    for key, value in found.items():
        np.testing.assert_array_equal(lists[key], value)


def test_nothing_is_relevant():
    points, labels, _ = integers()
    options = {"ks": KS, "metric": "euclidean"}
    one_group = metrics.retrieval(points, labels, groups=np.zeros(300, int), **options)
    no_classes = metrics.retrieval(points, np.zeros((300, 3), bool), **options)
    empty_lists = metrics.retrieval(points, [[]] * 300, **options)
    for found in (one_group, no_classes, empty_lists):
        assert (found["recall@10"], found["mrr"], found["lone_queries"]) == (0, 0, 300)
        assert np.isnan([found["r_precision"], found["map@r"]]).all()


def test_results_do_not_depend_on_the_memory(monkeypatch):
    points, labels, rng = integers()
    groups = rng.integers(0, 3, 300)
    options = {"labels": labels, "groups": groups}, {"labels": [[label] for label in labels]}
    expected = [metrics.retrieval(points, metric="euclidean", **each) for each in options]
    monkeypatch.setattr(tiles, "memory_budget", lambda mesh: 1)
    assert [metrics.retrieval(points, metric="euclidean", **each) for each in options] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"labels": np.full((20, 3), 2)},
            r"labels: int64 \[20, 3\]; several classes per row need bool, or 0 and 1",
        ),
        ({"labels": [[1]] * 19}, "labels: has 19 entries for 20 rows of queries"),
        ({"labels": None}, "labels: holds object"),
        (
            {"groups": np.zeros(19, int)},
            r"groups: holds int64 of shape \[19\] for 20 rows of queries",
        ),
        (
            {"groups": np.zeros(20, int), "exclusion": "position"},
            "exclusion='position': needs one class per row",
        ),
    ],
)
def test_invalid_arguments(options, message):
    points, labels, _ = integers(20, 3)
    with pytest.raises(DataError, match=message):
        metrics.retrieval(points, **{"labels": labels} | options)


def test_classes_of_queries_and_gallery_must_fit():
    points, labels, _ = integers(20, 3)
    gallery = {"gallery": points + 1, "ks": (1,)}
    with pytest.raises(DataError, match=r"labels: are .* give both as strings or both as integers"):
        metrics.retrieval(points, [["a"]] * 20, gallery_labels=[[1]] * 20, **gallery)
    with pytest.raises(DataError, match=r"groups: are .* give both as strings"):
        metrics.retrieval(
            points,
            labels,
            gallery_labels=labels,
            groups=labels,
            gallery_groups=labels.astype(str),
            **gallery,
        )


@pytest.mark.parametrize("separate", [True, False])
def test_grades_of_a_relation(separate):
    """nDCG equals scikit-learn's; the other metrics take grades above 0 for relevant, and rows of
    NaN are left out."""
    points, _, rng = integers()
    names = np.array(list("abcdefghij"))
    grades = rng.integers(0, 4, (10, 10)) * (rng.random((10, 10)) < 0.4) / 2  # not symmetric
    grades[rng.random((10, 10)) < 0.1] = np.nan
    grades[:, 9] = 0.0
    grades[9] = 0.0  # queries of "j" have no relevant row

    def relation(some, others):
        return grades[np.ix_(*(np.searchsorted(names, each) for each in (some, others)))]

    labels = rng.integers(0, 10, 300)
    queries = slice(0, 100) if separate else slice(None)
    options = {"ks": KS, "metric": "euclidean", "per_query": True}
    if separate:
        options |= {"gallery": points, "gallery_labels": names[labels], "exclude_self": True}
    found = metrics.retrieval(points[queries], names[labels[queries]], relation=relation, **options)
    pairs = grades[np.ix_(labels[queries], labels)]
    omitted = np.eye(len(pairs), 300, dtype=bool) | np.isnan(pairs)
    distances = brute.distances(points[queries], points, "euclidean")
    relevant = (pairs > 0) & ~omitted
    ranks = np.argsort(np.argsort(distances, axis=1, kind="stable"), axis=1)  # without ties
    brute.check(found, brute.retrieval(distances, relevant, KS, omitted=omitted))
    for name, k in {"ndcg": None, **{f"ndcg@{k}": k for k in KS}}.items():
        each = np.array(
            [
                ndcg_score([gains[~left]], [-rank[~left]], k=k) if hits.any() else np.nan
                for gains, left, rank, hits in zip(pairs, omitted, ranks, relevant, strict=True)
            ]
        )
        assert np.isnan(each).sum() == found["lone_queries"] > 0
        np.testing.assert_allclose(found[f"{name}_per_query"], each, atol=1e-6)
        assert found[name] == pytest.approx(np.nanmean(each), abs=1e-6)
        count = np.count_nonzero(~np.isnan(each))
        assert found[f"{name}_stderr"] == pytest.approx(np.nanstd(each) / count**0.5, abs=1e-6)


def test_relations_that_do_not_fit():
    points, labels, _ = integers()
    for relation, message in (
        (lambda a, b: -np.ones((len(a), len(b))), "give .*, grades from 0 on, or NaN"),
        (lambda a, b: np.ones(len(b)), r"returns \[30\] for '.*' and the 30 labels"),
    ):
        with pytest.raises(DataError, match=message):
            metrics.retrieval(points, labels, relation=relation)
    with pytest.raises(DataError, match="relation: needs one label per row"):
        metrics.retrieval(points, [["a", "b"]] * 300, relation=lambda a, b: np.ones((1, 2)))
