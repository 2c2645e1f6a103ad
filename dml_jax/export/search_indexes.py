"""Loads exported embeddings into vector search engines: faiss, Qdrant, ScaNN.

Each is an optional package: pip install faiss-cpu, qdrant-client or scann.

    search_indexes.faiss(embedding_files.read(Path("runs/birds/embeddings/test")))

The exported rows have unit length, so ranking by inner product equals ranking by cosine.
"""

import importlib
from typing import Any, Literal

import numpy as np

from dml_jax.errors import DataError
from dml_jax.export.embedding_files import Exported

BATCH = 256  # points per request to Qdrant


def faiss(exported: Exported, kind: Literal["flat", "hnsw"] = "flat", *, links: int = 32) -> Any:
    """A faiss index for inner products whose ids are row numbers; `faiss.write_index` saves it.

    Args:
      kind: "flat" for exact search over all rows, "hnsw" for approximate search in a graph.
      links: neighbours per node of the graph.
    """
    if kind not in ("flat", "hnsw"):
        raise DataError(f"kind={kind!r}: give 'flat' or 'hnsw'")
    library = _import("faiss", "faiss-cpu")
    width = exported.embeddings.shape[1]
    if kind == "flat":
        index = library.IndexFlatIP(width)
    else:
        index = library.IndexHNSWFlat(width, links, library.METRIC_INNER_PRODUCT)
    index.add(np.array(exported.embeddings))
    return index


def qdrant(client: Any, collection: str, exported: Exported) -> None:
    """Fills a new Qdrant collection: point i is row i, with the payload `image` (its name) and, if known, `label`."""
    models = _import("qdrant_client", "qdrant-client").models
    if client.collection_exists(collection):
        raise DataError(f"{collection}: the collection already exists; delete it, or give another name")
    rows, labels, ids = exported.embeddings, exported.labels, exported.ids
    vectors = models.VectorParams(size=rows.shape[1], distance=models.Distance.COSINE)
    client.create_collection(collection, vectors_config=vectors)
    for start in range(0, len(rows), BATCH):
        points = [
            models.PointStruct(
                id=i,
                vector=rows[i].tolist(),
                payload={"image": ids[i]} | ({} if labels is None else {"label": int(labels[i])}),
            )
            for i in range(start, min(start + BATCH, len(rows)))
        ]
        client.upsert(collection, points)


def scann(exported: Exported, neighbors: int = 10) -> Any:
    """A ScaNN searcher with exact search over all rows; use ScaNN's builder for partitioned search in larger sets.

    `neighbors` is the default number of results of `search`.
    """
    builder = _import("scann", "scann").scann_ops_pybind.builder(
        np.array(exported.embeddings), neighbors, "dot_product"
    )
    return builder.score_brute_force().build()


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DataError(f"{module} is not installed: pip install {package}") from None
