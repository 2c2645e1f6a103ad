"""Batches of reciprocal neighbours compared with NumPy, one query at a time as in published
code."""

from collections.abc import Iterator

import numpy as np

from benchmarks.timing import Row, row
from dml_jax.methods.mpn import refinement


def reciprocal_batches(embeddings: np.ndarray, k: int, size: int) -> np.ndarray:
    """Batches of reciprocal neighbours from the full ranking, with set operations for one query at
    a time."""
    squares = np.sum(embeddings**2, axis=1)
    distances = squares[:, None] + squares[None] - 2 * embeddings @ embeddings.T
    ranking = np.argsort(distances, axis=1)

    def mutual(q: int, k: int) -> np.ndarray:
        near = ranking[q, : k + 1]
        return near[(ranking[near, : k + 1] == q).any(axis=1)]

    halves = [mutual(q, round(k / 2)) for q in range(len(embeddings))]
    batches = []
    for q in range(len(embeddings)):
        original = mutual(q, k)
        parts = [
            h
            for h in (halves[g] for g in original)
            if 3 * len(np.intersect1d(h, original)) > 2 * len(h)
        ]
        expanded = np.unique(np.concatenate([original, *parts]))
        nearest = expanded[np.argsort(distances[q, expanded])][:size]
        others = ranking[q, : 2 * size]
        batches.append(np.concatenate([nearest, others[~np.isin(others, nearest)]])[:size])
    return np.asarray(batches)


def clustered(rows: int, dim: int, classes: int = 100) -> np.ndarray:
    """Unit float32 rows around class centres."""
    rng = np.random.default_rng(0)
    points = 0.7 * rng.normal(size=(classes, dim))[np.arange(rows) % classes] + rng.normal(
        size=(rows, dim)
    )
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def rows() -> Iterator[Row]:
    points = clustered(5924, 512)
    yield row(
        "reciprocal-neighbour batches, 5,924 x 512, k=30, batches of 7",
        lambda: refinement.reciprocal_sets(points, k=30, size=7).batches,
        lambda: reciprocal_batches(points, 30, 7),
        3,
    )
