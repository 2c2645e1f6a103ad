"""Metrics of single queries from the ranks of their relevant rows."""

from typing import NamedTuple

import numpy as np

UNUSED = np.iinfo(np.int32).max


class QueryResults(NamedTuple):
    """Metrics of Q queries; NaN if they are undefined without a relevant row.

    Attributes:
      first_rank: int32 [Q], 1-based rank of the nearest relevant row, 0 if there is none.
      r_precision: float64 [Q].
      average_precision: float64 [Q], average precision at R.
      relevant: int64 [Q], R, the number of relevant rows.
      nearest: float64 [Q], score of the nearest relevant row.
      full: float64 [Q, 1 + len(ks)], see `full_ranking`; None if it is not wanted.
    """

    first_rank: np.ndarray
    r_precision: np.ndarray
    average_precision: np.ndarray
    relevant: np.ndarray
    nearest: np.ndarray
    full: np.ndarray | None

    @classmethod
    def undefined(cls, queries: int, full_ks: tuple[int, ...] | None) -> "QueryResults":
        """Results of queries without relevant rows; K of the precision at K, None without the whole ranking."""
        precision, average, nearest = np.full((3, queries), np.nan)
        full = None if full_ks is None else np.full((queries, 1 + len(full_ks)), np.nan)
        return cls(np.zeros(queries, np.int32), precision, average, np.zeros(queries, np.int64), nearest, full)


def metrics_from_ranks(ranks: np.ndarray, relevant: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First rank, R-precision and average precision at R of each query.

    R-precision = (1/R) #{rank <= R}; average precision at R = (1/R) sum over the i-th such rank r_i of i / r_i
    (Musgrave et al., ECCV 2020, section 4.1).

    Args:
      ranks: int [Q, W], ranks of the relevant rows in any order; 0 or less for unused entries.
      relevant: int [Q], R.

    Returns:
      int [Q] (0 if there is no relevant row), float64 [Q] and float64 [Q] (NaN if there is none).
    """
    ranks = np.sort(np.where(ranks > 0, ranks, UNUSED), axis=1)
    within = ranks <= relevant[:, None]
    divisor = np.where(relevant > 0, relevant, np.nan)
    precision_at_rank = np.arange(1, ranks.shape[1] + 1)[None, :] / ranks
    average = np.einsum("qr,qr->q", within, precision_at_rank) / divisor
    return np.where(ranks[:, 0] < UNUSED, ranks[:, 0], 0), within.sum(axis=1) / divisor, average


def full_ranking(ranks: np.ndarray, ks: tuple[int, ...]) -> np.ndarray:
    """Average precision over the whole ranking, then precision at each K: float64 [Q, 1 + len(ks)].

    Average precision = mean over the relevant rows, the i-th at rank r_i, of i / r_i; precision at K = #{r_i <= K} / K.

    NaN for queries without a relevant row; `ranks` as for `metrics_from_ranks`.
    """
    ranks = np.sort(np.where(ranks > 0, ranks, UNUSED), axis=1)
    used = ranks < UNUSED
    count = np.where(used.any(axis=1), used.sum(axis=1), np.nan)
    average = np.einsum("qr,qr->q", used, np.arange(1, ranks.shape[1] + 1)[None, :] / ranks) / count
    precisions = [np.where(used.any(axis=1), (ranks <= k).sum(axis=1) / k, np.nan) for k in ks]
    return np.stack([average, *precisions], axis=1)
