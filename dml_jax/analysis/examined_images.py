"""What is known about images whatever their labels: neighbours, near-duplicates, clusters, blur."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from dml_jax.data import decode, near_copies
from dml_jax.data.files import File
from dml_jax.data.read_ahead import ordered_map
from dml_jax.evaluation import doubtful_labels, neighbors
from dml_jax.evaluation.unit_rows import unit_rows
from dml_jax.files import reading

DIMENSIONS, DISTANCE = 50, 0.6  # principal components; largest mean distance of merged clusters
LARGEST = 5_000  # images that are clustered; the others join the nearest cluster
NEAREST = 12  # images shown beside one that is enlarged
SIDE = 256  # pixels of the longer side at which images are compared for blur


class Images(NamedTuple):
    """What is known about each of N images, whatever their labels."""

    folder: Path
    names: Sequence[str]  # "./path" in the folder
    sha256: Sequence[str]
    spread: np.ndarray  # float32 [N, D], see `doubtful_labels`
    nearest: np.ndarray  # int [N, K]
    distances: np.ndarray  # float [N], of the nearest
    copies: np.ndarray  # int [N], number of the group of near-duplicates from 1; 0 if there is none
    clusters: np.ndarray  # int [N], from 1, the largest first
    sharpness: np.ndarray  # float [N], variance of the Laplacian
    days: np.ndarray  # int [N], number of the day of the photograph; -1 if unknown

    def read(self, i: int) -> np.ndarray:
        """The pixels of an image, uint8 [H, W, 3]."""
        with reading(self.names[i]):
            return decode.rgb(File(self.folder / self.names[i]).read())


def examine(
    folder: Path, names: Sequence[str], sha256: Sequence[str], rows: np.ndarray, days: Sequence[str]
) -> Images:
    """Reads images once, and compares them by their embeddings float32 [N, D] of unit length."""

    def measured(name: str) -> tuple[np.ndarray, float]:
        with reading(name), decode.decoded(File(folder / name).read()) as pixels:
            return near_copies.thumbnail(pixels), sharpness(pixels)

    thumbnails, sharp = zip(*ordered_map(measured, names), strict=True)
    count = min(NEAREST, len(rows) - 1)
    distances, nearest = map(np.asarray, neighbors.search(rows, rows, count, exclude_self=True))
    copies = _numbered(_near_copies(np.stack(thumbnails)), at_least=2)
    day_numbers = np.unique(np.array(days, np.str_), return_inverse=True)[1]
    days_or_unknown = np.where(np.array(days, np.str_) == "", -1, day_numbers)
    return Images(
        folder, names, sha256, doubtful_labels.spread(rows), nearest, distances[:, 0], copies,
        _numbered(_clusters(rows)), np.array(sharp), days_or_unknown,
    )  # fmt: skip


def sharpness(pixels: np.ndarray) -> float:
    """The variance of the Laplacian of an image uint8 [H, W, 3] in grey, at most `SIDE` pixels
    (Pech-Pacheco et al., "Diatom autofocusing in brightfield microscopy", 2000)."""
    grey = Image.fromarray(pixels).convert("L")
    grey.thumbnail((SIDE, SIDE))
    g = np.pad(np.asarray(grey, np.float32), 1, "edge")
    around = g[:-2, 1:-1] + g[2:, 1:-1] + g[1:-1, :-2] + g[1:-1, 2:]
    return float((around - 4 * g[1:-1, 1:-1]).var())


def _near_copies(thumbnails: np.ndarray) -> np.ndarray:
    """The group of each image, by the search of `dml-jax prepare`: int [N]."""
    from scipy.sparse import coo_array, csgraph

    group, pairs = near_copies.find_copies(thumbnails)
    graph = coo_array((np.ones(len(pairs)), pairs.T), (group.max() + 1, group.max() + 1))
    return np.asarray(csgraph.connected_components(graph, directed=False)[1])[group]


def _clusters(rows: np.ndarray) -> np.ndarray:
    """The cluster of each row, int [N], by average linkage of cosine distances."""
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.decomposition import PCA

    with np.errstate(invalid="ignore"):  # PCA divides by the variance: 0 if all images are equal
        small = PCA(min(DIMENSIONS, *rows.shape), random_state=0).fit_transform(rows)
    # Without the last column, rows would have no direction then.
    small = unit_rows(np.hstack([small, np.full((len(rows), 1), 1e-6)]))
    sample = np.random.default_rng(0).permutation(len(rows))[:LARGEST]
    linkage = {"metric": "cosine", "linkage": "average", "distance_threshold": DISTANCE}
    sample_clusters = AgglomerativeClustering(n_clusters=None, **linkage).fit_predict(small[sample])
    means = np.zeros((sample_clusters.max() + 1, small.shape[1]))
    np.add.at(means, sample_clusters, small[sample])
    clusters = (small @ unit_rows(means).T).argmax(axis=1)
    clusters[sample] = sample_clusters
    return clusters


def _numbered(groups: np.ndarray, at_least: int = 1) -> np.ndarray:
    """Renumbers groups, int [N], from 1 with the largest first; groups of fewer than `at_least`
    images become 0."""
    sizes = np.bincount(groups)
    rank = np.empty(len(sizes), np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(1, len(sizes) + 1)
    return np.where(sizes >= at_least, rank, 0)[groups]
