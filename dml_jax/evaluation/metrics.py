"""Retrieval and clustering metrics of any embeddings."""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import arrays
from dml_jax.evaluation.clustering import ami, f1_pairs, nmi, nmi_stderr
from dml_jax.evaluation.geometry import density, singular_values, spectral_decay

__all__ = [
    "ami",
    "density",
    "f1_pairs",
    "nmi",
    "nmi_stderr",
    "retrieval",
    "singular_values",
    "spectral_decay",
]


def retrieval(
    queries: Any,
    labels: Any,
    *,
    ks: tuple[int, ...] = (1, 2, 4, 8),
    metric: Literal["cosine", "euclidean"] = "cosine",
    gallery: Any = None,
    gallery_labels: Any = None,
    exclude_self: bool | None = None,
    exclusion: Literal["index", "position"] = "index",
    per_query: bool = False,
) -> dict[str, Any]:
    """Recall@K, R-precision and MAP@R (Musgrave et al., ECCV 2020), exact, ties to the lower index.

    Args:
      queries: [Q, D] real numbers.
      labels: int [Q].
      ks: which K of Recall@K.
      metric: distance that ranks the gallery.
      gallery: [G, D] to search instead of the queries themselves.
      gallery_labels: int [G].
      exclude_self: whether query i must not find gallery row i; by default where the queries are the gallery.
      exclusion: the query left out by its index, or, as the authors' codes did, whatever comes first left out.
      per_query: also return "rank" (1-based, of the nearest relevant row, 0 if none), "r_precision_per_query" and
        "map@r_per_query" (NaN where a query has no relevant row).

    Returns:
      "recall@K" (a query without a relevant row is a miss), "r_precision", "map@r" (means over queries that have one;
      NaN if none has), each with "..._stderr", and "lone_queries", how many queries have no relevant row.

    Raises:
      DataError: wrong shapes or types, rows that are not finite, K larger than the number of candidates.
    """
    points = arrays.embeddings(queries, name="queries")
    classes = arrays.labels(labels, len(points), of="queries")
    if (gallery is None) != (gallery_labels is None):
        raise DataError("gallery and gallery_labels: give both or neither")
    if exclude_self is None:
        exclude_self = gallery is None
    if gallery is None:
        others, other_classes = points, classes
    else:
        others = arrays.embeddings(gallery, name="gallery")
        other_classes = arrays.labels(gallery_labels, len(others), name="gallery_labels", of="gallery")
        if others.shape[1] != points.shape[1]:
            raise DataError(
                f"gallery: {others.shape[1]} columns, queries have {points.shape[1]}; they must agree"
            )
    candidates = len(others) - exclude_self
    for k in ks:
        if not 0 < k <= candidates:
            raise DataError(f"ks: K={k} with {candidates} candidates; K must be in 1..{candidates}")
    dtype = arrays.working(points)
    first, r_precision, average = ranked(
        points.astype(dtype), classes, others.astype(dtype), other_classes, metric, exclude_self, exclusion
    )
    hits = {f"recall@{k}": (first > 0) & (first <= k) for k in ks}
    result: dict[str, Any] = {}
    for name, hit in hits.items():
        result[name] = float(hit.mean())
        result[f"{name}_stderr"] = float(np.sqrt(hit.mean() * (1 - hit.mean()) / len(hit)))
    has = first > 0
    for name, values in (("r_precision", r_precision), ("map@r", average)):
        kept = values[has]
        result[name] = float(kept.mean()) if len(kept) else float("nan")
        result[f"{name}_stderr"] = float(kept.std() / np.sqrt(len(kept))) if len(kept) else float("nan")
    result["lone_queries"] = int((~has).sum())
    if per_query:
        result |= {"rank": first, "r_precision_per_query": r_precision, "map@r_per_query": average}
    return result


def ranked(
    queries: np.ndarray,
    labels: np.ndarray,
    gallery: np.ndarray,
    gallery_labels: np.ndarray,
    metric: str,
    exclude_self: bool,
    exclusion: str,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rank of the nearest relevant row, R-precision and average precision at R of every query."""
    codes = np.unique(np.concatenate([labels, gallery_labels]), return_inverse=True)[1].astype(np.int32)
    mine, theirs = codes[: len(labels)], jnp.asarray(codes[len(labels) :])
    if metric == "cosine":
        queries, gallery = (
            x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(x.dtype).tiny)
            for x in (queries, gallery)
        )
    candidates, parts = jnp.asarray(gallery), []
    step = 256
    for start in range(0, len(queries), step):
        rows = np.minimum(np.arange(start, start + step), len(queries) - 1)
        out = judge_rows(
            queries[rows],
            mine[rows],
            candidates,
            theirs,
            rows.astype(np.int32),
            metric,
            exclude_self,
            exclusion,
        )
        parts.append([np.asarray(x)[: len(queries) - start] for x in out])
    first, precision, average = (np.concatenate(x) for x in zip(*parts, strict=True))
    return first, precision, average


@partial(jax.jit, static_argnames=("metric", "exclude_self", "exclusion"))
def judge_rows(
    queries: jax.Array,
    labels: jax.Array,
    gallery: jax.Array,
    gallery_labels: jax.Array,
    index: jax.Array,
    metric: str,
    exclude_self: bool,
    exclusion: str,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One block of queries against the whole gallery, by sorting."""
    far = -jnp.matmul(queries, gallery.T, precision=jax.lax.Precision.HIGHEST)
    if metric == "euclidean":
        far = (
            2 * far
            + jnp.sum(gallery * gallery, axis=1)[None, :]
            + jnp.sum(queries * queries, axis=1)[:, None]
        )
    columns = jnp.arange(gallery.shape[0], dtype=jnp.int32)
    relevant = labels[:, None] == gallery_labels[None, :]
    own = columns[None, :] == index[:, None]
    total = jnp.sum(relevant, axis=1)
    if exclude_self:
        total = total - 1
        if exclusion == "index":
            far = jnp.where(own, jnp.inf, far)
            relevant = relevant & ~own
    _, hits = jax.lax.sort((far, relevant), num_keys=1, is_stable=True)
    if exclude_self and exclusion == "position":
        hits = hits[:, 1:]
    place = jnp.arange(1, hits.shape[1] + 1)[None, :]
    within = hits & (place <= total[:, None])
    any_hit = jnp.any(hits, axis=1)
    first = jnp.where(any_hit, jnp.argmax(hits, axis=1) + 1, 0)
    exact = jnp.where(total > 0, total, jnp.nan)
    precision = jnp.sum(within, axis=1) / exact
    average = jnp.sum(jnp.where(within, jnp.cumsum(hits, axis=1) / place, 0), axis=1) / exact
    return first, precision, average
