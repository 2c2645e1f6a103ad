"""k-reciprocal re-ranking (Zhong et al., CVPR 2017).

All rows, queries and gallery together, are encoded by their neighbourhoods. With N(p, k) the k
nearest rows of p including p itself, and d(p, g) = (1 - cos) / max over g of (1 - cos):

    R(p, k)   = {g in N(p, k): p in N(g, k)}
    R*(p, k)  = R(p, k) and every R(q, k/2), q in R(p, k), with more than 2/3 of it in R(p, k)
    V(p)_g    = exp(-d(p, g)) for g in R*(p, k1), else 0; divided by its sum
    V(p)      is replaced by the mean of V(q) over p and its k2 - 1 nearest rows
    d_J(p, g) = 1 - sum min(V(p), V(g)) / sum max(V(p), V(g))
    d*(p, g)  = (1 - weight) d_J(p, g) + weight d(p, g)

These are the equations of the authors' code. In the paper, N(p, k) excludes p, exactly 2/3
suffices, and neither d nor V is normalised. k/2 is rounded half to even.

The encodings are sparse. Rows that share no neighbours with the query have d_J = 1 and keep their
order, so the first K re-ranked rows follow from the first K of the original ranking and the few
rows that share neighbours. No N×N matrix is stored.
"""

from collections.abc import Iterator

import numpy as np
from scipy import sparse

from dml_jax.errors import DataError
from dml_jax.evaluation import neighbors, own_distances, validation
from dml_jax.evaluation._engine.tiles import normalize
from dml_jax.evaluation.own_distances import Metric
from dml_jax.evaluation.validation import ArrayLike

K1, K2, WEIGHT = 20, 6, 0.3  # of the paper's experiments
ROWS = 4096  # encoded at once
TERMS = 1 << 22  # of min(V(p), V(g)) held at once


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
    """The first k rows of the re-ranked gallery for every query, ties broken by lower index.

    Args:
      queries: [Q, D] real numbers.
      gallery: [G, D]; equal to the queries if they search each other.
      k1: neighbourhood size.
      k2: number of nearest encodings to average.
      weight: weight of the original distance.
      metric: the original distance, "cosine" or a function (see `own_distances`), which takes the
        place of 1 - cos.
      exclude_self: query i does not retrieve gallery row i.

    Returns:
      Distances d* float32 [Q, k] and indices int32 [Q, k].
    """
    validation.metric(metric, "cosine")
    for name, value in (("k", k), ("k1", k1), ("k2", k2)):
        validation.whole(name, value, 1, k1 + 1 if name == "k2" else None)
    if not 0 <= weight <= 1:
        raise DataError(f"weight={weight}: must be in 0..1")
    query_rows = validation.embeddings(queries, name="queries")
    gallery_rows = (
        query_rows if gallery is queries else validation.embeddings(gallery, name="gallery")
    )
    among_themselves = validation.equal_rows(query_rows, gallery_rows)
    validation.check_same_width(query_rows, gallery_rows)
    count, first = len(query_rows), 0 if among_themselves else len(query_rows)
    rows = query_rows if among_themselves else np.concatenate([query_rows, gallery_rows])
    rows, farthest, weights = _encode(rows, k1, k2, metric)
    query_rows, gallery_rows = rows[:count], rows[first:]
    cosine_distances, nearest = neighbors.search(
        query_rows,
        query_rows if among_themselves else gallery_rows,
        k,
        metric=metric,
        exclude_self=exclude_self,
    )
    distances, indices = np.empty((count, k), np.float32), np.empty((count, k), np.int32)
    for block, overlap in _overlaps(weights[:count], weights[first:]):
        if exclude_self:
            kept = overlap.col != overlap.row + block.start
            overlap = sparse.coo_array(
                (overlap.data[kept], (overlap.row[kept], overlap.col[kept])), overlap.shape
            )
        distances[block], indices[block] = _merge(
            overlap,
            nearest[block],
            cosine_distances[block],
            query_rows[block],
            gallery_rows,
            farthest[block],
            weight,
            metric,
        )
    return distances, indices


def _encode(
    rows: np.ndarray, k1: int, k2: int, metric: Metric
) -> tuple[np.ndarray, np.ndarray, sparse.csr_array]:
    """Rows [N, D] -> float32 [N, D], of unit length for a cosine; largest distance of each, [N];
    and V, sparse."""
    points = rows.astype(np.float32)
    count = len(points)
    if count <= k1:
        raise DataError(f"re-ranking: compares the {k1} nearest of {count} rows; give more")
    if not callable(metric):
        normalize(points)
    _, others = neighbors.search(points, points, k1, metric=metric, exclude_self=True)
    nearest = np.concatenate([np.arange(count, dtype=np.int32)[:, None], others], axis=1)
    if callable(metric):
        farthest = np.concatenate(
            [block.max(axis=1) for _, block in own_distances.blocks(metric, points, points)]
        )
    else:  # The row farthest from p is the one nearest to -p.
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
    """Neighbours int [Q, k] of which the query is a neighbour, int [G, k']: 0/1 matrix int32 [Q,
    G]."""
    one = np.int32(1)
    return (
        _memberships(nearest, len(back), one)
        .multiply(_memberships(back, len(nearest), one).T.tocsr())
        .tocsr()
    )


def _memberships(nearest: np.ndarray, count: int, value: np.number) -> sparse.csr_array:
    """A sparse matrix [Q, count] of the value in the columns int [Q, k]."""
    ends = nearest.shape[1] * np.arange(len(nearest) + 1)
    return sparse.csr_array(
        (np.full(nearest.size, value), nearest.ravel(), ends), (len(nearest), count)
    )


def expanded(
    core: sparse.csr_array, half: sparse.csr_array, *, inclusive: bool = False
) -> sparse.csr_array:
    """R(p, k1) [Q, G] and every R(q, k1/2) [G, G], q in R(p, k1), with more than 2/3 of it in R(p,
    k1); positive.

    With `inclusive`, exactly 2/3 suffices.
    """
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
    """The original distance of the pairs (left[row], right[column]), 1 - cos of unit rows: float32
    [n]."""
    distances = np.empty(len(row), np.float32)
    step = (
        own_distances.PAIRS
        if callable(metric)
        else max(1, validation.BLOCK_ELEMENTS // (8 * left.shape[1]))
    )
    for start in range(0, len(row), step):
        block = slice(start, start + step)
        a, b = left[row[block]], right[column[block]]
        distances[block] = (
            own_distances.pairs(metric, a, b)
            if callable(metric)
            else 1 - np.einsum("nd,nd->n", a, b)
        )
    return distances if callable(metric) else np.maximum(distances, 0)


def _overlaps(
    queries: sparse.csr_array, gallery: sparse.csr_array
) -> Iterator[tuple[slice, sparse.coo_array]]:
    """For each block of queries, its slice and the nonzero sums of min(V(p), V(g)): sparse [B,
    G]."""
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
        shape = (end - start, gallery.shape[0])
        yield (
            slice(start, end),
            sparse.csr_array((minimum, (row, columns.indices[position])), shape=shape).tocoo(),
        )
        start = end


def _merge(
    overlap: sparse.coo_array,
    nearest: np.ndarray,
    cosine_distances: np.ndarray,
    queries: np.ndarray,
    gallery: np.ndarray,
    farthest: np.ndarray,
    weight: float,
    metric: Metric,
) -> tuple[np.ndarray, np.ndarray]:
    """The first k rows by d* among the original ranking, with its 1 - cos, and the rows that share
    neighbours."""
    count, k = nearest.shape
    width = len(gallery)
    ranked = (np.arange(count)[:, None] * width + nearest).ravel()
    sharing = overlap.row.astype(np.int64) * width + overlap.col
    pair = np.concatenate([ranked, sharing])
    of_sharing = _distances(metric, queries, gallery, overlap.row, overlap.col)
    distance = np.concatenate([cosine_distances.ravel(), of_sharing])
    minimum = np.concatenate([np.zeros(len(ranked), np.float32), overlap.data])
    # A pair in both lists takes its distance from the ranking (the first occurrence) and its
    # overlap from the other.
    pair, occurrence, inverse = np.unique(pair, return_index=True, return_inverse=True)
    minimum = np.bincount(inverse, minimum, len(pair))
    row = pair // width
    jaccard = 1 - minimum / (2 - minimum)
    result = ((1 - weight) * jaccard + weight * distance[occurrence] / farthest[row]).astype(
        np.float32
    )
    # The second key keeps the original order among rows that share no neighbours.
    order = np.lexsort((pair, distance[occurrence], result, row))
    starts = np.searchsorted(row, np.arange(count))
    chosen = order[starts[:, None] + np.arange(k)[None, :]]
    return result[chosen], (pair[chosen] % width).astype(np.int32)
