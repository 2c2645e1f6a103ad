"""Batches for test-time refinement by message passing (Seidenschwarz et al., ICML 2021, appendix C).

Clusters replace the unknown classes, and batches are sampled from them as in training (C.1); or a batch consists of
chunks, each an anchor with its nearest neighbours (C.2), or of a query and its k-reciprocal neighbours (C.3). The
defaults are the paper's (Table 8): 900 clusters for k-means, Ward, spectral clustering and Birch; a neighbourhood
radius of 0.9 and five neighbours for DBSCAN and OPTICS. Parameters that the paper does not state keep scikit-learn's
defaults.

C.3 is based on the k-reciprocal encoding of Zhong et al. (CVPR 2017), with N(q, k) the k nearest neighbours of q:

    R(q, k) = {g in N(q, k): q in N(g, k)}
    E(q)    = R(q, k) and every R(g, k/2), g in R(q, k), with more than 2/3 of it in R(q, k)
    batch   = q, then the nearest of E(q), then the nearest of all others, up to a fixed size

In the authors' code, N(q, k) holds k + 1 images including q, and the fraction must exceed 2/3; in the paper, N(q, k)
excludes q, and a fraction of exactly 2/3 suffices. k/2 is rounded half to even.
"""

import functools
import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.config.sections import DENSITY_BASED, FIXED_COUNT
from dml_jax.errors import ConfigError, DataError, counted
from dml_jax.evaluation import neighbors
from dml_jax.numerics import at_least_float32

Rule = Literal["authors", "paper"]  # of k-reciprocal neighbours
Algorithm = Literal["kmeans", "ward", "spectral", "birch", "dbscan", "optics"]
QUADRATIC_MEMORY = ("ward", "spectral", "dbscan")  # may store one value per pair of images
BLOCK = 128  # queries whose distances to the whole gallery are in memory at once
QUADRATIC_LIMIT = 20_000  # images, which take a few GiB


def check_options(kinds: Sequence[str], count: int, min_samples: int, images: int) -> None:
    """Raises ConfigError if a clustering in `kinds` (`evaluation.refine`) cannot handle this number of test images."""
    for kind in kinds:
        name, number = ("clusters", count) if kind in FIXED_COUNT else ("min_samples", min_samples)
        problem = ""
        if kind in (*FIXED_COUNT, *DENSITY_BASED) and number > images:
            problem = f"refine_{name}={number}: must not exceed the {images} images"
        if kind in QUADRATIC_MEMORY and images > QUADRATIC_LIMIT:
            problem = f"refine={kind}: is limited to {QUADRATIC_LIMIT:,} images; remove it, or use kmeans or birch"
        if problem:
            raise ConfigError(f"evaluation.{problem}")


class Groups(NamedTuple):
    """Batches of images that exchange messages."""

    batches: np.ndarray  # int [B, S], row indices of the embeddings; an index that occurs twice is two nodes
    # The first `refined` images of each batch are refined, the others only send messages. Every row of the embeddings
    # is refined at least once; its first occurrence is used.
    refined: int


class Clusters(NamedTuple):
    """The result of a clustering."""

    labels: np.ndarray  # int64 [N], in 0..C-1 without gaps; noise forms one more cluster, as in the authors' code
    found: int  # number of clusters, not counting noise
    noise: int  # number of images labelled as noise


def cluster(
    points: np.ndarray, algorithm: Algorithm, *, count: int = 900, eps: float = 0.9, min_samples: int = 5, seed: int = 0
) -> Clusters:
    """Clusters embeddings float [N, D] of unit length with scikit-learn.

    In one thread: in several, OPTICS waits for them most of the time where other programs use the cores.

    Args:
      count: number of clusters, at most N ("kmeans", "ward", "spectral", "birch"; Birch may find fewer).
      eps: largest Euclidean distance between neighbours ("dbscan", "optics").
      min_samples: neighbours of a core point, including itself ("dbscan", "optics").
    """
    from sklearn import cluster as clusterings  # loads the libraries that are limited
    from threadpoolctl import threadpool_limits

    estimator = {
        "kmeans": clusterings.KMeans(count, random_state=seed),
        "ward": clusterings.AgglomerativeClustering(count),
        "spectral": clusterings.SpectralClustering(count, assign_labels="discretize", random_state=seed),
        "birch": clusterings.Birch(n_clusters=count),
        "dbscan": clusterings.DBSCAN(eps=eps, min_samples=min_samples),
        "optics": clusterings.OPTICS(max_eps=eps, min_samples=min_samples),
    }[algorithm]
    with warnings.catch_warnings(), threadpool_limits(1):
        # scikit-learn warns if it finds fewer clusters than requested; the return value and the error below report it.
        warnings.simplefilter("ignore")
        labels = estimator.fit_predict(points)
    noise = int(np.sum(labels < 0))
    numbers, inverse = np.unique(labels, return_inverse=True)
    found = int(np.sum(numbers >= 0))
    if found < 2:
        remedy = "the embeddings are too close together"
        if algorithm in DENSITY_BASED:
            remedy = f"set another evaluation.refine_eps (={eps}) or evaluation.refine_min_samples (={min_samples})"
        raise DataError(
            f"evaluation.refine={algorithm}: finds {counted(found, 'cluster')} and {counted(noise, 'image')} of noise "
            f"among {len(points):,} images; {remedy}"
        )
    return Clusters(inverse.astype(np.int64), found, noise)


def neighbor_chunks(points: np.ndarray, *, chunk: int, chunks: int, seed: int = 0) -> Groups:
    """Batches of chunks, each an anchor and its nearest neighbours; every image is an anchor (appendix C.2).

    Args:
      points: float [N, D], rows of unit length.
      chunk: images per chunk, including the anchor; at most N.
      chunks: chunks per batch. Anchors are shuffled with `seed`; the last batch is padded with the first anchors.
    """
    rows = len(points)
    order = np.random.default_rng(seed).permutation(rows)
    anchors = np.resize(order, (-(-rows // chunks), chunks))
    if chunk == 1:
        return Groups(anchors, chunks)
    _, nearest = neighbors.search(points, points, chunk - 1, exclude_self=True)
    return Groups(np.concatenate([anchors, nearest[anchors].reshape(len(anchors), -1)], axis=1), chunks)


class ReciprocalSets(NamedTuple):
    """Neighbourhoods of Q queries in a gallery of G rows."""

    batches: jax.Array  # int32 [Q, size]
    near: jax.Array  # int32 [Q, k or k + 1], N(q, k), nearest first
    reciprocal: jax.Array  # bool, same shape as `near`: which of them are in R(q, k)
    near_half: jax.Array  # int32 [G, k/2 or k/2 + 1], N(g, k/2) within the gallery
    reciprocal_half: jax.Array  # bool, same shape as `near_half`: which of them are in R(g, k/2)
    expanded: jax.Array | None  # bool [Q, G], E(q); None unless requested


def _nearness(query: jax.Array, gallery: jax.Array, itself: jax.Array) -> jax.Array:
    """Negative squared Euclidean distances [G] up to a constant; infinite for row `itself` (-1: none)."""
    product = jnp.matmul(gallery, query, precision=lax.Precision.HIGHEST)
    return jnp.where(jnp.arange(len(gallery)) == itself, jnp.inf, 2 * product - jnp.sum(gallery * gallery, axis=1))


def _ranking(queries: jax.Array, gallery: jax.Array, itself: jax.Array, count: int) -> jax.Array:
    """Indices int32 [Q, count], nearest first, ties broken by lower index."""

    def one(row: tuple[jax.Array, jax.Array]) -> jax.Array:
        return lax.top_k(_nearness(row[0], gallery, row[1]), min(count, len(gallery)))[1]

    return lax.map(one, (queries, itself), batch_size=BLOCK)


def _mutual(forward: jax.Array, backward: jax.Array) -> jax.Array:
    """Which neighbours `forward` [Q, k] have the query among their own neighbours `backward` [G, k']: bool [Q, k]."""

    def one(row: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (backward[row[1]] == row[0]).any(axis=1)

    return lax.map(one, (jnp.arange(len(forward)), forward), batch_size=BLOCK)


@functools.partial(jax.jit, static_argnames=("k", "size", "rule", "dense"))
def reciprocal_sets(
    queries: jax.Array,
    gallery: jax.Array | None = None,
    *,
    k: int,
    size: int,
    rule: Rule = "authors",
    dense: bool = False,
) -> ReciprocalSets:
    """Neighbourhoods and batches of all queries, without storing the full distance matrix.

    Args:
      queries: float [Q, D].
      gallery: float [G, D]; None if the queries search each other.
      k: neighbourhood size.
      size: images per batch. Batches begin with the query; gallery row g is denoted by Q + g if there is a gallery.
      dense: also return the expanded sets, Q×G booleans.
    """
    among_themselves = gallery is None
    queries = at_least_float32(queries)
    gallery = queries if gallery is None else at_least_float32(gallery)
    rows = jnp.arange(len(gallery))
    itself = rows if among_themselves else jnp.full(len(queries), -1)
    half = round(k / 2)

    def top(ranking: jax.Array, k: int, includes_query: bool) -> jax.Array:
        if rule == "authors":
            return ranking[:, : k + 1]
        return ranking[:, 1 : k + 1] if includes_query else ranking[:, :k]

    ranking = _ranking(queries, gallery, itself, max(k + 1, size))
    near = top(ranking, k, among_themselves)
    if among_themselves:
        back, within = near, ranking
    else:
        back = top(_ranking(gallery, queries, jnp.full_like(rows, -1), k + 1), k, False)
        within = _ranking(gallery, gallery, rows, half + 1)
    near_half = top(within, half, True)
    reciprocal, reciprocal_half = _mutual(near, back), _mutual(near_half, near_half)
    length = min(size if among_themselves else size - 1, len(gallery))

    def one(row: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array | None]:
        query, own, nearest, neighbours, mutual = row
        members = jnp.zeros(len(gallery), bool).at[neighbours].set(mutual)
        further, valid = near_half[neighbours], reciprocal_half[neighbours] & mutual[:, None]
        shared, bound = 3 * jnp.sum(members[further] & valid, axis=1), 2 * jnp.sum(valid, axis=1)
        joins = shared > bound if rule == "authors" else shared >= bound
        expanded = members.at[further].max(valid & joins[:, None])
        if rule == "paper":
            expanded &= rows != own
        first = expanded | (rows == own)
        value, order = lax.top_k(jnp.where(first, _nearness(query, gallery, own), -jnp.inf), length)
        candidates = jnp.concatenate([order, nearest[:length]])
        usable = jnp.concatenate([value > -jnp.inf, ~first[nearest[:length]]])
        batch = candidates[jnp.argsort(~usable, stable=True)[:length]]
        return batch, expanded if dense else None

    batches, expanded = lax.map(one, (queries, itself, ranking, near, reciprocal), batch_size=BLOCK)
    if not among_themselves:
        batches = jnp.concatenate([jnp.arange(len(queries))[:, None], batches + len(queries)], axis=1)
    return ReciprocalSets(batches, near, reciprocal, near_half, reciprocal_half, expanded)
