"""Loads exported embeddings into vector search engines: faiss, Qdrant, ScaNN.

Each is an optional package: pip install faiss-cpu, qdrant-client or scann.

    search_indexes.faiss(embedding_files.read(Path("runs/birds/embeddings/test")))

The exported rows have unit length, so ranking by inner product equals ranking by cosine.
"""

from typing import Any, Literal

import numpy as np

from dml_jax.evaluation.compression import Compression
from dml_jax.export.embedding_files import Exported

BATCH = 256  # points per request to Qdrant


def faiss(
    exported: Exported,
    kind: Literal["flat", "hnsw", "int8", "binary"] = "flat",
    *,
    links: int = 32,
    compression: Compression | None = None,
) -> Any:
    """A faiss index with row numbers as ids; `faiss.write_index` (`write_index_binary`) saves it.

    Args:
      kind: "flat" for exact search over all rows by inner products, "hnsw" for approximate search in a graph; "int8"
        for exact search over int8 codes, and "binary" over binary codes by Hamming distance, whose queries are codes.
      links: neighbours per node of the graph.
      compression: how the rows were compressed; queries must be compressed as well (`Compression.reduced`). Codes need
        it. With "int8", the queries are `compression.reduced(rows) * compression.limits / 127`.
    """
    import faiss as library

    assert compression or kind in ("flat", "hnsw"), "codes need a compression"
    index: Any
    rows = compression.reduced(exported.embeddings) if compression else np.array(exported.embeddings)
    width, product = rows.shape[1], library.METRIC_INNER_PRODUCT
    if compression and kind == "binary":
        rows = compression.binary(rows)
        index = library.IndexBinaryFlat(8 * rows.shape[1])
    elif compression and kind == "int8":
        rows = compression.int8(rows).astype(np.float32)
        index = library.IndexScalarQuantizer(width, library.ScalarQuantizer.QT_8bit_direct_signed, product)
    else:
        index = library.IndexFlatIP(width) if kind == "flat" else library.IndexHNSWFlat(width, links, product)
    index.add(rows)
    return index


def qdrant(client: Any, collection: str, exported: Exported) -> None:
    """Fills a new Qdrant collection: point i is row i, with the payload `image` (its name) and, if known, `label`."""
    from qdrant_client import models

    rows, labels, ids = exported.embeddings, exported.labels, exported.ids
    vectors = models.VectorParams(size=rows.shape[1], distance=models.Distance.COSINE)
    client.create_collection(collection, vectors_config=vectors)
    for start in range(0, len(rows), BATCH):
        points = []
        for i in range(start, min(start + BATCH, len(rows))):
            payload: dict[str, Any] = {"image": ids[i]}
            if labels is not None:
                payload["label"] = int(labels[i])
            points.append(models.PointStruct(id=i, vector=rows[i].tolist(), payload=payload))
        client.upsert(collection, points)


def scann(exported: Exported, neighbors: int = 10) -> Any:
    """A ScaNN searcher with exact search over all rows; use ScaNN's builder for partitioned search in larger sets."""
    from scann import scann_ops_pybind

    builder = scann_ops_pybind.builder(np.array(exported.embeddings), neighbors, "dot_product")
    return builder.score_brute_force().build()
