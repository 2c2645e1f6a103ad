"""faiss, Qdrant and ScaNN, where installed, return the same neighbours as `neighbors.search`."""

from pathlib import Path

import numpy as np
import pytest

from dml_jax.evaluation import compression, neighbors
from dml_jax.export import embedding_files, search_indexes


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    rows = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    names = [f"{i}.jpg" for i in range(300)]
    embedding_files.write(tmp_path / "out", rows, np.arange(300) // 3, names, config_hash="h", step=7)
    return tmp_path / "out"


def test_faiss(directory: Path) -> None:
    pytest.importorskip("faiss")
    exported = embedding_files.read(directory)
    distances, order = neighbors.search(exported.embeddings[:20], exported.embeddings, 5)
    scores, found = search_indexes.faiss(exported).search(np.array(exported.embeddings[:20]), 5)
    np.testing.assert_array_equal(found, order)
    np.testing.assert_allclose(1 - scores, distances, atol=1e-6)
    _, found = search_indexes.faiss(exported, "hnsw").search(np.array(exported.embeddings[:20]), 5)
    assert (found == order).mean() > 0.9


def test_codes_in_faiss(directory: Path) -> None:
    """The order of int8 and of binary codes, after PCA whitening, is that of their decoded rows."""
    library = pytest.importorskip("faiss")
    exported = embedding_files.read(directory)
    fitted = compression.fit(np.random.default_rng(1).normal(size=(200, 16)), 12, whiten=True)
    rows = fitted.reduced(np.array(exported.embeddings))
    queries = rows[:20] * (fitted.limits / 127)
    scores, found = search_indexes.faiss(exported, "int8", compression=fitted).search(queries, 5)
    decoded = rows[:20] @ fitted.decoded(fitted.int8(rows)).T
    np.testing.assert_array_equal(found, np.argsort(-decoded, axis=1, kind="stable")[:, :5])
    np.testing.assert_allclose(scores, -np.sort(-decoded, axis=1)[:, :5], rtol=1e-4)
    index = search_indexes.faiss(exported, "binary", compression=fitted)
    assert isinstance(index, library.IndexBinaryFlat)
    differing, _ = index.search(fitted.binary(rows[:20]), 5)
    signs = fitted.signs(fitted.binary(rows))
    np.testing.assert_array_equal(differing, np.sort((12 - signs[:20] @ signs.T) / 2, axis=1)[:, :5])
    with pytest.raises(AssertionError, match="codes need a compression"):
        search_indexes.faiss(exported, "int8")


def test_qdrant(directory: Path) -> None:
    client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
    exported = embedding_files.read(directory)
    search_indexes.qdrant(client, "photos", exported)
    _, order = neighbors.search(exported.embeddings[:20], exported.embeddings, 5)
    for row, expected in zip(exported.embeddings[:20], order, strict=True):
        points = client.query_points("photos", query=row.tolist(), limit=5).points
        assert [point.id for point in points] == expected.tolist()
        first = points[0]
        assert first.payload == {"image": f"{first.id}.jpg", "label": first.id // 3}


def test_scann(directory: Path) -> None:
    pytest.importorskip("scann")
    exported = embedding_files.read(directory)
    distances, order = neighbors.search(exported.embeddings[:20], exported.embeddings, 5)
    found, scores = search_indexes.scann(exported, 5).search_batched(exported.embeddings[:20])
    np.testing.assert_array_equal(found, order)
    np.testing.assert_allclose(1 - scores, distances, atol=1e-5)
