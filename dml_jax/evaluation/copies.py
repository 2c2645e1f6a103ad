"""Detects queries that are part of the gallery but not excluded from it, so that they find themselves."""

from collections.abc import Iterator

import numpy as np

from dml_jax.evaluation.check_inputs import row_blocks

NEARLY_ALL = 0.9  # fraction of the queries
TOLERANCE = 1e-6  # largest distance of two copies relative to their length, for rounding in float32


def warning(queries: np.ndarray, gallery: np.ndarray, metric: str) -> str:
    """A warning if nearly every query has a gallery row at distance 0; otherwise an empty string."""
    if not 1 < len(queries) <= len(gallery) or (found := count(queries, gallery, metric)) < NEARLY_ALL * len(queries):
        return ""
    return (
        f"gallery: {found:,} of {len(queries):,} queries have a gallery row at distance 0 and find themselves; remove "
        "the queries from the gallery, or give each query's own row as exclude"
    )


def count(queries: np.ndarray, gallery: np.ndarray, metric: str) -> int:
    """Number of queries [Q, D] with a row of the gallery [G, D] at distance 0 up to rounding.

    Each row is compared only with those whose projections on a random direction are next to its own, which takes a
    fraction of the time of a search.
    """
    direction = np.random.default_rng(0).normal(size=queries.shape[1])

    def project(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([block @ direction for block in _scaled(rows, metric)])

    with np.errstate(all="ignore"):  # rows that overflow never count as copies
        keys = project(gallery)
        order = np.argsort(keys)
        nearest = np.searchsorted(keys[order], project(queries))
        start, found = 0, 0
        for block in _scaled(queries, metric):
            equal = np.zeros(len(block), bool)
            for side in (-1, 0):
                rows = order[np.clip(nearest[start : start + len(block)] + side, 0, len(order) - 1)]
                others = np.concatenate([*_scaled(gallery[rows], metric)])
                lengths = np.linalg.norm(block, axis=1)
                equal |= np.linalg.norm(block - others, axis=1) <= TOLERANCE * lengths
            found += int(equal.sum())
            start += len(block)
    return found


def _scaled(rows: np.ndarray, metric: str) -> Iterator[np.ndarray]:
    """Yields blocks of rows in float64, normalised for the cosine metric."""
    for block in row_blocks(rows):
        points = block.astype(np.float64)
        if metric == "cosine":
            lengths = np.linalg.norm(points, axis=1, keepdims=True)
            points /= np.where(lengths > 0, lengths, 1)
        yield points
