"""Batches for test-time refinement by message passing (Seidenschwarz et al., ICML 2021, appendices C.1 and C.2).

Either clusters replace the unknown classes, and batches are sampled from them as in training; or a batch consists of
chunks, each an anchor with its nearest neighbours. The defaults are the paper's (Table 8): 900 clusters for k-means,
Ward, spectral clustering and Birch; a neighbourhood radius of 0.9 and five neighbours for DBSCAN and OPTICS. Parameters
that the paper does not state keep scikit-learn's defaults.
"""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from dml_jax.config.sections import DENSITY_BASED, FIXED_COUNT
from dml_jax.errors import ConfigError, DataError, counted
from dml_jax.evaluation import neighbors

if TYPE_CHECKING:
    from sklearn.base import ClusterMixin

Algorithm = Literal["kmeans", "ward", "spectral", "birch", "dbscan", "optics"]
QUADRATIC_MEMORY = ("ward", "spectral", "dbscan")  # may store one value per pair of images
QUADRATIC_LIMIT = 20_000  # images, which take a few GiB


def check_options(kinds: Sequence[str], count: int, min_samples: int, images: int) -> None:
    """Raises ConfigError if a clustering in `kinds` (`evaluation.refine`) cannot handle this number of test images."""
    for kind in kinds:
        name, number = ("clusters", count) if kind in FIXED_COUNT else ("min_samples", min_samples)
        if kind in (*FIXED_COUNT, *DENSITY_BASED) and number > images:
            raise ConfigError(f"evaluation.refine_{name}={number}: must not exceed the {images} images")
        if kind in QUADRATIC_MEMORY and images > QUADRATIC_LIMIT:
            raise ConfigError(
                f"evaluation.refine={kind}: may need one value per pair of the {images:,} test images and is limited "
                f"to {QUADRATIC_LIMIT:,} images; remove it, or use kmeans, birch or optics"
            )


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
    points: np.ndarray,
    algorithm: Algorithm,
    *,
    count: int = 900,
    eps: float = 0.9,
    min_samples: int = 5,
    seed: int = 0,
) -> Clusters:
    """Clusters embeddings with scikit-learn.

    In one thread: in several, OPTICS waits for them most of the time where other programs use the cores.

    Args:
      points: float [N, D], rows of unit length.
      count: number of clusters, at most N ("kmeans", "ward", "spectral", "birch"; Birch may find fewer).
      eps: largest Euclidean distance between neighbours ("dbscan", "optics").
      min_samples: neighbours of a core point, including itself ("dbscan", "optics").
      seed: random seed of k-means and spectral clustering.
    """
    from threadpoolctl import threadpool_limits

    estimator = _estimator(algorithm, count, eps, min_samples, seed)  # loads the libraries that are limited
    with warnings.catch_warnings(), threadpool_limits(1):
        # scikit-learn warns if it finds fewer clusters than requested; the return value and the error below report it.
        warnings.simplefilter("ignore")
        try:
            labels = estimator.fit_predict(points)
        except (ValueError, np.linalg.LinAlgError) as error:
            raise DataError(f"evaluation.refine={algorithm}: clustering failed in scikit-learn ({error})") from error
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


def _estimator(algorithm: Algorithm, count: int, eps: float, min_samples: int, seed: int) -> "ClusterMixin":
    from sklearn import cluster

    return {
        "kmeans": cluster.KMeans(count, random_state=seed),
        "ward": cluster.AgglomerativeClustering(count),
        "spectral": cluster.SpectralClustering(count, assign_labels="discretize", random_state=seed),
        "birch": cluster.Birch(n_clusters=count),
        "dbscan": cluster.DBSCAN(eps=eps, min_samples=min_samples),
        "optics": cluster.OPTICS(max_eps=eps, min_samples=min_samples),
    }[algorithm]


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
