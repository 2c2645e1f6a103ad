"""Metrics of single queries from the ranks of their relevant rows."""

import numpy as np

UNUSED = np.iinfo(np.int32).max


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

    Args:
      ranks: as for `metrics_from_ranks`.
      ks: values of K.

    Returns:
      NaN for queries without a relevant row.
    """
    ranks = np.sort(np.where(ranks > 0, ranks, UNUSED), axis=1)
    used = ranks < UNUSED
    count = np.where(used.any(axis=1), used.sum(axis=1), np.nan)
    average = np.einsum("qr,qr->q", used, np.arange(1, ranks.shape[1] + 1)[None, :] / ranks) / count
    precisions = [np.where(used.any(axis=1), (ranks <= k).sum(axis=1) / k, np.nan) for k in ks]
    return np.stack([average, *precisions], axis=1)


def discounted_gains(grades: np.ndarray, ks: tuple[int, ...]) -> np.ndarray:
    """Normalised discounted cumulative gain at each K (Järvelin & Kekäläinen, TOIS 2002): float64 [len(ks)].

    NDCG@K = DCG@K / DCG@K of the best order, DCG@K = sum over the ranks i <= K of g_i / log2(i + 1).

    Args:
      grades: [G], by rank; 0 if not relevant.
      ks: values of K.

    Returns:
      NaN if no row is relevant.
    """
    positive = grades[grades > 0]
    if not len(positive):
        return np.full(len(ks), np.nan)
    best = np.sort(positive.astype(np.float64))[::-1]
    discounts = 1 / np.log2(np.arange(2, max(ks, default=0) + 2))
    return np.array([grades[:k] @ discounts[: len(grades[:k])] / (best[:k] @ discounts[: len(best[:k])]) for k in ks])
