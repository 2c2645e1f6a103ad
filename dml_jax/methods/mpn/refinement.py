"""Batches for refinement by message passing at test time (Seidenschwarz et al., ICML 2021, app. C).

Clusters replace the unknown classes, and batches are sampled from them as in training (C.1); a
batch consists of chunks, each an anchor with its nearest neighbours (C.2); or a batch is a query
with its k-reciprocal neighbours (C.3). The defaults are the paper's (Table 8): 900 clusters for
k-means, Ward, spectral clustering and Birch; a neighbourhood radius of 0.9 and five neighbours for
DBSCAN and OPTICS. Parameters that the paper does not state have scikit-learn's defaults.

C.3 is the k-reciprocal encoding of Zhong et al. (CVPR 2017); N(q, k) are the k nearest of q:

    R(q, k) = {g in N(q, k): q in N(g, k)}
    E(q)    = R(q, k) and every R(g, k/2), g in R(q, k), with more than 2/3 of it in R(q, k)
    batch   = q, then E(q), then the other images, each nearest first, up to a fixed size

In the authors' code, N(q, k) has k + 1 images including q, and the fraction must exceed 2/3; in the
paper, N(q, k) excludes q, and a fraction of exactly 2/3 suffices. k/2 is rounded half to even.
"""

import warnings
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from scipy import sparse

from dml_jax.config import Config, Data
from dml_jax.data import samplers
from dml_jax.errors import ConfigError, DataError, counted
from dml_jax.evaluation import neighbors, reranking, validation
from dml_jax.evaluation.validation import ArrayLike

Rule = Literal["authors", "paper"]  # defines k-reciprocal neighbours
Algorithm = Literal["kmeans", "ward", "spectral", "birch", "dbscan", "optics"]
FIXED_COUNT = ("kmeans", "ward", "spectral", "birch")  # the user sets the number of clusters
DENSITY_BASED = ("dbscan", "optics")  # determine the number, and label outliers as noise
RECIPROCAL, NEIGHBORS = "reciprocal", "neighbors"
KINDS = (RECIPROCAL, NEIGHBORS, *FIXED_COUNT, *DENSITY_BASED)  # in `evaluation.refine`
QUADRATIC_MEMORY = ("ward", "spectral", "dbscan")  # may store one value per pair of images
QUADRATIC_LIMIT = 20_000  # images, which take a few GiB


def check_options(run: Config, images: int) -> None:
    """Raises ConfigError if a clustering of `evaluation.refine` cannot handle this many images."""
    for kind in run.evaluation.refine:
        name = "clusters" if kind in FIXED_COUNT else "min_samples"
        number, problem = getattr(run.method, name), ""
        if kind in (*FIXED_COUNT, *DENSITY_BASED) and number > images:
            problem = f"method.{name}={number}: must not exceed the number of images, {images}"
        if kind in QUADRATIC_MEMORY and images > QUADRATIC_LIMIT:
            limit = f"is limited to {QUADRATIC_LIMIT:,} images"
            problem = f"evaluation.refine={kind} {limit}; remove it, or use kmeans or birch"
        if problem:
            raise ConfigError(problem)


class Groups(NamedTuple):
    """Batches of images that exchange messages."""

    batches: np.ndarray  # int [B, S], rows of the embeddings; a row that occurs twice is two nodes
    # The first `refined` images of each batch are refined; the remaining images only send messages.
    # Every row of the embeddings is refined at least once; its first occurrence counts.
    refined: int


class Clusters(NamedTuple):
    """The result of a clustering."""

    labels: np.ndarray  # int64 [N], in 0..C-1; noise is a further cluster, as in the authors' code
    number: int  # of clusters, without noise
    noise: int  # number of images labelled as noise


def cluster(
    points: np.ndarray,
    algorithm: Algorithm,
    *,
    count: int = 900,
    eps: float = 0.9,
    min_samples: int = 5,
    seed: int = 0,
) -> Clusters:
    """Clusters embeddings float [N, D] of unit length with scikit-learn.

    It runs in a single thread, because OPTICS with several threads mostly waits if other programs
    use the cores.

    Args:
      count: number of clusters, at most N ("kmeans", "ward", "spectral", "birch"; Birch may find
        fewer).
      eps: largest Euclidean distance between neighbours ("dbscan", "optics").
      min_samples: neighbours of a core point, including itself ("dbscan", "optics").
    """
    from sklearn import cluster as clusterings  # before the limit, which needs loaded libraries
    from threadpoolctl import threadpool_limits

    estimators = {
        "kmeans": clusterings.KMeans(count, random_state=seed),
        "ward": clusterings.AgglomerativeClustering(count),
        "spectral": clusterings.SpectralClustering(
            count, assign_labels="discretize", random_state=seed
        ),
        "birch": clusterings.Birch(n_clusters=count),
        "dbscan": clusterings.DBSCAN(eps=eps, min_samples=min_samples),
        "optics": clusterings.OPTICS(max_eps=eps, min_samples=min_samples),
    }
    validation.check_choice("algorithm", algorithm, estimators)
    with warnings.catch_warnings(), threadpool_limits(1):
        # scikit-learn warns if it finds fewer clusters; the result and the error below report it.
        warnings.simplefilter("ignore")
        labels = estimators[algorithm].fit_predict(points)
    noise = int(np.sum(labels < 0))
    numbers, inverse = np.unique(labels, return_inverse=True)
    clusters = int(np.sum(numbers >= 0))
    if clusters < 2:
        remedy = "the embeddings are too close together"
        if algorithm in DENSITY_BASED:
            option = f"method.min_samples (={min_samples})"
            remedy = f"change method.eps (={eps}) or {option}"
        result = f"{counted(clusters, 'cluster')} and {counted(noise, 'image')} of noise"
        raise DataError(
            f"evaluation.refine={algorithm} found {result} among {len(points):,} images; {remedy}"
        )
    return Clusters(inverse.astype(np.int64), clusters, noise)


def neighbor_chunks(points: np.ndarray, *, chunk: int, chunks: int, seed: int = 0) -> Groups:
    """Batches of chunks, each an anchor and its nearest neighbours (C.2); every image is an anchor.

    Args:
      points: float [N, D], rows of unit length.
      chunk: images per chunk, including the anchor; at most N.
      chunks: chunks per batch. Anchors are shuffled with `seed`; the last batch is padded with the
        first anchors.
    """
    rows = len(points)
    order = np.random.default_rng(seed).permutation(rows)
    anchors = np.resize(order, (-(-rows // chunks), chunks))
    if chunk == 1:
        return Groups(anchors, chunks)
    _, nearest = neighbors.search(points, points, chunk - 1, exclude_self=True)
    neighbours = nearest[anchors].reshape(len(anchors), -1)
    return Groups(np.concatenate([anchors, neighbours], axis=1), chunks)


def batches_from_clusters(labels: np.ndarray, data: Data, seed: int) -> Groups:
    """Draws batches from clusters, int [N] in 0..C-1, as the authors' code draws them from classes
    in training."""
    size = data.images_per_class
    # Two clusters always fill two chunks or more.
    chunks = max(2, min(data.batch_size, len(labels)) // size)
    sampler = samplers.build(
        replace(data, sampler="chunks", batch_size=chunks * size), labels, seed
    )
    batches = [sampler.batch(step) for step in range(sampler.first_step(1))]
    return Groups(np.stack(batches), chunks * size)


def groups(kind: Any, points: np.ndarray, run: Config) -> tuple[Groups, dict[str, int]]:
    """Batches of embeddings [N, D] for one of KINDS except "reciprocal"; numbers of clusters and of
    noise images."""
    data, options = run.data, run.method
    if kind == NEIGHBORS:
        chunk, chunks = data.images_per_class, max(1, data.batch_size // data.images_per_class)
        sizes = {"chunk": min(chunk, len(points)), "chunks": chunks}
        return neighbor_chunks(points, **sizes, seed=run.seed), {}
    counts: Any = {"count": options.clusters, "min_samples": options.min_samples}
    clusters = cluster(points, kind, **counts, eps=options.eps, seed=run.seed)
    facts = {"clusters": clusters.number, "noise": clusters.noise}
    return batches_from_clusters(clusters.labels, data, run.seed), facts


class ReciprocalSets(NamedTuple):
    """Neighbourhoods of Q queries in a gallery of G rows; members have positive entries."""

    batches: np.ndarray  # int [Q, size], or all images if there are fewer
    reciprocal: sparse.csr_array  # [Q, G], R(q, k)
    reciprocal_half: sparse.csr_array  # [G, G], R(g, k/2)
    expanded: sparse.csr_array  # [Q, G], E(q)


def reciprocal_sets(
    queries: ArrayLike,
    gallery: ArrayLike | None = None,
    *,
    k: int,
    size: int,
    rule: Rule = "authors",
) -> ReciprocalSets:
    """Neighbourhoods and batches of all queries, without storing the full distance matrix.

    Args:
      queries: float [Q, D].
      gallery: float [G, D]; None if the queries search each other.
      k: neighbourhood size.
      size: images per batch. A batch begins with the query; Q + g denotes row g of a gallery.
    """
    validation.check_choice("rule", rule, get_args(Rule))
    one_set = gallery is None
    rows = np.asarray(queries)
    candidates = rows if gallery is None else np.asarray(gallery)

    def nearest(a: np.ndarray, b: np.ndarray, count: int) -> np.ndarray:
        """The `count` nearest rows in `b`, if any, without the row itself: int32 [len(a), _]."""
        count = min(count, len(b) - (a is b))
        if count == 0:
            return np.empty((len(a), 0), np.int32)
        return neighbors.search(a, b, count, metric="euclidean", exclude_self=a is b)[1]

    def neighbourhoods(ranking: np.ndarray, k: int, *, one_set: bool) -> np.ndarray:
        """N(q, k) from the ranking of each query."""
        if rule == "paper":
            return ranking[:, :k]
        if not one_set:
            return ranking[:, : k + 1]
        return np.column_stack([np.arange(len(ranking)), ranking[:, :k]])

    ranking = nearest(rows, candidates, max(k + 1, size - 1))
    within, back = ranking, ranking
    if not one_set:
        within, back = nearest(candidates, candidates, k), nearest(candidates, rows, k + 1)
    half = neighbourhoods(within, round(k / 2), one_set=True)
    reciprocal_half = reranking.mutual(half, half)
    both = (neighbourhoods(order, k, one_set=one_set) for order in (ranking, back))
    reciprocal = reranking.mutual(*both)
    expanded = reranking.expanded(reciprocal, reciprocal_half, inclusive=rule == "paper")
    if one_set and rule == "paper":
        expanded.setdiag(0)
        expanded.eliminate_zeros()
    batches = []
    is_member = np.zeros(len(candidates), bool)  # in E(q)
    for query, nearest_first in enumerate(ranking[:, : size - 1].astype(np.int64)):
        members = expanded.indices[slice(*expanded.indptr[query : query + 2])]
        is_member[members] = True
        further = nearest_first[~is_member[nearest_first]]
        is_member[members] = False
        if one_set:
            members = members[members != query]
        squares = np.sum((candidates[members].astype(np.float64) - rows[query]) ** 2, axis=1)
        batch = np.concatenate([members[np.lexsort((members, squares))], further])
        batch = batch[: len(nearest_first)] + (0 if one_set else len(rows))
        batches.append([query, *batch])
    return ReciprocalSets(np.array(batches), reciprocal, reciprocal_half, expanded)
