"""Exact ranks of the relevant gallery rows of every query, without sorting or a full similarity
matrix: the engine of `metrics.retrieval`.

A row is relevant to a query if it has the query's class; R is the number of relevant rows. The rank
of a relevant row is one plus the number of candidates that precede it: those with a larger score,
and those with an equal score and a lower index. A rank is therefore a count, and needs no sorting:

1. Queries and gallery are cut into tiles of rows (`tiles`). A device multiplies one pair of tiles
   at a time; the [Q, G] matrix of scores is never stored. The gallery is ordered by class, so that
   the scores of all relevant pairs lie in a few tiles near the diagonal.
2. A first pass over these tiles reads the score of every relevant row, the *threshold* of its rank
   (`count_ranks`).
3. A second pass over all tiles counts the candidates that precede each threshold
   (`counting_kernels`). Scores are compared as integers of the same order, which makes "larger, or
   equal with a lower index" a comparison with the threshold or the threshold minus one. Thresholds
   and scores come from the same compiled product, so duplicates tie exactly.
4. Where the queries are their own gallery the matrix is symmetric: only the tiles on and above the
   diagonal are multiplied, and each is used twice, for the queries in its columns and its rows.

The cost of counting grows with R, so classes with many rows are handled differently. Queries with
hundreds of relevant rows sort their row of scores on the host (`query_metrics`). `plan` chooses
between them and combines the results.

Rows that a query leaves out because they share its class and its group are targets, too: the rank
of every other target decreases by the number of those that precede it
(`count_ranks.without_omitted`). Queries whose relevant rows are not of one class are sorted.

Queries whose nearest relevant row is so close that rounding could decide are ranked once more, in
float64 on the host (`tiles`).
"""

from dml_jax.evaluation._engine.plan import rank, rank_by_distance
from dml_jax.evaluation._engine.query_metrics import RowFunction, Task, metrics_from_ranks

__all__ = ["RowFunction", "Task", "metrics_from_ranks", "rank", "rank_by_distance"]
