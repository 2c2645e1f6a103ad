"""Retrieval against brute force in float64: tile layouts, algorithms, ties, exclusions, devices, labels."""

from functools import partial

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh

from dml_jax.evaluation import metrics, validation
from dml_jax.evaluation._engine import plan, query_metrics, tiles
from tests.evaluation import brute
from tests.evaluation.brute import sample

KS = (1, 2, 10, 40)
COUNT = 163  # rows of `sample`
EUCLIDEAN = {"metric": "euclidean", "width": 14}  # to which the search adds two columns
every_query = partial(metrics.retrieval, ks=KS, per_query=True)


@pytest.fixture
def small_tiles(monkeypatch):
    """Many tiles for few rows."""
    monkeypatch.setattr(tiles, "choose_tile_size", lambda rows, mesh: 64)


def distances_with_ties(queries, gallery, metric):
    """Distances to the gallery, in which copies tie exactly, whatever the rounding of the product."""
    _, kept, group = np.unique(gallery, axis=0, return_index=True, return_inverse=True)
    return brute.distances(queries, gallery[kept], metric)[:, group.reshape(-1)]


def check_against_brute_force(points, labels, *, metric="cosine", position=False):
    distances = distances_with_ties(points, points, metric)
    omitted = None if position else np.eye(len(points), dtype=bool)
    same = labels[:, None] == labels
    expected = brute.retrieval(distances, same, KS, omitted=omitted, position=position, labels=labels)
    exclusion = "position" if position else "index"
    brute.check(every_query(points, labels, metric=metric, exclusion=exclusion), expected)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (None, {"copies": 30}),
        (None, {"copies": 30, "shuffled": False, "position": True}),
        (None, {"copies": 30, "position": True, **EUCLIDEAN}),
        (None, {"copies": 30, "shuffled": False, **EUCLIDEAN}),
        # Grouped classes keep their order, so that one comparison resolves the ties of a tile.
        (64, {"copies": 120, "spread": 4, "shuffled": False}),
        (64, {"copies": 30, **EUCLIDEAN}),
        (64, {"copies": 30, "memory": 40_000}),  # panels of two tiles, two products cached
        (64, {"copies": 30, "memory": 40_000, **EUCLIDEAN}),
        (64, {"copies": 30, "memory": 1}),
        (64, {"copies": 30, "sort_above": 0, **EUCLIDEAN}),
        (64, {"copies": 30, "sort_above": 20, "position": True, **EUCLIDEAN}),
        (64, {"spread": 0.5, "whole": True, **EUCLIDEAN}),  # ties of rows that are not equal
        (None, {"zero": True}),
    ],
)
def test_against_brute_force(monkeypatch, size, options):
    """Uneven classes with singletons, and rows that are exact copies of others."""
    if size:
        monkeypatch.setattr(tiles, "choose_tile_size", lambda rows, mesh: size)
    if "memory" in options:
        monkeypatch.setattr(tiles, "memory_budget", lambda mesh: options["memory"])
    monkeypatch.setattr(plan, "SORT_ABOVE", options.get("sort_above", plan.SORT_ABOVE))
    drawn = {"width", "spread", "shuffled", "copies"}
    points, labels = sample(25, **{k: v for k, v in options.items() if k in drawn})
    points = np.round(points) if "whole" in options else points * ("zero" not in options)
    chosen = {k: v for k, v in options.items() if k in ("metric", "position")}
    check_against_brute_force(points, labels, **chosen)


@pytest.mark.parametrize("position", [True, False])
@pytest.mark.parametrize("sort_above", [5, 256])
def test_close_rows_are_ranked_in_float64(monkeypatch, sort_above, position):
    monkeypatch.setattr(plan, "SORT_ABOVE", sort_above)
    for dtype in (np.float32, np.float64):
        points, labels = brute.far_groups(dtype)
        check_against_brute_force(points, labels, metric="euclidean", position=position)
    check_against_brute_force(*brute.narrow_cone(), position=position)


def test_float64(x64):
    points, labels = sample(7)
    noise = 1e-9 * np.random.default_rng(0).normal(size=points.shape)
    check_against_brute_force(points.astype(np.float64) + noise, labels)


@pytest.mark.parametrize(("metric", "shuffled"), [("cosine", True), ("euclidean", False)])
def test_separate_gallery(small_tiles, metric, shuffled):
    points, labels = sample(4, width=14, spread=3, shuffled=shuffled)
    queries, gallery = np.arange(COUNT) % 3 == 0, np.arange(COUNT) % 3 > 0
    queries &= labels != 3
    labels = np.where(gallery & (labels == 4), 99, labels)  # class 4 has no relevant row
    expected = brute.retrieval(
        brute.distances(points[queries], points[gallery], metric), labels[queries, None] == labels[gallery], KS
    )
    assert expected[0]["lone_queries"] > 0
    options = {"gallery": points[gallery], "gallery_labels": labels[gallery], "metric": metric}
    brute.check(every_query(points[queries], labels[queries], **options), expected)


@pytest.mark.parametrize("sort_above", [5, 256])
def test_queries_among_the_gallery(small_tiles, monkeypatch, sort_above):
    """Each query leaves out its own row, wherever it is, by a group of its own; some queries are not in the gallery."""
    monkeypatch.setattr(plan, "SORT_ABOVE", sort_above)
    points, labels = sample(13, copies=30)
    rng = np.random.default_rng(0)
    chosen, order = rng.permutation(COUNT)[:60], rng.permutation(COUNT)[:110]
    options = {"gallery": points[order], "gallery_labels": labels[order]}
    groups = {"groups": chosen, "gallery_groups": order}
    distances = distances_with_ties(points[chosen], points[order], "cosine")
    omitted = chosen[:, None] == order
    relevant = (labels[chosen, None] == labels[order]) & ~omitted
    found = every_query(points[chosen], labels[chosen], **options, **groups)
    brute.check(found, brute.retrieval(distances, relevant, KS, omitted=omitted))


def test_the_same_gallery_needs_exclude_self():
    points, labels = sample(14)
    own = metrics.retrieval(points, labels, ks=(1,))
    explicit = {"ks": (1,), "gallery": points.copy(), "gallery_labels": labels}
    found = metrics.retrieval(points, labels, exclude_self=True, **explicit)
    assert found == pytest.approx(own, rel=1e-12)
    assert metrics.retrieval(points, labels, exclude_self=False, **explicit)["recall@1"] == 1


@pytest.mark.parametrize("count", [1, 3])
def test_results_do_not_depend_on_the_devices(small_tiles, monkeypatch, count):
    monkeypatch.setattr(plan, "SORT_ABOVE", 20)
    points, labels = sample(6, copies=30)
    assert tiles.local_mesh().size == 8
    expected, mesh = every_query(points, labels), Mesh(np.array(jax.devices()[:count]), ("data",))
    monkeypatch.setattr(tiles, "local_mesh", lambda: mesh)
    for key, value in every_query(points, labels).items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-12, err_msg=key)


def test_positive_and_negative_zero_tie():
    scores = np.array([0.0, -0.0, 1.0, -1.0, 0.0, -0.0], np.float32)
    np.testing.assert_array_equal(query_metrics.nearest_first(scores, -1), [2, 0, 1, 4, 5, 3])
    found = query_metrics.nearest_first(scores.astype(np.float64), 1)
    np.testing.assert_array_equal(found, [2, 0, 4, 5, 3])
    keys = np.asarray(jax.jit(tiles.sortable_keys)(scores))
    np.testing.assert_array_equal(keys[:, None] > keys, scores[:, None] > scores)
    np.testing.assert_array_equal(tiles.scores_of_keys(keys), scores)


def test_neither_shift_nor_scale_changes_ranks():
    """Without centring, squared lengths far above the distances would hide them in float32; squares
    of long rows leave the range of their type."""
    points, labels = sample(8)
    euclidean = partial(every_query, labels=labels, metric="euclidean")
    shifted = euclidean(points.astype(np.float64) + 2.0**12)["rank"]
    assert np.mean(euclidean(points)["rank"] == shifted) > 0.99
    whole = (points * 64).round()  # exact, also as subnormal numbers
    large = np.ldexp(whole.astype(np.float64), 1000)
    plain = euclidean(whole)["rank"]
    for scaled in (np.ldexp(whole, 80), np.ldexp(whole, -140), large, np.ldexp(large, -2050)):
        np.testing.assert_array_equal(euclidean(scaled)["rank"], plain)
    plain = every_query(points, labels)["rank"]
    for scaled in (np.ldexp(points, 80), np.ldexp(points, -80), points.astype(np.float64) * 1e300):
        np.testing.assert_array_equal(every_query(scaled, labels)["rank"], plain)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, bool, ml_dtypes.bfloat16])
def test_all_real_dtypes_are_accepted(dtype):
    points, labels = sample(3)
    points = np.round(3 * points).astype(dtype)
    options = {"ks": (1,), "metric": "euclidean"}
    expected = metrics.retrieval(points.astype(np.float32), labels, **options)
    assert metrics.retrieval(points, labels, **options) == expected


def test_standard_errors():
    points, labels = sample(11, spread=4)
    result = every_query(points, labels)
    hit = (result["rank"] > 0) & (result["rank"] <= 2)
    assert result["recall@2_stderr"] == pytest.approx(hit.std() / np.sqrt(len(hit)))
    kept = result["map@r_per_query"][~np.isnan(result["map@r_per_query"])]
    assert result["map@r_stderr"] == pytest.approx(kept.std() / np.sqrt(len(kept)))


def test_names_and_any_integers_as_labels():
    """Strings, from arrays, lists and pandas' arrays of objects, and integers of any type and size
    give the metrics of small ones, also of a separate gallery."""
    points, labels = sample(1)
    names = np.array(list("abcdefghi"))[labels]
    expected = metrics.retrieval(points, labels)
    for given in (names, labels - 7, labels * 2**40, labels.astype(np.uint64) + 2**63):
        assert metrics.retrieval(points, given) == expected
    options = {"ks": KS, "gallery": points[30:]}
    expected = metrics.retrieval(points[:30], labels[:30], gallery_labels=labels[30:], **options)
    for given in (names[:30].tolist(), names[:30].astype(object)):
        found = metrics.retrieval(points[:30], given, gallery_labels=names[30:], **options)
        assert found == expected


def test_a_file_is_read_in_blocks(tmp_path, monkeypatch):
    points, labels = sample(2)
    expected = [metrics.retrieval(points, labels, metric=m) for m in ("cosine", "euclidean")]
    np.save(tmp_path / "x.npy", points)
    monkeypatch.setattr(validation, "BLOCK_ELEMENTS", 64)
    monkeypatch.setattr(tiles, "memory_budget", lambda mesh: 1)
    loaded = validation.load(tmp_path / "x.npy")
    assert isinstance(loaded, np.memmap)
    found = [metrics.retrieval(loaded, labels, metric=m) for m in ("cosine", "euclidean")]
    assert found == expected
