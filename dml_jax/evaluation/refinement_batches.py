"""Batches of test images that a network passes messages among (Seidenschwarz et al., ICML 2021, appendix C.1, C.2).

Clusters stand for the unknown classes there, and batches are drawn from them as in training; or a batch holds chunks
of an anchor and its nearest neighbours. The paper's parameters (its Table 8): 900 clusters for k-means, Ward, spectral
clustering and Birch; neighbours at most 0.9 apart and five of them for DBSCAN and OPTICS. What it does not say is
scikit-learn's default.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from dml_jax.errors import ConfigError, DataError
from dml_jax.evaluation import neighbors

COUNTED = ("kmeans", "ward", "spectral", "birch")  # find as many clusters as they are told to
DENSE = ("dbscan", "optics")  # find as many as there are, and noise
QUADRATIC = ("ward", "spectral", "dbscan")  # may hold something for every pair of images
PAIRED = 20_000  # images that these take: some GiB
Clustering = Literal["kmeans", "ward", "spectral", "birch", "dbscan", "optics"]


def check(kinds: Sequence[str], count: int, min_samples: int, images: int) -> None:
    """Raises ConfigError where so many images cannot be grouped in one of these ways.

    Args:
      kinds: of `config.Evaluation.refine`.
      count: clusters to find.
      min_samples: as in `clusters`.
      images: N.
    """
    for kind in kinds:
        if kind in COUNTED and count > images:
            raise ConfigError(f"evaluation.refine_clusters={count}: {kind} cannot find more than the {images} images")
        if kind in DENSE and min_samples > images:
            raise ConfigError(f"evaluation.refine_min_samples={min_samples}: there are only {images} images")
        if kind in QUADRATIC and images > PAIRED:
            raise ConfigError(
                f"evaluation.refine={kind}: may hold a number for every pair of the {images:,} test images and takes "
                f"at most {PAIRED:,}; leave it out, or take kmeans, birch or optics"
            )


class Groups(NamedTuple):
    """Batches of images that exchange messages.

    Attributes:
      batches: int [B, S], rows of the embeddings; repeats are nodes of their own.
      refined: how many images at the head of each batch are refined; every row of the embeddings is there at least
        once, and its first place counts.
    """

    batches: np.ndarray
    refined: int


class Clusters(NamedTuple):
    """What a clustering found.

    Attributes:
      labels: int64 [N], in 0..C-1, every number taken; noise is a cluster like the others, as in the authors' code.
      found: how many clusters, without the noise.
      noise: how many images are noise.
    """

    labels: np.ndarray
    found: int
    noise: int


def clusters(
    points: np.ndarray, kind: Clustering, *, count: int = 900, eps: float = 0.9, min_samples: int = 5, seed: int = 0
) -> Clusters:
    """Clusters embeddings with scikit-learn.

    Args:
      points: float [N, D], rows of unit length.
      kind: the algorithm.
      count: clusters to find ("kmeans", "ward", "spectral", "birch"; the last may find fewer), at most N.
      eps: largest Euclidean distance of two neighbours ("dbscan", "optics").
      min_samples: neighbours that make a place dense, the image itself included ("dbscan", "optics").
      seed: of k-means and of the spectral clustering.

    Raises:
      DataError: fewer than two clusters are found, or the algorithm fails.
    """
    with warnings.catch_warnings():
        # Fewer clusters than asked for, or none that is dense: both are told by what is returned.
        warnings.simplefilter("ignore")
        try:
            labels = _estimator(kind, count, eps, min_samples, seed).fit_predict(points)
        except (ValueError, np.linalg.LinAlgError) as error:
            raise DataError(f"evaluation.refine={kind}: scikit-learn cannot cluster the images ({error})") from error
    noise = int(np.sum(labels < 0))
    numbers, inverse = np.unique(labels, return_inverse=True)
    found = int(np.sum(numbers >= 0))
    if found < 2:
        what = "one cluster" + (f" and {noise:,} images of noise" if noise else "") if found else "nothing but noise"
        mend = "its embeddings lie too close together"
        if kind in DENSE:
            change = "smaller" if found else "larger"
            mend = f"set a {change} evaluation.refine_eps (={eps}) or another evaluation.refine_min_samples"
            mend += f" (={min_samples})"
        raise DataError(f"evaluation.refine={kind}: finds {what} among {len(points):,} images; {mend}")
    return Clusters(inverse.astype(np.int64), found, noise)


def _estimator(kind: Clustering, count: int, eps: float, min_samples: int, seed: int) -> Any:
    from sklearn import cluster

    match kind:
        case "kmeans":
            return cluster.KMeans(count, random_state=seed)
        case "ward":
            return cluster.AgglomerativeClustering(count)
        case "spectral":
            return cluster.SpectralClustering(count, assign_labels="discretize", random_state=seed)
        case "birch":
            return cluster.Birch(n_clusters=count)
        case "dbscan":
            return cluster.DBSCAN(eps=eps, min_samples=min_samples)
        case "optics":
            return cluster.OPTICS(max_eps=eps, min_samples=min_samples)


def nearest(points: np.ndarray, *, chunk: int, chunks: int, seed: int = 0) -> Groups:
    """Batches of chunks, each an anchor and its nearest neighbours; every image is the anchor of one chunk (C.2).

    Args:
      points: float [N, D], rows of unit length.
      chunk: images in a chunk, the anchor included; at most N.
      chunks: in a batch. Anchors are drawn at random; the last batch is filled with anchors of the first ones.
      seed: of the draw.
    """
    rows = len(points)
    order = np.random.default_rng(seed).permutation(rows)
    anchors = np.resize(order, (-(-rows // chunks), chunks))
    if chunk == 1:
        return Groups(anchors, chunks)
    _, near = neighbors.search(points, points, chunk - 1, exclude_self=True)
    return Groups(np.concatenate([anchors, near[anchors].reshape(len(anchors), -1)], axis=1), chunks)
