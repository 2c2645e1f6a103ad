"""How well a clustering agrees with the classes: mutual information and pair counting.

All in NumPy float64, from the table of (class, cluster) pairs that occur, never the whole table.
"""

from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import gammaln

from dml_jax.errors import DataError
from dml_jax.evaluation import validation


class Table(NamedTuple):
    """The non-empty cells of a contingency table.

    Attributes:
      counts: int64 [M], rows in each cell.
      classes: int64 [M], class of each cell; clusters: its cluster.
      class_sizes: int64 [C]; cluster_sizes: int64 [K].
    """

    counts: np.ndarray
    classes: np.ndarray
    clusters: np.ndarray
    class_sizes: np.ndarray
    cluster_sizes: np.ndarray


def table(labels: Any, assignments: Any) -> Table:
    """Counts how many rows each class shares with each cluster.

    Raises:
      DataError: not integers, not vectors, empty, or of different lengths.
    """
    given = validation.labels(labels, len(np.atleast_1d(labels)))
    if len(given) == 0:
        raise DataError("labels: is empty; give at least one row")
    found = validation.labels(assignments, len(given), name="assignments", of="labels")
    _, given, class_sizes = np.unique(given, return_inverse=True, return_counts=True)
    _, found, cluster_sizes = np.unique(found, return_inverse=True, return_counts=True)
    cells, counts = np.unique(given * len(cluster_sizes) + found, return_counts=True)
    return Table(counts, cells // len(cluster_sizes), cells % len(cluster_sizes), class_sizes, cluster_sizes)


def entropy(sizes: np.ndarray) -> float:
    """Shannon entropy in nats of group sizes [C]."""
    share = sizes / sizes.sum()
    return float(-np.sum(share * np.log(share)))


def mutual_information(cells: Table) -> float:
    """I(class; cluster) in nats."""
    rows = cells.counts.sum()
    pointwise = np.log(cells.counts) + np.log(rows)
    pointwise -= np.log(cells.class_sizes[cells.classes]) + np.log(cells.cluster_sizes[cells.clusters])
    return max(0.0, float(np.sum(cells.counts / rows * pointwise)))


def nmi(labels: Any, assignments: Any, *, average: Literal["arithmetic", "geometric"] = "arithmetic") -> float:
    """Normalised mutual information, I / mean(H(class), H(cluster)).

    Args:
      labels: int [N], the classes.
      assignments: int [N], the clusters.
      average: how the two entropies are averaged. Arithmetic, 2I / (H + H), is what most published numbers rest on;
        geometric, I / sqrt(H H), is never smaller.

    Returns:
      In [0, 1]; 1 where both sides have one group only, 0 where just one side has.

    Raises:
      DataError: not integers, not vectors, empty, or of different lengths.
    """
    cells = table(labels, assignments)
    if len(cells.class_sizes) == len(cells.cluster_sizes) == 1:
        return 1.0
    information = mutual_information(cells)
    given, found = entropy(cells.class_sizes), entropy(cells.cluster_sizes)
    mean = (given + found) / 2 if average == "arithmetic" else float(np.sqrt(given * found))
    return min(1.0, information / mean) if mean > 0 else 0.0


def nmi_stderr(labels: Any, assignments: Any) -> float:
    """Standard error of the arithmetic NMI when rows are resampled and the clustering held fixed (delta method).

    With pointwise information i, surprisals h of a row's class and cluster, and S = H(class) + H(cluster), the
    influence of a row is f = 2 ((i - I) S - I (h_class + h_cluster - S)) / S^2, the error sqrt(mean(f^2) / N).

    Raises:
      DataError: as `nmi`.
    """
    cells = table(labels, assignments)
    rows = cells.counts.sum()
    total = entropy(cells.class_sizes) + entropy(cells.cluster_sizes)
    if total == 0:
        return 0.0
    given = -np.log(cells.class_sizes[cells.classes] / rows)
    found = -np.log(cells.cluster_sizes[cells.clusters] / rows)
    pointwise = np.log(cells.counts / rows) + given + found
    information = mutual_information(cells)
    influence = 2 * ((pointwise - information) * total - information * (given + found - total)) / total**2
    return float(np.sqrt(np.sum(cells.counts / rows * influence**2) / rows))


def ami(labels: Any, assignments: Any) -> float:
    """Adjusted mutual information, (I - E[I]) / (mean(H, H) - E[I]) (Vinh, Epps & Bailey, JMLR 2010), arithmetic mean.

    Args:
      labels: int [N], the classes.
      assignments: int [N], the clusters.

    Returns:
      1 for a perfect clustering, about 0 for a random one of any number of clusters.

    Raises:
      DataError: not integers, not vectors, empty, or of different lengths.
    """
    cells = table(labels, assignments)
    groups, rows = (len(cells.class_sizes), len(cells.cluster_sizes)), int(cells.counts.sum())
    if groups in ((1, 1), (rows, rows)):
        return 1.0
    chance = expected_information(cells.class_sizes, cells.cluster_sizes)
    mean = (entropy(cells.class_sizes) + entropy(cells.cluster_sizes)) / 2
    tiny = np.finfo(np.float64).eps
    room = mean - chance
    room = min(room, -tiny) if room < 0 else max(room, tiny)
    return float((mutual_information(cells) - chance) / room)


def expected_information(class_sizes: np.ndarray, cluster_sizes: np.ndarray) -> float:
    """E[I] in nats of two random groupings with the given group sizes (hypergeometric model).

    The sum over a cell depends on its two sizes alone, so equal sizes are summed once.
    """
    rows = int(class_sizes.sum())
    a, a_times = np.unique(class_sizes, return_counts=True)
    b, b_times = np.unique(cluster_sizes, return_counts=True)
    total = 0.0
    for size, times in zip(a.tolist(), a_times.tolist(), strict=True):
        n = np.arange(1, size + 1)[None, :]
        other = b[:, None]
        possible = (n <= other) & (n >= size + other - rows)
        shared = np.where(possible, n, np.minimum(size, other))
        log_chance = gammaln(size + 1) + gammaln(other + 1) - gammaln(rows + 1)
        log_chance = log_chance + gammaln(rows - size + 1) + gammaln(rows - other + 1)
        log_chance = log_chance - gammaln(shared + 1) - gammaln(size - shared + 1) - gammaln(other - shared + 1)
        log_chance = log_chance - gammaln(rows - size - other + shared + 1)
        term = shared / rows * (np.log(rows) + np.log(shared) - np.log(size) - np.log(other)) * np.exp(log_chance)
        total += times * float(np.sum(b_times[:, None] * np.where(possible, term, 0)))
    return total


def f1_pairs(labels: Any, assignments: Any) -> float:
    """F1 over pairs of rows: 2 TP / (pairs in one class + pairs in one cluster), TP being pairs in both.

    Args:
      labels: int [N], the classes.
      assignments: int [N], the clusters.

    Returns:
      In [0, 1]; NaN where neither side has a pair.

    Raises:
      DataError: not integers, not vectors, empty, or of different lengths.
    """
    cells = table(labels, assignments)
    both, given, found = (float(np.sum(s * (s - 1.0))) for s in (cells.counts, cells.class_sizes, cells.cluster_sizes))
    return 2 * both / (given + found) if given + found > 0 else float("nan")
