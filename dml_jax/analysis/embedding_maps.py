"""Two-dimensional maps of embeddings by PCA and t-SNE, with coloured classes and thumbnails."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dml_jax import drawing
from dml_jax.analysis.analysed_model import AnalysedModel
from dml_jax.analysis.findings import Finding
from dml_jax.evaluation.unit_rows import unit_rows

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

MOST = 3000  # images in a map
CELLS = 16  # thumbnails per side
COMPONENTS = 50  # principal components from which the maps are computed
PERPLEXITY = 30.0  # effective number of neighbours in t-SNE


def largest(labels: np.ndarray) -> list[int]:
    """The most frequent classes in labels int [N] in increasing order; maps show them in colour."""
    counts = np.bincount(labels)
    order = np.argsort(-counts, kind="stable")[: len(drawing.SERIES)]
    return sorted(order[counts[order] > 0].tolist())


def draw_map(
    figure: "FigureBase",
    *,
    points: np.ndarray,
    names: Sequence[str],
    shown: Sequence[str],
    thumbnails: np.ndarray,
    axes_names: tuple[str, str],
) -> None:
    """Draws points [N, 2] by class name, `shown` classes (at most `drawing.KINDS`) in colour and
    others in grey; and thumbnails, uint8 [H, W, 3], on a grid."""
    left, right = figure.subplots(1, 2)
    class_names = np.array(names, object)
    others = ~np.isin(class_names, shown)
    left.scatter(*points[others].T, s=4, color=drawing.GREY, linewidths=0, alpha=0.5)
    for kind, name in enumerate(shown):
        cycle, colour = divmod(kind, len(drawing.SERIES))
        marker = (colour + cycle) % len(drawing.MARKERS)  # the first 7 share neither
        look: Any = {"color": drawing.SERIES[colour], "marker": drawing.MARKERS[marker]}
        label = drawing.text(name)
        own = points[class_names == name]
        left.scatter(*own.T, s=12, linewidths=0, alpha=0.85, label=label, **look)
    left.set(xlabel=axes_names[0], ylabel=axes_names[1])
    right.imshow(thumbnails)
    for axes in (left, right):
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(color=drawing.GREY, linewidth=0.5)
    drawing.legend(left, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=3, markerscale=2)


def principal_components(embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Principal components of the normalised embeddings [N, D], float64 [N, 2 to COMPONENTS], and
    the fraction of variance that each explains."""
    from sklearn.decomposition import PCA

    rows = unit_rows(np.asarray(embeddings, np.float64))
    pca = PCA(min(COMPONENTS, *rows.shape), svd_solver="full")
    components = pca.fit_transform(rows)
    missing = 0, max(0, 2 - components.shape[1])  # for D or N = 1
    return np.pad(components, ((0, 0), missing)), np.pad(pca.explained_variance_ratio_, missing)


def thumbnail_positions(points: np.ndarray, cells: int = CELLS) -> list[tuple[int, int, int]]:
    """(index, column, row) of the point of [N, 2] nearest to the centre of each non-empty cell."""
    low, high = points.min(axis=0), points.max(axis=0)
    scaled = (points - low) / np.maximum(high - low, 1e-12) * cells
    cell = np.minimum(scaled.astype(int), cells - 1)
    offset = np.sum((scaled - cell - 0.5) ** 2, axis=1)
    order = np.lexsort((offset, cell[:, 1], cell[:, 0]))
    _, first = np.unique(cell[order], axis=0, return_index=True)
    return [(int(i), int(cell[i, 0]), int(cell[i, 1])) for i in order[np.sort(first)]]


def tsne(rows: np.ndarray) -> np.ndarray:
    """t-SNE of rows [N, D], initialised by PCA: float [N, 2], the same on every call.

    It uses one thread: several would wait for each other while other programs use the cores.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(PERPLEXITY, max(1.0, (len(rows) - 1) / 3))
    init = "pca" if rows.shape[1] > 1 else "random"
    method = TSNE(perplexity=perplexity, init=init, random_state=0)
    with threadpool_limits(1):
        return np.asarray(method.fit_transform(rows))


def _map(run: AnalysedModel, split: str, name: str, title: str) -> list[Finding]:
    """A map of at most MOST random images; shows only `run.classes`, if set."""
    data = run.split(split)
    order = np.random.default_rng(0).permutation(len(data.labels))
    selected = [list(data.classes).index(name) for name in run.classes]
    if selected:
        order = order[np.argsort(~np.isin(data.labels[order], selected), kind="stable")]
    rows = np.sort(order[:MOST])
    components, share = principal_components(run.embeddings(split)[rows])
    if name == "components":
        points = components[:, :2]
        first = f"first component ({share[0]:.0%} of the variance)"
        axes = first, f"second component ({share[1]:.0%})"
        share_text = f"They explain {share[:2].sum():.0%} of the variance"
        meaning = f"{share_text}; classes separated by other directions overlap."
    else:
        run.console.print(f"{title} of {len(rows):,} embeddings")
        points, axes = tsne(components), (f"first coordinate of {title}", "second coordinate")
        meaning = (
            f"Computed from {components.shape[1]} principal components, which explain "
            f"{share.sum():.0%} of the variance. Distances between groups that are far apart mean "
            "little."
        )
    selection = "the largest classes in colour, all others in grey"
    if selected:
        selection = f"classes {', '.join(run.classes)}, of a map of {len(rows):,} images"
        in_selected = np.isin(data.labels[rows], selected)
        rows, points = rows[in_selected], points[in_selected]
    labels = data.labels[rows]
    cells = np.full((CELLS, CELLS), -1)
    for i, column, row in thumbnail_positions(points):
        cells[CELLS - 1 - row, column] = rows[i]
    blank = np.full((1, 1, 3), 255, np.uint8)
    images = (data.read(int(i), None) if i >= 0 else blank for i in cells.ravel())
    thumbnails = drawing.montage(images, CELLS**2, CELLS, 48)
    count = f"{len(rows):,} of {len(data.labels):,} images"
    return [
        Finding(
            name,
            f"{title} of the embeddings of the split '{split}' ({count}): {selection}. {meaning}",
            partial(
                draw_map,
                points=points,
                names=[data.classes[label] for label in labels],
                shown=[data.classes[label] for label in selected or largest(labels)],
                thumbnails=thumbnails,
                axes_names=axes,
            ),
            {
                "image": [data.ids[row] for row in rows],
                "class": [data.classes[label] for label in labels],
                "x": points[:, 0].tolist(),
                "y": points[:, 1].tolist(),
            },
            size=(12, 6),
        )
    ]


by_components = partial(_map, name="components", title="Principal components")
by_tsne = partial(_map, name="tsne", title="t-SNE")
