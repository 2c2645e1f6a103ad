"""Squared distances in float64 on the host, and when they are needed.

The product of two prepared rows x and y has an error of up to about (4 + sqrt(W)) u (|x|^2 + |y|^2) / 2, where W is
their width and u the unit roundoff of their type (Higham & Mary, SIAM J. Sci. Comput. 2019; 4 for preparing them). Far
rows are ranked correctly, but rows much closer to each other than to the origin are not. That depends on the embeddings
(groups that are far apart, or a narrow cone), so it is decided for each query.
"""

from collections.abc import Iterator

import numpy as np

from dml_jax.evaluation import check_inputs
from dml_jax.evaluation._engine.tiles import TiledRows, normalize

# Distances are reliable where the error above is at most this fraction of their square; the usual error is far smaller.
RELATIVE_ERROR = 2.5e-4
RELATIVE_ERROR_IN_FLOAT64 = 5e-7
BLOCK_ELEMENTS = 1 << 23  # squared distances held at once


def error_bound(width: int, dtype: np.dtype) -> float:
    """Error of squared distances between rows, relative to the sum of their squared lengths."""
    return float((4 + np.sqrt(width)) * np.finfo(dtype).eps / 2)


def squared_lengths(rows: TiledRows) -> np.ndarray:
    """Squared lengths of the rows of the source after centring and scaling, float [N]; 1 for the cosine."""
    if rows.metric == "cosine":
        return np.ones(len(rows.source))
    blocks = (rows.centering.apply(block, rows.dtype) for block in check_inputs.row_blocks(rows.source))
    return np.concatenate([np.einsum("nd,nd->n", block, block) for block in blocks])


def unreliable(squares: np.ndarray, lengths: np.ndarray, error: float) -> np.ndarray:
    """Whether squared distances [N] are too small to rely on, from the squared lengths [N] and `error_bound`; bool."""
    return squares * RELATIVE_ERROR < error * 2 * lengths


def squared_distances(queries: TiledRows, gallery: TiledRows) -> Iterator[tuple[slice, np.ndarray]]:
    """Squared distances of the queries in `order` to all rows of the gallery, by index; between unit rows for a cosine.

    Yields:
      Slices of `queries.order`, and float [B, G], of the type and scale of prepared rows: values from float64 are
      rounded, so that equal distances are equal whatever the order of summation.
    """
    step = max(1, BLOCK_ELEMENTS // len(gallery.source))
    for start in range(0, len(queries.order), step):
        chosen = queries.order[start : start + step]
        left = _prepared(queries.source[chosen], queries)
        result, first = np.empty((len(chosen), len(gallery.source)), gallery.dtype), 0
        for block in check_inputs.row_blocks(gallery.source):
            right = _prepared(block, gallery)
            result[:, first : first + len(block)] = _between(left, right, gallery.metric == "cosine")
            first += len(block)
        yield slice(start, start + len(chosen)), result


def distances(
    queries: TiledRows, gallery: TiledRows, row: np.ndarray, indices: np.ndarray
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields slices of the pairs (row, index), and their squared distances float64 [B] from differences of the rows."""
    step = max(1, check_inputs.BLOCK_ELEMENTS // (8 * queries.source.shape[1]))
    for start in range(0, len(row), step):
        part = slice(start, start + step)
        difference = _prepared(queries.source[row[part]], queries)
        difference -= _prepared(gallery.source[indices[part]], gallery)
        yield part, np.einsum("nd,nd->n", difference, difference)


def _between(left: np.ndarray, right: np.ndarray, unit: bool) -> np.ndarray:
    """Squared distances float64 [Q, G] of prepared rows; small ones come from the differences of the rows."""
    squares = left @ right.T
    lengths = 2.0 if unit else (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None]
    squares *= -2
    squares += lengths
    error = error_bound(left.shape[1], left.dtype)
    row, column = np.nonzero(squares * RELATIVE_ERROR_IN_FLOAT64 < error * lengths)
    step = max(1, check_inputs.BLOCK_ELEMENTS // (8 * left.shape[1]))
    for start in range(0, len(row), step):
        i, j = row[start : start + step], column[start : start + step]
        squares[i, j] = np.sum((left[i] - right[j]) ** 2, axis=1)
    return squares


def _prepared(raw: np.ndarray, rows: TiledRows) -> np.ndarray:
    """Rows of the source as float64: of unit length for the cosine, else centred and scaled."""
    if rows.metric == "euclidean":
        return (np.asarray(raw, np.float64) - rows.centering.center[None]) * rows.centering.scale
    unit = np.array(raw, np.float64)
    normalize(unit)
    return unit
