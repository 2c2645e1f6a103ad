"""Agreement of a clustering with the classes: mutual information and pair counting.

Computed in NumPy float64 from the non-empty cells of the contingency table.
"""

import math
from typing import Literal, NamedTuple, get_args

import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import validation
from dml_jax.evaluation.validation import ArrayLike

Average = Literal["arithmetic", "geometric"]


class ContingencyTable(NamedTuple):
    """The non-empty cells of a contingency table."""

    counts: np.ndarray  # int64 [M], rows in each cell
    classes: np.ndarray  # int64 [M], class of each cell
    clusters: np.ndarray  # int64 [M], cluster of each cell
    class_sizes: np.ndarray  # int64 [C], rows of each class
    cluster_sizes: np.ndarray  # int64 [K], rows of each cluster


def contingency_table(labels: ArrayLike, assignments: ArrayLike) -> ContingencyTable:
    """Counts the rows that each class shares with each cluster."""
    classes = validation.labels(labels, len(np.atleast_1d(labels)), of="assignments")
    clusters = validation.labels(assignments, len(classes), name="assignments", of="labels")
    if not len(classes):
        raise DataError("labels are empty; a clustering needs at least one row")
    _, classes, class_sizes = np.unique(classes, return_inverse=True, return_counts=True)
    _, clusters, cluster_sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    cells, counts = np.unique(classes * len(cluster_sizes) + clusters, return_counts=True)
    classes, clusters = np.divmod(cells, len(cluster_sizes))
    return ContingencyTable(counts, classes, clusters, class_sizes, cluster_sizes)


def entropy(sizes: np.ndarray) -> float:
    """Shannon entropy in nats of group sizes [C]."""
    share = sizes / sizes.sum()
    return float(-np.sum(share * np.log(share)))


def mutual_information(cells: ContingencyTable) -> float:
    """I(class; cluster) in nats."""
    rows = cells.counts.sum()
    pointwise = np.log(cells.counts) + np.log(rows)
    class_sizes, cluster_sizes = cells.class_sizes, cells.cluster_sizes
    pointwise -= np.log(class_sizes[cells.classes]) + np.log(cluster_sizes[cells.clusters])
    return max(0.0, float(np.sum(cells.counts / rows * pointwise)))


def nmi(labels: ArrayLike, assignments: ArrayLike, *, average: Average = "arithmetic") -> float:
    """Normalised mutual information, I / mean(H(class), H(cluster)).

    Args:
      labels, assignments: int [N].
      average: mean of the two entropies. Most published numbers use the arithmetic mean, 2I / (H +
        H). The NMI with the geometric mean, I / sqrt(H H), is never smaller.

    Returns:
      A value in [0, 1]: 1 if there is a single class and a single cluster, 0 if only one of them is
      single.
    """
    validation.check_choice("average", average, get_args(Average))
    cells = contingency_table(labels, assignments)
    if len(cells.class_sizes) == len(cells.cluster_sizes) == 1:
        return 1.0
    information = mutual_information(cells)
    class_entropy, cluster_entropy = entropy(cells.class_sizes), entropy(cells.cluster_sizes)
    mean = _mean(class_entropy, cluster_entropy, average)
    return min(1.0, information / mean) if mean > 0 else 0.0


def nmi_stderr(
    labels: ArrayLike, assignments: ArrayLike, *, average: Average = "arithmetic"
) -> float:
    """Standard error of the NMI under resampling of rows, for a fixed clustering (delta method).

    With pointwise information i, surprisals h of a row's class and cluster, and the mean M of the
    entropies H, the influence of a row is f = (i - I - I dM / M) / M, and the standard error is
    sqrt(mean(f^2) / N). For the arithmetic mean, dM = (h_class - H_class + h_cluster - H_cluster) /
    2; for the geometric mean, dM = M (h_class / H_class + h_cluster / H_cluster - 2) / 2.
    """
    validation.check_choice("average", average, get_args(Average))
    cells = contingency_table(labels, assignments)
    rows = cells.counts.sum()
    entropies = entropy(cells.class_sizes), entropy(cells.cluster_sizes)
    mean = _mean(*entropies, average)
    if mean == 0:
        return 0.0
    sizes = cells.class_sizes[cells.classes], cells.cluster_sizes[cells.clusters]
    surprisals = tuple(-np.log(size / rows) for size in sizes)
    pointwise = np.log(cells.counts / rows) + surprisals[0] + surprisals[1]
    information = mutual_information(cells)
    weights = [mean / h if average == "geometric" else 1.0 for h in entropies]
    change = sum(w * (s - h) / 2 for w, s, h in zip(weights, surprisals, entropies, strict=True))
    influence = (pointwise - information - information * change / mean) / mean
    return float(np.sqrt(np.sum(cells.counts / rows * influence**2) / rows))


def _mean(class_entropy: float, cluster_entropy: float, average: Average) -> float:
    if average == "geometric":
        return float(np.sqrt(class_entropy * cluster_entropy))
    return (class_entropy + cluster_entropy) / 2


def ami(labels: ArrayLike, assignments: ArrayLike) -> float:
    """Adjusted mutual information, (I - E[I]) / ((H + H) / 2 - E[I]) (Vinh et al., JMLR 2010).

    The sum for E[I] has one term per row and distinct class size.

    Returns:
      1 for a perfect clustering, about 0 for a random one with any number of clusters.
    """
    cells = contingency_table(labels, assignments)
    if len(cells.counts) == len(cells.class_sizes) == len(cells.cluster_sizes):
        return 1.0
    chance = expected_information(cells)
    best = (entropy(cells.class_sizes) + entropy(cells.cluster_sizes)) / 2 - chance
    # As in scikit-learn when rounding decides, for example with one cluster per row.
    best = math.copysign(max(abs(best), float(np.finfo(np.float64).eps)), best)
    return (mutual_information(cells) - chance) / best


def expected_information(cells: ContingencyTable) -> float:
    """E[I] in nats over all clusterings with the same sizes of classes and clusters.

    A class of a rows and a cluster of b rows share n of all N rows with the hypergeometric
    probability C(a, n) C(N - a, b - n) / C(N, b). Classes, and clusters, of equal size contribute
    equally.
    """
    from scipy import special  # imported late, because it takes a quarter of a second

    rows = int(cells.counts.sum())
    factorial = special.gammaln(np.arange(1.0, rows + 2))  # ln n! for n = 0, …, N
    # The loop is over the side with fewer distinct sizes, the arrays over the other side.
    sides = (np.unique(sizes, return_counts=True) for sizes in cells[3:])
    (sizes_a, counts_a), (sizes_b, counts_b) = sorted(sides, key=lambda side: len(side[0]))
    total = 0.0
    for a, count in zip(sizes_a.tolist(), counts_a.tolist(), strict=True):
        least = np.maximum(1, a + sizes_b - rows)
        terms = np.minimum(a, sizes_b) - least + 1
        b = np.repeat(sizes_b, terms)
        first = np.repeat(np.cumsum(terms) - terms, terms)
        n = np.arange(len(b)) - first + np.repeat(least, terms)
        log_p = factorial[b] + factorial[rows - b] - (factorial[n] + factorial[a - n])
        log_p -= factorial[b - n] + factorial[rows - a - b + n]
        log_p += factorial[a] + factorial[rows - a]
        log_p -= factorial[rows]
        pointwise = n / rows * (np.log(n) + np.log(rows) - np.log(a) - np.log(b))
        total += count * float(np.sum(np.repeat(counts_b, terms) * pointwise * np.exp(log_p)))
    return total


def f1_pairs(labels: ArrayLike, assignments: ArrayLike) -> float:
    """F1 over pairs of rows: 2 (pairs that share both) / (pairs that share a class + a cluster).

    Returns:
      A value in [0, 1]; NaN if no two rows share a class or a cluster.
    """
    cells = contingency_table(labels, assignments)
    both, same_class, same_cluster = (
        float(np.sum(n * (n - 1.0))) for n in (cells.counts, cells.class_sizes, cells.cluster_sizes)
    )
    return 2 * both / (same_class + same_cluster) if same_class + same_cluster > 0 else float("nan")
