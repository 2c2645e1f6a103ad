"""Maps of embeddings in the plane by PCA and t-SNE, with coloured classes and thumbnails."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dml_jax import drawing
from dml_jax.analysis.analysed_model import AnalysedModel
from dml_jax.analysis.findings import Finding, Panel
from dml_jax.data.split import Split
from dml_jax.evaluation.unit_rows import unit_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 3000  # images in a map
CELLS = 16  # thumbnails per side
COMPONENTS = 50  # principal components from which the maps are computed
PERPLEXITY = 30.0  # effective number of neighbours in t-SNE


def largest(labels: np.ndarray) -> list[int]:
    """The most frequent classes in labels int [N], which maps colour, in increasing order."""
    counts = np.bincount(labels)
    order = np.argsort(-counts, kind="stable")[: len(drawing.SERIES)]
    return sorted(order[counts[order] > 0].tolist())


def scatter_classes(
    axes: "Axes",
    points: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    shown: Sequence[int],
) -> None:
    """Draws points [N, 2]: classes `shown` (at most `drawing.KINDS`) in colour, the others in grey.

    Labels int [N] and those `shown` are indices into the class names.
    """
    rest = ~np.isin(labels, shown)
    axes.scatter(points[rest, 0], points[rest, 1], s=4, color=drawing.GREY, linewidths=0, alpha=0.5)
    for kind, label in enumerate(shown):
        x, y = points[labels == label].T
        turn, colour = divmod(kind, len(drawing.SERIES))
        marker = (colour + turn) % len(drawing.MARKERS)  # the first 7 share neither
        look: Any = {"color": drawing.SERIES[colour], "marker": drawing.MARKERS[marker]}
        name = drawing.text(classes[label])
        axes.scatter(x, y, s=12, linewidths=0, alpha=0.85, label=name, **look)
    axes.set(xticks=[], yticks=[])


def principal_components(embeddings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Principal components of embeddings [N, D] after normalising the rows, float64 [N, 2 to
    COMPONENTS], and the fraction of the variance that each explains."""
    from sklearn.decomposition import PCA

    rows = unit_rows(np.asarray(embeddings, np.float64))
    pca = PCA(min(COMPONENTS, *rows.shape), svd_solver="full")
    components = pca.fit_transform(rows)
    missing = 0, max(0, 2 - components.shape[1])  # if D or N is 1
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

    It runs in one thread: with several, its short steps wait for other programs that use the cores.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(PERPLEXITY, max(1.0, (len(rows) - 1) / 3))
    init = "pca" if rows.shape[1] > 1 else "random"
    method = TSNE(perplexity=perplexity, init=init, random_state=0)
    with threadpool_limits(1):
        return np.asarray(method.fit_transform(rows))


def _map(run: AnalysedModel, split: str, name: str, title: str) -> list[Finding]:
    """A map of at most MOST random images; only those of `run.classes` are shown, if given."""
    data = run.split(split)
    order = np.random.default_rng(0).permutation(len(data.labels))
    chosen = [list(data.classes).index(name) for name in run.classes]
    if chosen:
        order = order[np.argsort(~np.isin(data.labels[order], chosen), kind="stable")]
    rows = np.sort(order[:MOST])
    components, share = principal_components(run.embeddings(split)[rows])
    if name == "components":
        points = components[:, :2]
        first = f"first component ({share[0]:.0%} of the variance)"
        axes = first, f"second component ({share[1]:.0%})"
        explained = f"They explain {share[:2].sum():.0%} of the variance"
        meaning = f"{explained}; classes separated by other directions overlap."
    else:
        run.console.print(f"{title} of {len(rows):,} embeddings")
        points, axes = tsne(components), (f"first coordinate of {title}", "second coordinate")
        meaning = (
            f"Computed from {components.shape[1]} principal components, which explain "
            f"{share.sum():.0%} of the variance. Distances between groups that are far apart mean "
            "little."
        )
    which = "the largest classes in colour, all others in grey"
    if chosen:
        which = f"classes {', '.join(run.classes)}, of a map of {len(rows):,} images"
        kept = np.isin(data.labels[rows], chosen)
        rows, points = rows[kept], points[kept]
    labels = data.labels[rows]
    shown = chosen or largest(labels)
    draw = partial(scatter_classes, points=points, labels=labels, classes=data.classes, shown=shown)
    count = f"{len(rows):,} of {len(data.labels):,} images"
    caption = f"{title} of the embeddings of the split '{split}' ({count}): {which}. {meaning}"
    draw_all = partial(plot, draw=draw, data=data, rows=rows, points=points, axes=axes)
    placed = zip(rows, labels, points.tolist(), strict=True)
    table = [(data.ids[row], data.classes[label], *point) for row, label, point in placed]
    head, panel = ("image", "class", "x", "y"), Panel(draw, "own axes")
    return [Finding(name, caption, draw_all, head, table, panel=panel)]


by_components = partial(_map, name="components", title="Principal components")
by_tsne = partial(_map, name="tsne", title="t-SNE")


def plot(
    path: Path,
    *,
    draw: Callable[["Axes"], None],
    data: Split,
    rows: np.ndarray,
    points: np.ndarray,
    axes: tuple[str, str],
) -> None:
    """Draws points by class, and thumbnails on a grid."""
    figure = drawing.figure(12, 6)
    left, right = figure.subplots(1, 2)
    draw(left)
    left.set(xlabel=axes[0], ylabel=axes[1])
    cells = np.full((CELLS, CELLS), -1)
    for i, column, row in thumbnail_positions(points):
        cells[CELLS - 1 - row, column] = rows[i]
    blank = np.full((1, 1, 3), 255, np.uint8)
    images = (data.read(int(i), None) if i >= 0 else blank for i in cells.ravel())
    right.imshow(drawing.montage(images, CELLS**2, CELLS, 48))
    right.set(xticks=[], yticks=[])
    for panel in (left, right):
        for spine in panel.spines.values():
            spine.set(color=drawing.GREY, linewidth=0.5)
    drawing.legend(left, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=3, markerscale=2)
    figure.savefig(path, dpi=110)
