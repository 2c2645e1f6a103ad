"""Retrieval, clustering and geometry against every reference file."""

import numpy as np
import pytest

from dml_jax.evaluation import kmeans, metrics, neighbors
from tests.golden import fixtures

NAMES = fixtures.names("metrics")
KINDS = ("self", "query_gallery", "clustering", "geometry", "stderr")
METRIC = {"euclid": "euclidean", "cosine": "cosine"}


def kind(name):
    arrays, _ = fixtures.load("metrics", name)
    if "assignments" in arrays:
        return "clustering"
    if "singleton_keep" in arrays:
        return "geometry"
    if "nmi_se_delta" in arrays:
        return "stderr"
    if "xq" in arrays:
        return "query_gallery"
    return "self" if "nn_index_euclid" in arrays else "unknown"


def of_kind(wanted):
    return [name for name in NAMES if kind(name) == wanted]


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_of_a_known_kind(name):
    assert kind(name) in KINDS


def check_metrics(arrays, meta, block, result, *, per_query=True, lattice=False):
    """Compares one block of metrics. Cosines of lattice rows tie only up to rounding, so the
    tolerance is wider."""
    loose = lattice and "cosine" in block
    tolerance = max(5e-3, 4 / len(result["rank"])) if loose else meta["tolerance"]["metrics"]
    ks = arrays[f"{block}_recall_k"].tolist()
    recall = np.array([result[f"recall@{k}"] for k in ks])
    np.testing.assert_allclose(recall, arrays[f"{block}_recall"], atol=tolerance)
    assert result["lone_queries"] == arrays[f"{block}_n_lone"]
    has = len(result["rank"]) - result["lone_queries"]
    np.testing.assert_allclose(
        recall * len(result["rank"]) / has, arrays[f"{block}_recall_excl_lone"], atol=tolerance
    )
    assert result["r_precision"] == pytest.approx(arrays[f"{block}_r_precision"], abs=tolerance)
    assert result["map@r"] == pytest.approx(arrays[f"{block}_map_at_r"], abs=tolerance)
    if loose:
        return
    ranks = arrays[f"{block}_rank_first_positive"]
    swapped = np.mean(result["rank"] != np.maximum(ranks, 0))
    assert swapped <= (0 if tolerance <= 1e-6 else tolerance)
    if per_query and tolerance <= 1e-6:
        for key, reference in (("r_precision", "r_precision"), ("map@r", "map_at_r")):
            np.testing.assert_allclose(
                result[f"{key}_per_query"], arrays[f"{block}_{reference}_per_query"], atol=1e-9
            )


def check_library_metrics(arrays, key, result, tolerance):
    """Compares with pytorch-metric-learning, whose metrics exclude queries without a relevant
    row."""
    has = len(result["rank"]) - result["lone_queries"]
    measured = [
        result["recall@1"] * len(result["rank"]) / has,
        result["r_precision"],
        result["map@r"],
    ]
    np.testing.assert_allclose(measured, arrays[key], atol=tolerance)


@pytest.mark.parametrize("block", ["euclid", "cosine"])
@pytest.mark.parametrize("name", of_kind("self"))
def test_self_retrieval(name, block):
    arrays, meta = fixtures.load("metrics", name)
    if f"{block}_recall" not in arrays:
        pytest.skip("the file covers one metric only")
    result = metrics.retrieval(
        arrays["x"],
        arrays["y"],
        ks=tuple(arrays[f"{block}_recall_k"].tolist()),
        metric=METRIC[block],
        per_query=True,
    )
    check_metrics(arrays, meta, block, result, lattice="lattice" in meta["case"])
    if block == "euclid":
        check_library_metrics(arrays, "pml_p1_rp_map", result, meta["tolerance"]["metrics"])


@pytest.mark.parametrize("block", ["euclid", "cosine"])
@pytest.mark.parametrize("name", of_kind("self"))
def test_neighbours(name, block):
    arrays, meta = fixtures.load("metrics", name)
    if f"nn_index_{block}" not in arrays:
        pytest.skip("the file covers one metric only")
    index, distance = arrays[f"nn_index_{block}"], arrays[f"nn_dist_{block}"]
    x = arrays["x"]
    distances, indices = neighbors.search(
        x, x, index.shape[1], metric=METRIC[block], exclude_self=True
    )
    check_neighbors(distances, indices, index, distance, meta)
    if block == "euclid" and "lattice" in meta["case"]:
        np.testing.assert_array_equal(indices, index)


def check_neighbors(distances, indices, index, distance, meta):
    """Compares distances, and indices wherever the distance differs clearly from those before and
    after it."""
    np.testing.assert_allclose(
        distances, distance, rtol=1e-6, atol=meta["tolerance"].get("distances", 1e-5)
    )
    apart = np.diff(distance, axis=1) > 1e-5
    clear = np.pad(apart, ((0, 0), (1, 0)), constant_values=True) & np.pad(apart, ((0, 0), (0, 1)))
    np.testing.assert_array_equal(indices[clear], index[clear])


@pytest.mark.parametrize("name", of_kind("query_gallery"))
def test_separate_gallery(name):
    arrays, meta = fixtures.load("metrics", name)
    queries, labels, gallery, gallery_labels = (arrays[key] for key in ("xq", "yq", "xg", "yg"))
    for block, metric in METRIC.items():
        result = metrics.retrieval(
            queries,
            labels,
            ks=tuple(arrays[f"{block}_recall_k"].tolist()),
            metric=metric,
            gallery=gallery,
            gallery_labels=gallery_labels,
            per_query=True,
        )
        check_metrics(arrays, meta, block, result)
        index, distance = arrays[f"nn_index_{block}"], arrays[f"nn_dist_{block}"]
        distances, indices = neighbors.search(queries, gallery, index.shape[1], metric=metric)
        check_neighbors(distances, indices, index, distance, meta)
        if block == "euclid":
            check_library_metrics(arrays, "pml_p1_rp_map", result, meta["tolerance"]["metrics"])
        else:
            recall = [result[f"recall@{k}"] for k in arrays["cosine_recall_k"].tolist()]
            np.testing.assert_allclose(
                recall, arrays["inshop_recall"], atol=meta["tolerance"]["metrics"]
            )
        omitted = metrics.retrieval(
            queries,
            labels,
            ks=(1,),
            metric=metric,
            gallery=gallery,
            gallery_labels=gallery_labels,
            lone_queries="omit",
        )
        assert omitted["lone_queries"] == result["lone_queries"]
        recall = [omitted["recall@1"], omitted["r_precision"], omitted["map@r"]]
        if block == "euclid":
            np.testing.assert_allclose(
                recall, arrays["pml_p1_rp_map"], atol=meta["tolerance"]["metrics"]
            )


@pytest.mark.parametrize("name", of_kind("query_gallery"))
def test_gallery_without_some_classes(name):
    arrays, meta = fixtures.load("metrics", name)
    keep = arrays["gallery_keep_missing"].astype(bool)
    for metric in METRIC.values():
        result = metrics.retrieval(
            arrays["xq"],
            arrays["yq"],
            ks=tuple(arrays["missing_cosine_recall_k"].tolist()),
            metric=metric,
            gallery=arrays["xg"][keep],
            gallery_labels=arrays["yg"][keep],
            per_query=True,
        )
        if metric == "cosine":
            check_metrics(arrays, meta, "missing_cosine", result, per_query=False)
        else:
            check_library_metrics(
                arrays, "missing_pml_p1_rp_map", result, meta["tolerance"]["metrics"]
            )


@pytest.mark.parametrize("name", of_kind("query_gallery"))
def test_gallery_that_begins_with_the_queries(name):
    arrays, meta = fixtures.load("metrics", name)
    result = metrics.retrieval(
        arrays["xq"],
        arrays["yq"],
        ks=tuple(arrays["overlap_euclid_recall_k"].tolist()),
        metric="euclidean",
        gallery=np.concatenate([arrays["xq"], arrays["xg"]]),
        gallery_labels=np.concatenate([arrays["yq"], arrays["yg"]]),
        exclude_self=True,
        per_query=True,
    )
    check_metrics(arrays, meta, "overlap_euclid", result, per_query=False)
    check_library_metrics(arrays, "overlap_pml_p1_rp_map", result, meta["tolerance"]["metrics"])


@pytest.mark.parametrize("name", of_kind("clustering"))
def test_scores_of_clusterings(name):
    arrays, meta = fixtures.load("metrics", name)
    tolerance, labels = meta["tolerance"]["scores"], arrays["y"]
    for i, given in enumerate(arrays["assignments"]):
        for average in ("arithmetic", "geometric"):
            expected = arrays[f"nmi_{average}"][i]
            assert metrics.nmi(labels, given, average=average) == pytest.approx(
                expected, abs=tolerance
            )
        assert metrics.ami(labels, given) == pytest.approx(
            arrays["ami_arithmetic"][i], abs=tolerance
        )
        expected = arrays["f1_pairs"][i]
        assert metrics.f1_pairs(labels, given) == pytest.approx(
            expected, abs=tolerance, nan_ok=True
        )


@pytest.mark.parametrize("name", of_kind("clustering"))
def test_lloyd_and_restarts(name):
    arrays, meta = fixtures.load("metrics", name)
    x, k = arrays["x"], meta["n_clusters"]
    given = kmeans.fit(x, k, init=arrays["lloyd_init"])
    np.testing.assert_array_equal(given.assignments, arrays["lloyd_labels"])
    np.testing.assert_allclose(given.centers, arrays["lloyd_centroids"], atol=1e-5)
    relative = meta["tolerance"]["lloyd_inertia_rel"]
    assert given.inertia == pytest.approx(arrays["lloyd_inertia"], rel=relative)
    assert given.iterations == arrays["lloyd_n_iter"]
    five = kmeans.fit(x, k, init=arrays["lloyd_init"], max_iterations=5)
    assert five.inertia == pytest.approx(arrays["lloyd_inertia_after_5"], rel=relative)
    best = kmeans.fit(x, k, restarts=10)
    assert (
        best.inertia
        <= (1 + meta["tolerance"]["kmeans_inertia_rel"]) * arrays["kmeans_inertia_target"]
    )


@pytest.mark.parametrize("name", of_kind("geometry"))
def test_density_and_spectrum(name):
    arrays, meta = fixtures.load("metrics", name)
    x, labels, keep = arrays["x"], arrays["y"], arrays["singleton_keep"].astype(bool)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    tolerance = meta["tolerance"]["all"]
    for variant, points, classes in (
        ("raw", x, labels),
        ("unit", unit, labels),
        ("singleton", unit[keep], labels[keep]),
    ):
        ratio = arrays[f"{variant}_classmacro_cosine_intra_inter_ratio"][2]
        assert metrics.density(points, classes) == pytest.approx(ratio, abs=tolerance)
        assert metrics.spectral_decay(points) == pytest.approx(
            arrays[f"{variant}_rho_kl_u_s"], abs=tolerance
        )
        np.testing.assert_allclose(
            metrics.singular_values(points),
            arrays[f"{variant}_singular_values"],
            rtol=1e-9,
            atol=1e-9,
        )


@pytest.mark.parametrize("name", of_kind("stderr"))
def test_standard_errors(name):
    arrays, meta = fixtures.load("metrics", name)
    labels, clusters = arrays["y"], arrays["cluster"]
    assert metrics.nmi(labels, clusters) == pytest.approx(arrays["nmi"], abs=1e-12)
    delta = metrics.nmi_stderr(labels, clusters)
    assert delta == pytest.approx(arrays["nmi_se_delta"], abs=meta["tolerance"]["nmi_delta"])
    assert delta == pytest.approx(
        arrays["nmi_se_bootstrap"], rel=meta["tolerance"]["nmi_bootstrap_rel"]
    )
    # Two gallery rows of different classes; every query coincides with one of them.
    hits = arrays["hits"].astype(int)
    result = metrics.retrieval(
        np.eye(2)[hits], np.ones_like(hits), ks=(1,), gallery=np.eye(2), gallery_labels=np.arange(2)
    )
    assert result["recall@1"] == pytest.approx(arrays["recall"], abs=1e-12)
    expected = arrays["recall_se_binomial"]
    assert result["recall@1_stderr"] == pytest.approx(expected, abs=meta["tolerance"]["recall_se"])
