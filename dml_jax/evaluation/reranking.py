"""Re-ranking by shared neighbourhoods (k-reciprocal encoding, Zhong et al., CVPR 2017).

All rows, queries and gallery together, are encoded by whom they are close to. With N(p, k) the k nearest rows of p and
p itself, and d(p, g) = (1 - cos) / max over g of (1 - cos):

    R(p, k)   = {g in N(p, k): p in N(g, k)}
    R*(p, k)  = R(p, k) and every R(q, k/2), q in R(p, k), of which more than a share of 2/3 lies in R(p, k)
    V(p)_g    = exp(-d(p, g)) for g in R*(p, k1), else 0; divided by its sum
    V(p)      becomes the mean of V(q) over p and its k2 - 1 nearest rows
    d_J(p, g) = 1 - sum min(V(p), V(g)) / sum max(V(p), V(g))
    d*(p, g)  = (1 - weight) d_J(p, g) + weight d(p, g)

This is what the authors' code computes. As printed, N(p, k) is without p, a share of 2/3 suffices, and neither d nor V
is normalised. k/2 is rounded half to even.

The encodings are sparse, and rows that share nothing with the query have d_J = 1, hence keep their order: the first K
of the re-ranked gallery follow from the first K of the plain ranking and the few rows that share something. Nothing
N x N is held.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dml_jax.errors import DataError
from dml_jax.evaluation import neighbors, validation
from dml_jax.evaluation._ranking.tiles import normalize

K1, K2, WEIGHT = 20, 6, 0.3  # of the paper's experiments
ROWS = 4096  # encoded at once
TERMS = 1 << 22  # of min(V(p), V(g)) that are held at once


class Encoding(NamedTuple):
    """What re-ranking knows of N rows.

    Attributes:
      rows: float32 [N, D], of unit length.
      farthest: float32 [N], the largest 1 - cos of each row to any, 1 where all are at 0.
      shares: float32 [N, N], sparse: V, rows of sum one.
    """

    rows: np.ndarray
    farthest: np.ndarray
    shares: sparse.csr_array


def search(
    queries: Any,
    gallery: Any,
    k: int,
    *,
    k1: int = K1,
    k2: int = K2,
    weight: float = WEIGHT,
    exclude_self: bool = False,
    announce: Callable[[str], None] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The first k of the re-ranked gallery for every query, ties to the lower index.

    Args:
      queries: [Q, D] real numbers, ranked by their cosine.
      gallery: [G, D]; the same object where the queries search each other.
      k: how many.
      k1: size of the neighbourhoods; k2: how many of the nearest are averaged; weight: of the plain distance.
      exclude_self: query i does not find gallery row i.
      announce: told in one line what is begun.

    Returns:
      distances d* float32 [Q, k] and indices int32 [Q, k].

    Raises:
      DataError: as `neighbors.search`; k1, k2 or weight out of range.
    """
    asking = validation.embeddings(queries, name="queries")
    others = asking if gallery is queries else validation.embeddings(gallery, name="gallery")
    validation.same_width(asking, others)
    candidates = len(others) - bool(exclude_self)
    if not 0 < k <= candidates:
        raise DataError(f"k={k}: there are {candidates} candidates; k must be in 1..{candidates}")
    first = 0 if asking is others else len(asking)
    say = announce or (lambda text: None)
    say("re-ranking: neighbourhoods")
    encoding = encode(asking if asking is others else np.concatenate([asking, others]), k1=k1, k2=k2, weight=weight)
    say("re-ranking: plain lists")
    asked, found = encoding.rows[: len(asking)], encoding.rows[first:]
    far, near = neighbors.search(asked, asked if asking is others else found, k, exclude_self=exclude_self)
    say("re-ranking: shared neighbours")
    distances, indices = np.empty((len(asking), k), np.float32), np.empty((len(asking), k), np.int32)
    for block, shared in _shared(encoding.shares[: len(asking)], encoding.shares[first:]):
        if exclude_self:
            shared = _without_own(shared, block.start)
        distances[block], indices[block] = _merged(
            shared, near[block], far[block], asked[block], found, encoding.farthest[block], weight
        )
    return distances, indices


def encode(rows: Any, *, k1: int = K1, k2: int = K2, weight: float = WEIGHT) -> Encoding:
    """Encodes rows [N, D] by their neighbourhoods; arguments and errors as those of `search`."""
    points = validation.embeddings(rows, name="rows").astype(np.float32)
    count = len(points)
    if not 0 < k1 < count:
        raise DataError(f"k1={k1}: there are {count} rows, queries included; k1 must be in 1..{count - 1}")
    if not 0 < k2 <= k1 + 1:
        raise DataError(f"k2={k2}: must be in 1..{k1 + 1}, that is k1 + 1")
    if not 0 <= weight <= 1:
        raise DataError(f"weight={weight:g}: must be in 0..1")
    normalize(points)
    _, others = neighbors.search(points, points, k1, exclude_self=True)
    near = np.concatenate([np.arange(count, dtype=np.int32)[:, None], others], axis=1)
    # The row farthest from p is the one nearest to -p.
    farthest = (2 - neighbors.search(-points, points, 1)[0][:, 0]).astype(np.float32)
    farthest = np.where(farthest > 0, farthest, np.float32(1))
    close, half = _reciprocal(near), _reciprocal(near[:, : round(k1 / 2) + 1])
    sizes = np.diff(half.indptr)
    parts = []
    for start in range(0, count, ROWS):
        mine = close[start : start + ROWS]
        inside = (mine @ half.T).multiply(mine).tocsr()
        inside.data = (3 * inside.data > 2 * sizes[inside.indices]).astype(np.int32)
        grown = (mine + inside @ half).tocoo()
        kept = grown.data > 0
        row, column = grown.row[kept], grown.col[kept]
        values = np.exp(-_distances(points[start : start + ROWS], points, row, column) / farthest[start + row])
        share = sparse.csr_array((values, (row, column)), shape=mine.shape)
        parts.append(sparse.diags_array(1 / share.sum(axis=1), dtype=np.float32) @ share)
    shares = sparse.vstack(parts, format="csr")
    mean = sparse.csr_array(
        (np.full(count * k2, 1 / k2, np.float32), near[:, :k2].ravel(), np.arange(0, count * k2 + 1, k2)),
        shape=(count, count),
    )
    return Encoding(points, farthest, mean @ shares)


def _reciprocal(near: np.ndarray) -> sparse.csr_array:
    """R as a matrix of ones, sparse int32 [N, N], from N int [N, k]."""
    count, width = near.shape
    pairs = sparse.csr_array(
        (np.ones(near.size, np.int32), near.ravel(), np.arange(0, near.size + 1, width)), shape=(count, count)
    )
    return pairs.multiply(pairs.T.tocsr()).tocsr()


def _distances(left: np.ndarray, right: np.ndarray, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """1 - cos of pairs of unit rows: float32 [n]."""
    found = np.empty(len(row), np.float32)
    step = max(1, validation.ROWS_AT_ONCE // (8 * left.shape[1]))
    for start in range(0, len(row), step):
        part = slice(start, start + step)
        found[part] = 1 - np.einsum("nd,nd->n", left[row[part]], right[column[part]])
    return np.maximum(found, 0)


def _shared(queries: sparse.csr_array, gallery: sparse.csr_array) -> Iterator[tuple[slice, sparse.coo_array]]:
    """For some queries at a time, sum min(V(p), V(g)) where it is not zero: sparse [B, G]."""
    holders = gallery.tocsc()
    lengths = np.diff(holders.indptr)
    terms = np.concatenate([[0], np.cumsum(lengths[queries.indices])])[queries.indptr]
    start = 0
    while start < queries.shape[0]:
        end = max(start + 1, int(np.searchsorted(terms, terms[start] + TERMS, side="right")) - 1)
        part = queries[start:end]
        times = lengths[part.indices]
        row = np.repeat(np.repeat(np.arange(end - start), np.diff(part.indptr)), times)
        offset = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
        place = np.repeat(holders.indptr[part.indices], times) + offset
        least = np.minimum(np.repeat(part.data, times), holders.data[place])
        shape = (end - start, gallery.shape[0])
        yield slice(start, end), sparse.csr_array((least, (row, holders.indices[place])), shape=shape).tocoo()
        start = end


def _without_own(shared: sparse.coo_array, first: int) -> sparse.coo_array:
    kept = shared.col != shared.row + first
    return sparse.coo_array((shared.data[kept], (shared.row[kept], shared.col[kept])), shape=shared.shape)


def _merged(
    shared: sparse.coo_array,
    near: np.ndarray,
    far: np.ndarray,
    queries: np.ndarray,
    gallery: np.ndarray,
    farthest: np.ndarray,
    weight: float,
) -> tuple[np.ndarray, np.ndarray]:
    """The first k by d* of the plain list and of the rows that share something.

    Args:
      shared: sparse [B, G], sum min(V(p), V(g)).
      near, far: [B, k], the plain list and its 1 - cos.
      queries: [B, D]; gallery: [G, D], of unit length; farthest: [B].
    """
    count, k = near.shape
    width = len(gallery)
    listed = (np.arange(count)[:, None] * width + near).ravel()
    other = shared.row.astype(np.int64) * width + shared.col
    key = np.concatenate([listed, other])
    distance = np.concatenate([far.ravel(), _distances(queries, gallery, shared.row, shared.col)])
    overlap = np.concatenate([np.zeros(len(listed), np.float32), shared.data])
    # Of a row in both the list gives the distance and the other one the overlap.
    key, place, inverse = np.unique(key, return_index=True, return_inverse=True)
    overlap = np.bincount(inverse, overlap, len(key))
    row = key // width
    jaccard = 1 - overlap / (2 - overlap)
    result = ((1 - weight) * jaccard + weight * distance[place] / farthest[row]).astype(np.float32)
    order = np.lexsort((key, distance[place], result, row))  # who shares nothing stays in the plain order
    starts = np.searchsorted(row, np.arange(count))
    chosen = order[starts[:, None] + np.arange(k)[None, :]]
    return result[chosen], (key[chosen] % width).astype(np.int32)
