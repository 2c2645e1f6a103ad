"""A catalogue of a folder of images as a page and a table: near-duplicates, clusters and, if there
are labels, images whose neighbours say another class."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dml_jax.analysis import html
from dml_jax.analysis.html import Section
from dml_jax.data import decode
from dml_jax.data.files import File
from dml_jax.data.prepare import near_copies
from dml_jax.data.read_ahead import ordered_map
from dml_jax.drawing import Mark, Picture, Strips, thumbnail
from dml_jax.errors import counted, printable
from dml_jax.evaluation import neighbors
from dml_jax.evaluation.unit_rows import unit_rows
from dml_jax.files import reading, write_csv

DIMENSIONS, DISTANCE = 50, 0.6  # principal components; largest mean distance of merged clusters
LARGEST = 5_000  # images that are clustered; the others join the nearest cluster
NEIGHBORS, TEMPERATURE = 10, 0.05  # neighbours that vote, with weights exp(cosine / TEMPERATURE)
GROUPS, PICTURES = 50, 8  # most groups of a section and pictures of a group that are shown

Group = tuple[str, Sequence[int]]  # a label and the positions of the images


class Catalogue(NamedTuple):
    """What is known about each of N images."""

    images: Sequence[str]  # paths
    copies: np.ndarray  # int [N], number of the group of near-duplicates from 1; 0 if there is none
    clusters: np.ndarray  # int [N], from 1, the largest first
    labels: Sequence[str]  # "" if unknown
    said: Sequence[str]  # the class with most votes of the neighbours
    shares: np.ndarray  # float [N], its share of the votes
    nearest: np.ndarray  # int [N, K], the neighbours; near-duplicates do not vote


def catalogue(images: Sequence[str], rows: np.ndarray, labels: Sequence[str]) -> Catalogue:
    """Compares images by their files and their embeddings float32 [N, D], rows of unit length."""
    copies, clusters = _numbered(_near_copies(images), at_least=2), _numbered(_clusters(rows))
    count = min(NEIGHBORS, len(rows) - 1)
    distances, nearest = map(np.asarray, neighbors.search(rows, rows, count, exclude_self=True))
    of = np.array(labels, object)[nearest]
    voters = (of != "") & ((copies[nearest] != copies[:, None]) | (copies == 0)[:, None])
    weights = np.exp(-distances / TEMPERATURE) * voters
    votes = (weights[:, None] * (of[:, :, None] == of[:, None])).sum(axis=2)
    votes /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-9)
    said = np.where(voters.any(axis=1), of[np.arange(len(of)), votes.argmax(axis=1)], "")
    return Catalogue(images, copies, clusters, labels, said.tolist(), votes.max(axis=1), nearest)


def _near_copies(images: Sequence[str]) -> np.ndarray:
    """The group of each image, by the search of `dml-jax prepare`: int [N]."""
    from scipy.sparse import coo_array, csgraph

    def thumbnail(name: str) -> np.ndarray:
        with reading(name), decode.decoded(File(Path(name)).read()) as pixels:
            return near_copies.thumbnail(pixels)

    group, pairs = near_copies.find(np.stack(list(ordered_map(thumbnail, images))))
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
    found = AgglomerativeClustering(n_clusters=None, **linkage).fit_predict(small[sample])
    means = np.zeros((found.max() + 1, small.shape[1]))
    np.add.at(means, found, small[sample])
    clusters = (small @ unit_rows(means).T).argmax(axis=1)
    clusters[sample] = found
    return clusters


def _numbered(groups: np.ndarray, at_least: int = 1) -> np.ndarray:
    """Renumbers groups, int [N], from 1 with the largest first; groups of fewer than `at_least`
    images become 0."""
    sizes = np.bincount(groups)
    rank = np.empty(len(sizes), np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(1, len(sizes) + 1)
    return np.where(sizes >= at_least, rank, 0)[groups]


def write(found: Catalogue, directory: Path, title: str) -> None:
    """Writes `catalogue.csv`, a row per image, and `catalogue.html`."""
    columns = {
        "image": list(map(printable, found.images)),
        "cluster": found.clusters,
        "near_duplicates": [group or "" for group in found.copies.tolist()],
        "class": list(map(printable, found.labels)),
        "neighbours_say": list(map(printable, found.said)),
        "share_of_votes": [f"{share:.3f}" if share else "" for share in found.shares],
    }
    write_csv(directory / "catalogue.csv", [list(columns), *zip(*columns.values(), strict=True)])
    doubtful: list[Group] = [
        (f"{image}: in {own}; {share:.0%} say {said}", [i, *found.nearest[i].tolist()])
        for i, (image, own, said, share) in enumerate(
            zip(found.images, found.labels, found.said, found.shares, strict=True)
        )
        if own and said and own != said
    ]
    doubtful.sort(key=lambda group: -found.shares[group[1][0]])
    parts: dict[str, list[Group]] = {
        "Near-duplicates": _members(found.copies),
        "Images whose neighbours say another class": doubtful,
        "Clusters": [group for group in _members(found.clusters) if len(group[1]) > 1],
    }
    lead = "; ".join(f"{len(groups):,} {name.lower()}" for name, groups in parts.items() if groups)
    sections = []
    for name, groups in parts.items():
        strips = _strips(found, groups[:GROUPS], compared=groups is doubtful)
        note = f"the first {GROUPS}; the table has all" if len(groups) > GROUPS else ""
        sections.append(Section(name, html.pictures(strips, name, "") if groups else "", note))
    html.write_report(directory / "catalogue.html", title, lead, sections)


def _members(groups: np.ndarray) -> list[Group]:
    """The positions of the images of each group, from group 1 on."""
    order = np.argsort(groups, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    return [(counted(len(part), "image"), part.tolist()) for part in parts if groups[part[0]]]


def _strips(found: Catalogue, groups: Sequence[Group], *, compared: bool) -> Strips:
    """A row of thumbnails for each group; if `compared`, the first image is marked as the query,
    and the others by whether they have its label."""

    def picture(i: int, first: int) -> Picture:
        name, label = found.images[i], found.labels[i]
        kind: Mark = "query" if i == first else "right" if label == found.labels[first] else "wrong"
        with reading(name):
            pixels = thumbnail(decode.rgb(File(Path(name)).read()))
        return Picture(pixels, name, label or Path(name).name, kind if compared else "", "")

    return [
        (label, [picture(i, members[0]) for i in members[:PICTURES]]) for label, members in groups
    ]
