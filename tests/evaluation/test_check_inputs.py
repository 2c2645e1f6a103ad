"""Rejected input and its error messages."""

from functools import partial

import ml_dtypes
import numpy as np
import pytest

from dml_jax.errors import DataError
from dml_jax.evaluation import check_inputs, metrics, protocol
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
        check_inputs.embeddings(points)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.uint8, bool, ml_dtypes.bfloat16])
def test_all_real_dtypes_are_accepted(dtype):
    points = np.round(3 * X).astype(dtype)
    expected = metrics.retrieval(points.astype(np.float32), Y, ks=(1,))
    assert metrics.retrieval(points, Y, ks=(1,)) == expected


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (Y.astype(float), "labels: holds float64"),
        (Y.astype(object), "labels: holds object"),
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
        ({"ks": (0,)}, "ks: K=0"),
        ({"gallery": X}, "gallery_labels: holds object"),
        ({"gallery": X[:, :2], "gallery_labels": Y}, "gallery: has 2 columns and the queries 4"),
        ({"gallery": X, "gallery_labels": Y[:2]}, r"gallery_labels: holds int64 of shape \[2\] for 12 rows of gallery"),
        ({"gallery": X, "gallery_labels": Y[::-1], "exclude_self": True}, "exclude_self: "),
        ({"gallery": X.copy(), "gallery_labels": Y}, "gallery: equals the queries"),
    ],
)
def test_retrieval(options, message):
    with pytest.raises(DataError, match=message):
        metrics.retrieval(X, Y, **({"ks": (1,)} | options))


def test_a_number_is_the_only_k():
    lists = np.argsort(-(X @ X.T), axis=1)
    for call in (partial(metrics.retrieval, X), partial(protocol.evaluate, X), partial(metrics.of_ranked_lists, lists)):
        assert call(Y, ks=1) == call(Y, ks=(1,))


def write(path, content):
    path.write_bytes(content)
    return path


def test_files(tmp_path):
    whole = tmp_path / "x.npy"
    np.save(whole, X)
    loaded = check_inputs.load(whole)
    assert isinstance(loaded, np.memmap)
    np.testing.assert_array_equal(loaded, X)
    np.save(tmp_path / "objects.npy", X.astype(object), allow_pickle=True)
    np.save(tmp_path / "empty.npy", X[:0])
    for path, message in (
        (tmp_path / "none.npy", "is missing"),
        (tmp_path, "cannot be read"),
        (tmp_path / "objects.npy", ".*Python objects in dtype"),
        (write(tmp_path / "short.npy", whole.read_bytes()[:-8]), "is truncated or damaged"),
    ):
        with pytest.raises(DataError, match=f"file={path}: {message}"):
            check_inputs.load(path)
    assert check_inputs.load(tmp_path / "empty.npy").shape == (0, 4)


def test_a_file_is_read_in_blocks(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", X)
    monkeypatch.setattr(check_inputs, "BLOCK_ELEMENTS", 16)
    loaded = check_inputs.load(tmp_path / "x.npy")
    expected = [metrics.retrieval(X, Y, metric=metric) for metric in ("cosine", "euclidean")]
    monkeypatch.setattr(tiles, "memory_budget", lambda mesh: 1)
    assert [metrics.retrieval(loaded, Y, metric=metric) for metric in ("cosine", "euclidean")] == expected
    with pytest.raises(DataError, match="first row 7"):
        check_inputs.embeddings(broken(7, np.nan))
