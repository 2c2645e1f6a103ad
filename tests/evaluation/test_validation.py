"""Rejected input and its error messages."""

from functools import partial

import ml_dtypes
import numpy as np
import pytest

from dml_jax.errors import ConfigError, DataError
from dml_jax.evaluation import (
    kmeans,
    metrics,
    neighbors,
    protocol,
    refinement_batches,
    reranking,
    validation,
)
from dml_jax.evaluation._engine import tiles

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
Y = np.repeat(np.arange(4), 3)


def broken(row, value):
    x = X.copy()
    x[row] = value
    return x


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (broken([3, 7], np.nan), "embeddings: 2 of 12 rows hold NaN or infinity, first row 3"),
        (broken(11, np.inf), "1 of 12 rows"),
        (X[0], r"of shape \[4\]; give real numbers \[N, D\]"),
        (X[:0], r"of shape \[0, 4\]"),
        (X.astype(complex), "holds complex128"),
        (X.astype(object), "holds object"),
    ],
)
def test_embeddings(points, message):
    with pytest.raises(DataError, match=message):
        validation.embeddings(points)


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float64, np.int8, np.uint8, bool, ml_dtypes.bfloat16]
)
def test_all_real_dtypes_are_accepted(dtype):
    points = np.round(3 * X).astype(dtype)
    expected = metrics.retrieval(points.astype(np.float32), Y, ks=(1,))
    assert metrics.retrieval(points, Y, ks=(1,)) == expected


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (Y.astype(float), "labels: holds float64"),
        (np.array([*Y[:-1], 1.5], object), "labels: holds object"),
        (["a", float("nan"), *"abcdefghij"], "labels: row 1 has no label, but nan; leave the row"),
        (["a", None, *"abcdefghij"], "labels: row 1 has no label, but None"),
        ([1, "1", *range(10)], "labels: row 0 holds 1 and row 1 '1'; give all as integers or"),
        ([True, False] * 6, "labels: holds bool"),
        (Y > 1, "labels: holds bool"),
        (Y[:5], r"labels: holds int64 of shape \[5\] for 12 rows of queries"),
        (Y[:, None], r"labels: holds int64 of shape \[12, 1\]"),
    ],
)
def test_labels(labels, message):
    with pytest.raises(DataError, match=message):
        metrics.retrieval(X, labels)


def test_any_integers_are_valid_labels():
    for labels in (Y - 7, Y * 2**40, Y.astype(np.uint64) + 2**63, Y.astype(np.uint8)):
        assert metrics.retrieval(X, labels, ks=(1,)) == metrics.retrieval(X, Y, ks=(1,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ks": (1, 12)}, r"ks: K=12, but there are 11 candidates; K must be in 1\.\.11"),
        ({"ks": (0,)}, "ks=0: must be a whole number of at least 1"),
        ({"gallery": X}, "gallery_labels: are missing"),
        ({"gallery": X[:, :2], "gallery_labels": Y}, "gallery: has 2 columns and the queries 4"),
        (
            {"gallery": X, "gallery_labels": Y[:2]},
            r"gallery_labels: holds int64 of shape \[2\] for 12 rows of gallery",
        ),
        ({"gallery": X, "gallery_labels": Y[::-1], "exclude_self": True}, "exclude_self: "),
        ({"gallery": X.copy(), "gallery_labels": Y}, "gallery: equals the queries"),
    ],
)
def test_retrieval(options, message):
    with pytest.raises(DataError, match=message):
        metrics.retrieval(X, Y, **({"ks": (1,)} | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gallery_labels": Y}, "gallery_labels: are given without a gallery"),
        ({"gallery_groups": Y}, "gallery_groups: are given without a gallery and groups"),
        ({"groups": Y, "gallery_groups": Y}, "gallery_groups: are given without a gallery"),
        (
            {"gallery": X[:6], "gallery_labels": Y[:6], "gallery_groups": Y[:6]},
            "gallery_groups: are given without",
        ),
        ({"gallery": X[:6], "gallery_labels": Y[:6], "groups": Y}, "gallery_groups: are missing"),
        ({"ks": (1.5,)}, r"ks=1\.5: must be a whole number of at least 1"),
    ],
)
def test_arguments_that_belong_together(options, message):
    with pytest.raises(DataError, match=message):
        metrics.retrieval(X, Y, **({"ks": (1,)} | options))


LISTS = (np.arange(12)[:, None] + np.arange(1, 5)) % 12  # without the query


RETRIEVAL, EVALUATE = partial(metrics.retrieval, X, Y), partial(protocol.evaluate, X, Y)
RANKED = partial(metrics.of_ranked_lists, LISTS, Y)
RERANK, KMEANS = partial(reranking.search, X, X, 1), partial(kmeans.fit, X)
CLUSTER, SETS = refinement_batches.cluster, refinement_batches.reciprocal_sets


@pytest.mark.parametrize(
    ("call", "options", "known"),
    [
        (RETRIEVAL, {"metric": "cos"}, "cosine, euclidean, or a function"),
        (RETRIEVAL, {"metric": None}, "cosine"),
        (RETRIEVAL, {"exclusion": "name"}, "index, position"),
        (RETRIEVAL, {"lone_queries": "drop"}, "miss, omit"),
        (RANKED, {"lone_queries": "drop"}, "miss"),
        (partial(metrics.nmi, Y, Y), {"average": "mean"}, "arithmetic, geometric"),
        (partial(metrics.nmi_stderr, Y, Y), {"average": "mean"}, "arithmetic"),
        (EVALUATE, {"protocol": "dirty"}, "clean, paper"),
        (partial(EVALUATE, cluster=False), {"average": "mean"}, "arithmetic"),
        (partial(neighbors.search, X, X, 1), {"metric": "l2"}, "cosine, euclidean, or a function"),
        (RERANK, {"metric": "euclidean"}, "cosine, or a func"),
        (partial(KMEANS, k=2), {"init": "k-means"}, r"k-means\+\+, random, or centres"),
        (partial(CLUSTER, X), {"algorithm": "agnes"}, "kmeans, ward"),
        (partial(SETS, X, k=2, size=3), {"rule": "code"}, "authors, paper"),
    ],
)
def test_words_that_are_unknown(call, options, known):
    ((name, word),) = options.items()
    with pytest.raises(ConfigError, match=f"^{name}={word!r}: must be one of {known}"):
        call(**options)


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        (KMEANS, {"k": 0}, r"k=0: must be a whole number in 1\.\.12"),
        (KMEANS, {"k": 13}, r"k=13: must be a whole number in 1\.\.12"),
        (KMEANS, {"k": 2, "restarts": 0}, "restarts=0: must be a whole number of at least 1"),
        (KMEANS, {"k": 2, "max_iterations": -1}, "max_iterations=-1: must be"),
        (KMEANS, {"k": 2, "seed": 1.5}, r"seed=1\.5: must be a whole number in 0\.\.4294967295"),
        (KMEANS, {"k": 2, "seed": 2**32}, r"seed=4294967296: must be"),
        (KMEANS, {"k": 2, "init": X[:3]}, r"init: has shape \[3, 4\]; give centres \[2, 4\]"),
        (partial(neighbors.search, X, X), {"k": 2.5}, r"k=2\.5: must be a whole number"),
        (RERANK, {"k1": 0}, "k1=0: must be a whole number of at least 1"),
        (RERANK, {"k1": 3, "k2": 5}, r"k2=5: must be a whole number in 1\.\.4"),
        (RERANK, {"k1": 3, "k2": 2, "weight": 1.5}, r"weight=1\.5: must be in 0\.\.1"),
    ],
)
def test_numbers_that_do_not_fit(call, options, message):
    with pytest.raises(DataError, match=message):
        call(**options)


def test_lists_that_do_not_fit():
    for lists, message in (
        (LISTS - 20, r"indices: are in -\d+\.\.-\d+, but the gallery has 12 rows"),
        (LISTS.astype(float), "indices: hold float64"),
        (LISTS[:0], r"indices: hold int64 of shape \[0, 4\]"),
        ((LISTS + 11) % 12, "indices: list 0 holds its own query; leave every query out"),
        (np.where(np.eye(12, 4, -5), 6, LISTS), "indices: list 6 holds its own query"),
        (LISTS[:, [0, 1, 2, 1]], "indices: list 0 holds a row twice"),
    ):
        with pytest.raises(DataError, match=message):
            metrics.of_ranked_lists(lists, Y, ks=1)
    for ranked in (LISTS, (LISTS + 11) % 12):  # a gallery has no queries
        metrics.of_ranked_lists(ranked, Y, Y, ks=1)


UP = [2**53 + i for i in range(9)]  # float64 holds every second integer beyond 2**53
BEYOND = [5, -1, 7, 2**53 + 1, 2**53, 3, 5, -(2**62), 2**63 - 1]


@pytest.mark.parametrize(
    ("own", "other", "kinds"),
    [
        (UP[1:6:2], UP, (np.int64, np.uint64)),
        (UP[1:6:2], UP, (np.uint64, np.int64)),
        ([2**63 + 1, 2**53 + 1, 2**63], BEYOND, (np.uint64, np.int64)),
        ([2**53 + 1, -1, 2**63 - 1], [2**63 + i for i in range(-4, 5)], (np.int64, np.uint64)),
        ([2**63 + 1, 2**63 + 2, 5], [2**63 + i for i in range(-4, 5)], (np.uint64, np.uint64)),
    ],
)
def test_mixed_integers_are_compared_exactly(own, other, kinds):
    """As labels, labels of several classes, groups and ranked lists."""
    x = np.random.default_rng(0).normal(size=(12, 4))
    given = {"gallery": x[3:], "ks": (1, 9)}
    numbers = {value: i for i, value in enumerate({*own, *other})}
    small = np.array([numbers[v] for v in own]), np.array([numbers[v] for v in other])
    wide = np.array(own, kinds[0]), np.array(other, kinds[1])
    expected = metrics.retrieval(x[:3], small[0], gallery_labels=small[1], **given)
    assert metrics.retrieval(x[:3], wide[0], gallery_labels=wide[1], **given) == expected
    lists = [[[v] for v in side.tolist()] for side in wide]
    several = metrics.retrieval(x[:3], lists[0], gallery_labels=lists[1], **given)
    assert several == {key: value for key, value in expected.items() if not key.startswith("macro")}
    ones = {"labels": np.ones(3, int), "gallery_labels": np.ones(9, int)}
    grouped = [
        metrics.retrieval(x[:3], groups=a, gallery_groups=b, **ones, **given)
        for a, b in (small, wide)
    ]
    assert grouped[0] == grouped[1]
    ranked = np.argsort(-(x[:3] @ x[3:].T), axis=1)
    found = [metrics.of_ranked_lists(ranked, a, b, ks=(1, 9)) for a, b in (small, wide)]
    assert found[0] == found[1]


def test_a_gallery_that_holds_the_queries_in_another_order():
    x, y = X + 0.5, Y
    with pytest.warns(
        UserWarning, match="gallery: 12 of 12 queries equal a row of it and may find themselves"
    ):
        metrics.retrieval(x, y, gallery=x[::-1], gallery_labels=y[::-1], ks=1)
    more = np.concatenate([x[3:6] + 9, x[:3]]).astype(np.float64)
    with pytest.warns(UserWarning, match="gallery: 3 of 12 queries"):
        metrics.retrieval(x, y, gallery=more, gallery_labels=y[:6], ks=1)
    for options in (
        {"exclude_self": False},
        {"groups": np.arange(12), "gallery_groups": np.arange(12)[::-1]},
    ):
        metrics.retrieval(x, y, gallery=x[::-1], gallery_labels=y[::-1], ks=1, **options)
    assert (
        validation.shared_rows(np.array([[0.0, 1], [0, 1], [1, 0]]), np.array([[-0.0, 1], [1, 1]]))
        == 1
    )


def test_a_number_is_the_only_k():
    lists = np.argsort(-(X @ X.T) + 99 * np.eye(12), axis=1)[:, :11]
    for call in (
        partial(metrics.retrieval, X),
        partial(protocol.evaluate, X),
        partial(metrics.of_ranked_lists, lists),
    ):
        assert call(Y, ks=1) == call(Y, ks=(1,))


def write(path, content):
    path.write_bytes(content)
    return path


def test_files(tmp_path):
    whole = tmp_path / "x.npy"
    np.save(whole, X)
    loaded = validation.load(whole)
    assert isinstance(loaded, np.memmap)
    np.testing.assert_array_equal(loaded, X)
    np.save(tmp_path / "objects.npy", X.astype(object), allow_pickle=True)
    np.save(tmp_path / "empty.npy", X[:0])
    np.savez(tmp_path / "x.npz", X)
    for path, message in (
        (tmp_path / "none.npy", "is missing"),
        (tmp_path, "cannot be read"),
        (tmp_path / "objects.npy", r".*Python objects in dtype.*write .* array\.astype\(str\)"),
        (tmp_path / "x.npz", r".*; write one array of numbers or strings with numpy\.save"),
        (write(tmp_path / "short.npy", whole.read_bytes()[:-8]), "is truncated or damaged"),
    ):
        with pytest.raises(DataError, match=f"file={path}: {message}"):
            validation.load(path)
    assert validation.load(tmp_path / "empty.npy").shape == (0, 4)


def test_a_file_is_read_in_blocks(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", X)
    monkeypatch.setattr(validation, "BLOCK_ELEMENTS", 16)
    loaded = validation.load(tmp_path / "x.npy")
    expected = [metrics.retrieval(X, Y, metric=metric) for metric in ("cosine", "euclidean")]
    monkeypatch.setattr(tiles, "memory_budget", lambda mesh: 1)
    assert [
        metrics.retrieval(loaded, Y, metric=metric) for metric in ("cosine", "euclidean")
    ] == expected
    with pytest.raises(DataError, match="first row 7"):
        validation.embeddings(broken(7, np.nan))


def test_what_is_no_array_and_no_dictionary():
    with pytest.raises(
        DataError, match=r"embeddings: cannot be converted to an array \(.*\); give"
    ):
        validation.embeddings([[1.0], [1.0, 2.0]])
    with pytest.raises(
        ConfigError, match=r"functions=\[.*\]: must be a dict of functions by their"
    ):
        metrics.retrieval(X, Y, functions=[len])


@pytest.mark.parametrize("value", [None, "0.5", [0.5]])
def test_a_metric_that_returns_no_number(value: object) -> None:
    """E.g. without a `return`, which would become NaN."""
    message = r"metric own: returned .*; return a number"

    def own(hits: np.ndarray) -> object:
        return value

    with pytest.raises(ConfigError, match=message):
        metrics.retrieval(X, Y, functions={"own": own})
