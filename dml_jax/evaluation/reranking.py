"""k-reciprocal re-ranking (Zhong et al., CVPR 2017).

All rows, queries and gallery together, are encoded by their neighbourhoods. With the k nearest rows
N(p, k) of p, including p, and d(p, g) = (1 - cos) / max over g of (1 - cos):

    R(p, k)   = {g in N(p, k): p in N(g, k)}
    R*(p, k)  = R(p, k) and every R(q, k/2), q in R(p, k), with more than 2/3 of it in R(p, k)
    V(p)_g    = exp(-d(p, g)) for g in R*(p, k1), else 0; divided by its sum
    V(p)      is replaced by the mean of V(q) over p and its k2 - 1 nearest rows
    d_J(p, g) = 1 - sum min(V(p), V(g)) / sum max(V(p), V(g))
    d*(p, g)  = (1 - weight) d_J(p, g) + weight d(p, g)

These are the equations of the authors' code. In the paper, N(p, k) excludes p, exactly 2/3
suffices, and neither d nor V is normalised. k/2 is rounded half to even.

The encodings are sparse. Rows without neighbours in common with the query have d_J = 1 and keep
their order. The first K rows after re-ranking are therefore among the first K before and the few
rows with common neighbours, and no N×N matrix is stored.
"""

from collections.abc import Iterator

import numpy as np
from scipy import sparse

from dml_jax.errors import DataError
from dml_jax.evaluation import neighbors, user_distances, validation
from dml_jax.evaluation._engine.tiles import normalize
from dml_jax.evaluation.user_distances import Metric
from dml_jax.evaluation.validation import ArrayLike

K1, K2, WEIGHT = 20, 6, 0.3  # as in the paper's experiments
ROWS = 4096  # encoded at once
TERMS = 1 << 22  # values min(V(p), V(g)) in memory at once


def search(
    queries: ArrayLike,
    gallery: ArrayLike,
    k: int,
    *,
    k1: int = K1,
    k2: int = K2,
    weight: float = WEIGHT,
    metric: Metric = "cosine",
    exclude_self: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the first k rows of the re-ranked gallery for every query, ties by lower index.

    Args:
      queries: [Q, D] real numbers.
      gallery: [G, D]; equal to the queries if they search each other.
      k1: neighbourhood size.
      k2: number of nearest encodings to average.
      weight: weight of the original distance.
      metric: the original distance: "cosine", 1 - cos, or a function (see `user_distances`).
      exclude_self: query i excludes gallery row i.

    Returns:
      Distances d* float32 [Q, k] and indices int32 [Q, k].
    """
    validation.check_metric(metric, "cosine")
    for name, value in (("k", k), ("k1", k1), ("k2", k2)):
        validation.check_whole(name, value, 1, k1 + 1 if name == "k2" else None)
    if not 0 <= weight <= 1:
        raise DataError(f"weight={weight}: must be in 0..1")
    query_rows, gallery_rows = validation.check_pair(queries, gallery)
    one_set = validation.equal_rows(query_rows, gallery_rows)
    count, first = len(query_rows), 0 if one_set else len(query_rows)
    rows = query_rows if one_set else np.concatenate([query_rows, gallery_rows])
    rows, farthest, weights = _encode(rows, k1, k2, metric)
    query_rows = rows[:count]
    gallery_rows = query_rows if one_set else rows[first:]
    original, nearest = neighbors.search(
        query_rows, gallery_rows, k, metric=metric, exclude_self=exclude_self
    )
    distances, indices = np.empty((count, k), np.float32), np.empty((count, k), np.int32)
    for block, overlap in _overlaps(weights[:count], weights[first:]):
        if exclude_self:
            mask = overlap.col != overlap.row + block.start
            pairs = overlap.row[mask], overlap.col[mask]
            overlap = sparse.coo_array((overlap.data[mask], pairs), overlap.shape)
        shared = _distances(metric, query_rows[block], gallery_rows, overlap.row, overlap.col)
        ranking = nearest[block], original[block]
        merged = _merge(*ranking, overlap, shared, farthest[block], weight)
        distances[block], indices[block] = merged
    return distances, indices


def _encode(
    rows: np.ndarray, k1: int, k2: int, metric: Metric
) -> tuple[np.ndarray, np.ndarray, sparse.csr_array]:
    """Rows [N, D] as float32, normalised for the cosine; their largest distances [N]; and V."""
    count = len(rows)
    if count <= k1:
        raise DataError(f"re-ranking with k1={k1} needs more than {k1} rows; got {count}")
    # Normalised first, because long and short rows would leave the range of float32.
    points: np.ndarray = rows.astype(np.float64 if rows.dtype == np.float64 else np.float32)
    if not callable(metric):
        normalize(points)
    points = points.astype(np.float32, copy=False)
    _, neighbours = neighbors.search(points, points, k1, metric=metric, exclude_self=True)
    nearest = np.concatenate([np.arange(count, dtype=np.int32)[:, None], neighbours], axis=1)
    if callable(metric):
        farthest = np.concatenate(
            [block.max(axis=1) for _, block in user_distances.blocks(metric, points, points)]
        )
    else:  # the row farthest from p is the nearest to -p
        farthest = (2 - neighbors.search(-points, points, 1)[0][:, 0]).astype(np.float32)
    farthest = np.where(farthest > 0, farthest, np.float32(1))
    near_half = nearest[:, : round(k1 / 2) + 1]
    members = expanded(mutual(nearest, nearest), mutual(near_half, near_half)).tocoo()
    distance = _distances(metric, points, points, members.row, members.col)
    values = np.exp(-distance / farthest[members.row])
    weights = sparse.csr_array((values, (members.row, members.col)), shape=members.shape)
    weights = sparse.diags_array(1 / weights.sum(axis=1), dtype=np.float32) @ weights
    return points, farthest, _memberships(nearest[:, :k2], count, np.float32(1 / k2)) @ weights


def mutual(nearest: np.ndarray, back: np.ndarray) -> sparse.csr_array:
    """1 where q has g in `nearest` int [Q, k], and g has q in `back` int [G, k']: int32 [Q, G]."""
    forward = _memberships(nearest, len(back), np.int32(1))
    return forward.multiply(_memberships(back, len(nearest), np.int32(1)).T.tocsr()).tocsr()


def _memberships(nearest: np.ndarray, count: int, value: np.number) -> sparse.csr_array:
    """A sparse matrix [Q, count] with the value in the columns `nearest` int [Q, k]."""
    ends = nearest.shape[1] * np.arange(len(nearest) + 1)
    values = np.full(nearest.size, value)
    return sparse.csr_array((values, nearest.ravel(), ends), (len(nearest), count))


def expanded(
    core: sparse.csr_array, half: sparse.csr_array, *, inclusive: bool = False
) -> sparse.csr_array:
    """R*(p, k1) as positive entries; if `inclusive`, exactly 2/3 suffices."""
    blocks = []
    for start in range(0, core.shape[0], ROWS):
        block = core[start : start + ROWS]
        joins = (block @ half.T).multiply(block).tocsr()
        excess = 3 * joins.data - 2 * np.diff(half.indptr)[joins.indices]
        joins.data = (excess >= 0 if inclusive else excess > 0).astype(np.int32)
        blocks.append(block + joins @ half)
        blocks[-1].eliminate_zeros()
    return sparse.vstack(blocks, format="csr")


def _distances(
    metric: Metric, left: np.ndarray, right: np.ndarray, row: np.ndarray, column: np.ndarray
) -> np.ndarray:
    """1 - cos of the unit rows (left[row], right[column]): float32 [n]."""
    distances = np.empty(len(row), np.float32)
    if callable(metric):
        for start in range(0, len(row), user_distances.PAIRS):
            part = slice(start, start + user_distances.PAIRS)
            distances[part] = user_distances.pairs(metric, left[row[part]], right[column[part]])
        return distances
    for part in validation.slices(len(row), 8 * left.shape[1]):
        distances[part] = 1 - np.einsum("nd,nd->n", left[row[part]], right[column[part]])
    return np.maximum(distances, 0)


def _overlaps(
    queries: sparse.csr_array, gallery: sparse.csr_array
) -> Iterator[tuple[slice, sparse.coo_array]]:
    """Blocks of queries: a slice and the sums of min(V(p), V(g)), sparse [B, G]."""
    columns = gallery.tocsc()
    lengths = np.diff(columns.indptr)
    terms = np.concatenate([[0], np.cumsum(lengths[queries.indices])])[queries.indptr]
    start = 0
    while start < queries.shape[0]:
        end = max(start + 1, int(np.searchsorted(terms, terms[start] + TERMS, side="right")) - 1)
        block = queries[start:end]
        repeats = lengths[block.indices]
        row = np.repeat(np.repeat(np.arange(end - start), np.diff(block.indptr)), repeats)
        offset = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        position = np.repeat(columns.indptr[block.indices], repeats) + offset
        minimum = np.minimum(np.repeat(block.data, repeats), columns.data[position])
        pairs, shape = (row, columns.indices[position]), (end - start, gallery.shape[0])
        yield slice(start, end), sparse.csr_array((minimum, pairs), shape=shape).tocoo()
        start = end


def _merge(
    nearest: np.ndarray,
    original: np.ndarray,
    overlap: sparse.coo_array,
    shared: np.ndarray,
    farthest: np.ndarray,
    weight: float,
) -> tuple[np.ndarray, np.ndarray]:
    """The first k rows by d* among the original ranking [B, k] and the rows with common neighbours,
    from the original distances of both."""
    count, k = nearest.shape
    width = overlap.shape[1]
    ranked = (np.arange(count)[:, None] * width + nearest).ravel()
    sharing = overlap.row.astype(np.int64) * width + overlap.col
    distance = np.concatenate([original.ravel(), shared])
    minimum = np.concatenate([np.zeros(len(ranked), np.float32), overlap.data])
    # A pair in both lists takes its distance from the ranking, which comes first, and its overlap
    # from the second list.
    pair, occurrence, inverse = np.unique(
        np.concatenate([ranked, sharing]), return_index=True, return_inverse=True
    )
    distance, minimum = distance[occurrence], np.bincount(inverse, minimum, len(pair))
    row = pair // width
    jaccard = 1 - minimum / (2 - minimum)
    result = ((1 - weight) * jaccard + weight * distance / farthest[row]).astype(np.float32)
    # The second key keeps the original order of rows without common neighbours.
    order = np.lexsort((pair, distance, result, row))
    starts = np.searchsorted(row, np.arange(count))
    first_k = order[starts[:, None] + np.arange(k)[None, :]]
    return result[first_k], (pair[first_k] % width).astype(np.int32)
