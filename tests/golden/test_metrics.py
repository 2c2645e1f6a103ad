"""Retrieval, clustering and geometry against every reference file."""

from functools import partial

import numpy as np
import pytest

from dml_jax.evaluation import kmeans, metrics, neighbors
from tests.golden import fixtures

NAMES = fixtures.names("metrics")
METRIC = {"euclid": "euclidean", "cosine": "cosine"}
# By kind: an array that only its files have.
KINDS = {
    "clustering": "assignments", "geometry": "singleton_keep", "stderr": "nmi_se_delta",
    "query_gallery": "xq", "self": "nn_index_euclid",
}  # fmt: skip


def kind(name):
    arrays, _ = fixtures.load("metrics", name)
    return next((kind for kind, key in KINDS.items() if key in arrays), "unknown")


def of_kind(wanted):
    return pytest.mark.parametrize("name", [name for name in NAMES if kind(name) == wanted])


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_of_a_known_kind(name):
    assert kind(name) in KINDS


def check_metrics(arrays, meta, block, result, *, per_query=True, lattice=False):
    """Compares one block of metrics. Cosines of lattice rows tie only up to rounding, so the tolerance is wider."""
    queries = len(result["rank"])
    loose = lattice and "cosine" in block
    tolerance = max(5e-3, 4 / queries) if loose else meta["tolerance"]["metrics"]
    recall = np.array([result[f"recall@{k}"] for k in arrays[f"{block}_recall_k"].tolist()])
    assert result["lone_queries"] == arrays[f"{block}_n_lone"]
    without = recall * queries / (queries - result["lone_queries"])
    names = {"r_precision": "r_precision", "map_at_r": "map@r"}
    found = {theirs: result[ours] for theirs, ours in names.items()}
    for key, value in {"recall": recall, "recall_excl_lone": without, **found}.items():
        np.testing.assert_allclose(value, arrays[f"{block}_{key}"], atol=tolerance, err_msg=key)
    if loose:
        return
    ranks = arrays[f"{block}_rank_first_positive"]
    swapped = np.mean(result["rank"] != np.maximum(ranks, 0))
    assert swapped <= (0 if tolerance <= 1e-6 else tolerance)
    if per_query and tolerance <= 1e-6:
        for theirs, ours in names.items():
            expected = arrays[f"{block}_{theirs}_per_query"]
            np.testing.assert_allclose(result[f"{ours}_per_query"], expected, atol=1e-9)


def check_library_metrics(arrays, meta, key, result):
    """Compares with pytorch-metric-learning, whose metrics exclude queries without a relevant row."""
    recall = result["recall@1"] * len(result["rank"])
    recall /= len(result["rank"]) - result["lone_queries"]
    measured = [recall, result["r_precision"], result["map@r"]]
    np.testing.assert_allclose(measured, arrays[key], atol=meta["tolerance"]["metrics"])


def check_neighbors(found, arrays, meta, block):
    """Compares distances, and indices wherever the distance differs clearly from those before and after it."""
    index, distance = arrays[f"nn_index_{block}"], arrays[f"nn_dist_{block}"]
    atol = meta["tolerance"].get("distances", 1e-5)
    np.testing.assert_allclose(found[0], distance, rtol=1e-6, atol=atol)
    apart = np.diff(distance, axis=1) > 1e-5
    clear = np.pad(apart, ((0, 0), (1, 0)), constant_values=True) & np.pad(apart, ((0, 0), (0, 1)))
    np.testing.assert_array_equal(found[1][clear], index[clear])
    if block == "euclid" and "lattice" in meta["case"]:
        np.testing.assert_array_equal(found[1], index)


def retrieval(arrays, queries, labels, block, metric, **options):
    ks = tuple(arrays[f"{block}_recall_k"].tolist())
    return metrics.retrieval(queries, labels, ks=ks, metric=metric, per_query=True, **options)


@pytest.mark.parametrize("block", METRIC)
@of_kind("self")
def test_self_retrieval(name, block):
    arrays, meta = fixtures.load("metrics", name)
    x, metric = arrays["x"], METRIC[block]
    if f"{block}_recall" not in arrays and f"nn_index_{block}" not in arrays:
        pytest.skip("the file covers one metric only")
    if f"{block}_recall" in arrays:
        result = retrieval(arrays, x, arrays["y"], block, metric)
        check_metrics(arrays, meta, block, result, lattice="lattice" in meta["case"])
        if block == "euclid":
            check_library_metrics(arrays, meta, "pml_p1_rp_map", result)
    if f"nn_index_{block}" in arrays:
        k = arrays[f"nn_index_{block}"].shape[1]
        found = neighbors.search(x, x, k, metric=metric, exclude_self=True)
        check_neighbors(found, arrays, meta, block)


@pytest.mark.parametrize("block", METRIC)
@of_kind("query_gallery")
def test_separate_gallery(name, block):
    arrays, meta = fixtures.load("metrics", name)
    queries, labels, gallery, of_gallery = (arrays[key] for key in ("xq", "yq", "xg", "yg"))
    metric, close = (METRIC[block], partial(np.testing.assert_allclose, atol=meta["tolerance"]["metrics"]))
    options = {"gallery": gallery, "gallery_labels": of_gallery}
    result = retrieval(arrays, queries, labels, block, metric, **options)
    check_metrics(arrays, meta, block, result)
    k = arrays[f"nn_index_{block}"].shape[1]
    check_neighbors(neighbors.search(queries, gallery, k, metric=metric), arrays, meta, block)
    omitted = metrics.retrieval(queries, labels, ks=(1,), metric=metric, lone_queries="omit", **options)
    assert omitted["lone_queries"] == result["lone_queries"]
    if block == "euclid":
        check_library_metrics(arrays, meta, "pml_p1_rp_map", result)
        measured = [omitted[key] for key in ("recall@1", "r_precision", "map@r")]
        close(measured, arrays["pml_p1_rp_map"])
    else:
        recall = [result[f"recall@{k}"] for k in arrays["cosine_recall_k"].tolist()]
        close(recall, arrays["inshop_recall"])

    keep = arrays["gallery_keep_missing"].astype(bool)  # without some classes
    options = {"gallery": gallery[keep], "gallery_labels": of_gallery[keep]}
    result = retrieval(arrays, queries, labels, "missing_cosine", metric, **options)
    if block == "cosine":
        check_metrics(arrays, meta, "missing_cosine", result, per_query=False)
    else:
        check_library_metrics(arrays, meta, "missing_pml_p1_rp_map", result)


@of_kind("query_gallery")
def test_gallery_that_begins_with_the_queries(name):
    arrays, meta = fixtures.load("metrics", name)
    result = retrieval(
        arrays,
        arrays["xq"],
        arrays["yq"],
        "overlap_euclid",
        "euclidean",
        gallery=np.concatenate([arrays["xq"], arrays["xg"]]),
        gallery_labels=np.concatenate([arrays["yq"], arrays["yg"]]),
        exclude_self=True,
    )
    check_metrics(arrays, meta, "overlap_euclid", result, per_query=False)
    check_library_metrics(arrays, meta, "overlap_pml_p1_rp_map", result)


@of_kind("clustering")
def test_scores_of_clusterings(name):
    arrays, meta = fixtures.load("metrics", name)
    close = partial(np.testing.assert_allclose, rtol=0, atol=meta["tolerance"]["scores"])
    for i, given in enumerate(arrays["assignments"]):
        for average in ("arithmetic", "geometric"):
            found = metrics.nmi(arrays["y"], given, average=average)
            close(found, arrays[f"nmi_{average}"][i])
        close(metrics.ami(arrays["y"], given), arrays["ami_arithmetic"][i])
        close(metrics.f1_pairs(arrays["y"], given), arrays["f1_pairs"][i])


@of_kind("clustering")
def test_lloyd_and_restarts(name):
    arrays, meta = fixtures.load("metrics", name)
    x, k, tolerance = arrays["x"], meta["n_clusters"], meta["tolerance"]
    given, five = (kmeans.fit(x, k, init=arrays["lloyd_init"], max_iterations=most) for most in (300, 5))
    np.testing.assert_array_equal(given.assignments, arrays["lloyd_labels"])
    np.testing.assert_allclose(given.centers, arrays["lloyd_centroids"], atol=1e-5)
    relative = tolerance["lloyd_inertia_rel"]
    assert given.inertia == pytest.approx(arrays["lloyd_inertia"], rel=relative)
    assert given.iterations == arrays["lloyd_n_iter"]
    assert five.inertia == pytest.approx(arrays["lloyd_inertia_after_5"], rel=relative)
    best = kmeans.fit(x, k, restarts=10).inertia
    assert best <= (1 + tolerance["kmeans_inertia_rel"]) * arrays["kmeans_inertia_target"]


@of_kind("geometry")
def test_density_and_spectrum(name):
    arrays, meta = fixtures.load("metrics", name)
    x, labels, keep = arrays["x"], arrays["y"], arrays["singleton_keep"].astype(bool)
    unit, tolerance = x / np.linalg.norm(x, axis=1, keepdims=True), meta["tolerance"]["all"]
    for variant, points, classes in (
        ("raw", x, labels),
        ("unit", unit, labels),
        ("singleton", unit[keep], labels[keep]),
    ):
        ratio = arrays[f"{variant}_classmacro_cosine_intra_inter_ratio"][2]
        assert metrics.density(points, classes) == pytest.approx(ratio, abs=tolerance)
        decay = arrays[f"{variant}_rho_kl_u_s"]
        assert metrics.spectral_decay(points) == pytest.approx(decay, abs=tolerance)
        found, expected = metrics.singular_values(points), arrays[f"{variant}_singular_values"]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@of_kind("stderr")
def test_standard_errors(name):
    arrays, meta = fixtures.load("metrics", name)
    labels, clusters, tolerance = arrays["y"], arrays["cluster"], meta["tolerance"]
    assert metrics.nmi(labels, clusters) == pytest.approx(arrays["nmi"], abs=1e-12)
    delta = metrics.nmi_stderr(labels, clusters)
    assert delta == pytest.approx(arrays["nmi_se_delta"], abs=tolerance["nmi_delta"])
    assert delta == pytest.approx(arrays["nmi_se_bootstrap"], rel=tolerance["nmi_bootstrap_rel"])
    # Two gallery rows of different classes; every query coincides with one of them.
    hits, gallery = (arrays["hits"].astype(int), {"gallery": np.eye(2), "gallery_labels": np.arange(2)})
    result = metrics.retrieval(np.eye(2)[hits], np.ones_like(hits), ks=(1,), **gallery)
    assert result["recall@1"] == pytest.approx(arrays["recall"], abs=1e-12)
    expected = arrays["recall_se_binomial"]
    assert result["recall@1_stderr"] == pytest.approx(expected, abs=tolerance["recall_se"])
