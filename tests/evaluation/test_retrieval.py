"""Retrieval against brute force in float64: tile layouts, algorithms, ties, exclusions, devices,
names as labels."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from dml_jax.evaluation import metrics
from dml_jax.evaluation._engine import plan, query_metrics, tiles
from tests.evaluation import brute

KS = (1, 2, 10, 40)
FEW = (1, 1, 2, 3, 5, 8, 13, 40, 90)  # sizes of classes: 163 rows
MANY = (1, 2, 3, 7, 16, 31, 60, 90, 90)  # 300 rows
WIDTH = {"cosine": 16, "euclidean": 14}  # to which the search adds two columns


def sample(seed, sizes, width=16, spread=1.5, shuffled=True, copies=0):
    """Embeddings around class means; `copies` rows are replaced by exact copies of others."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    if shuffled:
        labels = rng.permutation(labels)
    means = rng.normal(size=(len(sizes), width))
    points = (means[labels] + spread * rng.normal(size=(len(labels), width))).astype(np.float32)
    points[rng.permutation(len(points))[:copies]] = points[rng.permutation(len(points))[:copies]]
    return points, labels


ALL = {"per_query": True}


def distances_with_ties(queries, gallery, metric):
    """Distances to the gallery, in which copies tie exactly, whatever the rounding of the
    product."""
    _, kept, group = np.unique(gallery, axis=0, return_index=True, return_inverse=True)
    return brute.distances(queries, gallery[kept], metric)[:, group.reshape(-1)]


def check_against_brute_force(points, labels, *, metric="cosine", position=False, ks=KS):
    distances = distances_with_ties(points, points, metric)
    omitted = None if position else np.eye(len(points), dtype=bool)
    expected = brute.retrieval(
        distances, labels[:, None] == labels, ks, omitted=omitted, position=position, labels=labels
    )
    exclusion = "position" if position else "index"
    brute.check(
        metrics.retrieval(points, labels, ks=ks, metric=metric, exclusion=exclusion, **ALL),
        expected,
    )


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("position", [True, False])
def test_uneven_classes_with_singletons_and_copies(metric, shuffled, position):
    points, labels = sample(0, FEW, WIDTH[metric], shuffled=shuffled, copies=30)
    check_against_brute_force(points, labels, metric=metric, position=position)


@pytest.fixture
def small_tiles(monkeypatch):
    """Many tiles for few rows."""
    monkeypatch.setattr(tiles, "choose_tile_size", lambda rows, mesh: 64)


@pytest.mark.parametrize("memory", [None, 40_000, 1])
@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_many_tiles_resident_streamed_and_cached(small_tiles, monkeypatch, metric, memory):
    if memory:
        monkeypatch.setattr(tiles, "memory_budget", lambda mesh: memory)
    points, labels = sample(5, MANY, WIDTH[metric], copies=40)
    check_against_brute_force(points, labels, metric=metric)


def test_grouped_classes(small_tiles):
    """They keep their order, so that one comparison resolves the ties of a tile."""
    check_against_brute_force(*sample(2, MANY, spread=4, shuffled=False, copies=200))


@pytest.mark.parametrize("position", [True, False])
@pytest.mark.parametrize("sort_above", [0, 20])
def test_sorting_agrees_with_counting(small_tiles, monkeypatch, sort_above, position):
    monkeypatch.setattr(plan, "SORT_ABOVE", sort_above)
    points, labels = sample(5, MANY, WIDTH["euclidean"], copies=30)
    check_against_brute_force(points, labels, position=position, metric="euclidean")


def test_integer_rows_tie_exactly(small_tiles):
    points, labels = sample(0, MANY, WIDTH["euclidean"], spread=0.5)
    check_against_brute_force(np.round(points), labels, metric="euclidean")


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("shuffled", [True, False])
def test_separate_gallery(small_tiles, metric, shuffled):
    points, labels = sample(4, MANY, WIDTH[metric], spread=3, shuffled=shuffled)
    queries, gallery = np.arange(len(points)) % 3 == 0, np.arange(len(points)) % 3 > 0
    queries &= labels != 3
    labels = np.where(gallery & (labels == 4), 99, labels)  # class 4 has no relevant row
    expected = brute.retrieval(
        brute.distances(points[queries], points[gallery], metric),
        labels[queries, None] == labels[gallery],
        KS,
    )
    assert expected[0]["lone_queries"] > 0
    options = {"gallery": points[gallery], "gallery_labels": labels[gallery], "metric": metric}
    brute.check(
        metrics.retrieval(points[queries], labels[queries], ks=KS, **options, **ALL), expected
    )


@pytest.mark.parametrize("sort_above", [5, 256])
def test_queries_among_the_gallery(small_tiles, monkeypatch, sort_above):
    """Each query leaves out its own row, wherever it is, by a group of its own; some queries are
    not in the gallery."""
    monkeypatch.setattr(plan, "SORT_ABOVE", sort_above)
    points, labels = sample(13, MANY, copies=40)
    rng = np.random.default_rng(0)
    chosen, order = rng.permutation(300)[:100], rng.permutation(300)[:200]
    queries, gallery, gallery_labels = points[chosen], points[order], labels[order]
    options = {
        "gallery": gallery,
        "gallery_labels": gallery_labels,
        "groups": chosen,
        "gallery_groups": order,
    }
    result = metrics.retrieval(queries, labels[chosen], ks=KS, **options, **ALL)
    distances, relevant = (
        distances_with_ties(queries, gallery, "cosine"),
        labels[chosen, None] == gallery_labels,
    )
    omitted = chosen[:, None] == order
    brute.check(result, brute.retrieval(distances, relevant & ~omitted, KS, omitted=omitted))


def test_the_same_gallery_needs_exclude_self():
    points, labels = sample(14, FEW)
    own = metrics.retrieval(points, labels, ks=(1,))
    explicit = {"ks": (1,), "gallery": points.copy(), "gallery_labels": labels}
    assert metrics.retrieval(points, labels, exclude_self=True, **explicit) == pytest.approx(
        own, rel=1e-12
    )
    assert metrics.retrieval(points, labels, exclude_self=False, **explicit)["recall@1"] == 1


@pytest.mark.parametrize("count", [1, 3])
def test_results_do_not_depend_on_the_devices(small_tiles, monkeypatch, count):
    monkeypatch.setattr(plan, "SORT_ABOVE", 20)
    points, labels = sample(6, MANY, copies=40)
    assert tiles.local_mesh().size == 8
    expected = metrics.retrieval(points, labels, per_query=True)
    monkeypatch.setattr(
        tiles, "local_mesh", lambda: Mesh(np.array(jax.devices()[:count]), ("data",))
    )
    for key, value in metrics.retrieval(points, labels, per_query=True).items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-12, err_msg=key)


def test_positive_and_negative_zero_tie():
    scores = np.array([0.0, -0.0, 1.0, -1.0, 0.0, -0.0], np.float32)
    np.testing.assert_array_equal(query_metrics.nearest_first(scores, -1), [2, 0, 1, 4, 5, 3])
    np.testing.assert_array_equal(
        query_metrics.nearest_first(scores.astype(np.float64), 1), [2, 0, 4, 5, 3]
    )


def test_float64(x64):
    points, labels = sample(7, [5] * 20)
    check_against_brute_force(
        points.astype(np.float64) + 1e-9 * np.random.default_rng(0).normal(size=points.shape),
        labels,
    )


def test_a_shift_does_not_change_euclidean_ranks():
    """Without centring, squared lengths far above the distances would hide them in float32."""
    points, labels = sample(8, FEW, WIDTH["euclidean"])
    plain = metrics.retrieval(points, labels, metric="euclidean", per_query=True)
    shifted = metrics.retrieval(
        points.astype(np.float64) + 2.0**12, labels, metric="euclidean", per_query=True
    )
    assert np.mean(plain["rank"] == shifted["rank"]) > 0.99
    whole = (points * 64).round()  # exact, also as subnormal numbers
    plain = metrics.retrieval(whole, labels, metric="euclidean", per_query=True)
    large = np.ldexp(whole.astype(np.float64), 1000)
    for scaled in (np.ldexp(whole, 80), np.ldexp(whole, -140), large, np.ldexp(large, -2050)):
        found = metrics.retrieval(scaled, labels, metric="euclidean", per_query=True)
        np.testing.assert_array_equal(plain["rank"], found["rank"])


@pytest.mark.parametrize("position", [True, False])
@pytest.mark.parametrize("sort_above", [5, 256])
def test_close_rows_are_ranked_in_float64(monkeypatch, sort_above, position):
    monkeypatch.setattr(plan, "SORT_ABOVE", sort_above)
    for dtype in (np.float32, np.float64):
        points, labels = brute.far_groups(dtype)
        check_against_brute_force(points, labels, metric="euclidean", position=position)
    check_against_brute_force(*brute.narrow_cone(), position=position)


def test_long_and_short_rows_by_cosine():
    points, labels = sample(9, FEW)
    plain = metrics.retrieval(points, labels, per_query=True)
    for factor in (2.0**80, 2.0**-80):
        scaled = metrics.retrieval(points * np.float32(factor), labels, per_query=True)
        np.testing.assert_array_equal(plain["rank"], scaled["rank"])
    beyond_float32 = metrics.retrieval(points.astype(np.float64) * 1e300, labels, per_query=True)
    np.testing.assert_array_equal(plain["rank"], beyond_float32["rank"])


def test_zero_rows_and_equal_rows():
    check_against_brute_force(np.zeros((163, 16), np.float32), sample(0, FEW)[1])


def test_standard_errors():
    points, labels = sample(11, FEW, spread=4)
    result = metrics.retrieval(points, labels, per_query=True)
    hit = (result["rank"] > 0) & (result["rank"] <= 4)
    assert result["recall@4_stderr"] == pytest.approx(hit.std() / np.sqrt(len(hit)))
    kept = result["map@r_per_query"][~np.isnan(result["map@r_per_query"])]
    assert result["map@r_stderr"] == pytest.approx(kept.std() / np.sqrt(len(kept)))


def test_separate_gallery_with_names_as_labels():
    """Strings give the metrics of integers, from arrays, lists and pandas' arrays of objects, in
    both directions."""
    points, labels = sample(1, [3, 4, 5, 20, 60])
    queries, gallery = slice(0, 30), slice(30, None)
    names = np.array(["ant", "bee", "cat", "dog", "eel"])[labels]
    options = {"ks": KS, "gallery": points[gallery]}
    found = metrics.retrieval(
        points[queries], names[queries].tolist(), gallery_labels=names[gallery], **options
    )
    numbers = metrics.retrieval(
        points[queries], labels[queries], gallery_labels=labels[gallery], **options
    )
    assert found == numbers
    objects = metrics.retrieval(
        points[queries], names[queries].astype(object), gallery_labels=names[gallery], **options
    )
    assert objects == numbers
