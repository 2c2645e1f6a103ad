"""Queries that are part of the gallery although none of its rows is excluded, so that they find themselves."""

from collections.abc import Iterator

import numpy as np

from dml_jax.evaluation.check_inputs import row_blocks

NEARLY_ALL = 0.9  # of the queries
TOLERANCE = 1e-6  # largest distance of two copies, relative to their length: rounding in float32


def warning(queries: np.ndarray, gallery: np.ndarray, metric: str) -> str:
    """What to say if the gallery seems to contain the queries: nearly every one has a row at distance 0; else empty."""
    if not 1 < len(queries) <= len(gallery) or (found := count(queries, gallery, metric)) < NEARLY_ALL * len(queries):
        return ""
    return (
        f"gallery: {found:,} of {len(queries):,} queries have a gallery row at distance 0 and find themselves; leave "
        "the queries out of the gallery, or name each one's own row (exclude)"
    )


def count(queries: np.ndarray, gallery: np.ndarray, metric: str) -> int:
    """Number of queries [Q, D] with a row of the gallery [G, D] at distance 0 up to rounding.

    Rows are compared with those whose projections on a random direction are next to their own, so this takes a fraction
    of the time of a search.
    """
    direction = np.random.default_rng(0).normal(size=queries.shape[1])

    def project(rows: np.ndarray) -> np.ndarray:
        return np.concatenate([block @ direction for block in _scaled(rows, metric)])

    with np.errstate(all="ignore"):  # huge rows are no copies
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
    """Blocks of rows in float64, of unit length if only their direction counts."""
    for block in row_blocks(rows):
        points = block.astype(np.float64)
        if metric == "cosine":
            lengths = np.linalg.norm(points, axis=1, keepdims=True)
            points /= np.where(lengths > 0, lengths, 1)
        yield points
