"""Figures, axes and rows of pictures in the colour-blind-safe palette of Okabe & Ito.

matplotlib is imported only when a figure is drawn.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from dml_jax.errors import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

INK, GREY = "#1f2933", "#8a949e"
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
PURPLE, SKY, YELLOW = "#cc79a7", "#56b4e9", "#e69f00"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, INK)
# One per colour of SERIES, so that no meaning depends on colour alone.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
KINDS = len(SERIES) * len(MARKERS)  # distinct combinations of colour and marker

SIDE = 96  # longer side of a thumbnail in pixels

Mark = Literal["", "query", "right", "wrong"]
FRAME: dict[Mark, tuple[str, Any]] = {  # colour and line style
    "query": (INK, "-"),
    "right": (BLUE, "-"),
    "wrong": (ORANGE, (0, (2, 1.2))),
}


class Picture(NamedTuple):
    """A thumbnail."""

    pixels: np.ndarray  # uint8 [H, W, 3], at most SIDE pixels high and wide
    image: str
    name: str  # its class
    mark: Mark  # the query, or whether its class is the query's; "" without a query
    note: str  # e.g. a cosine


# Rows of thumbnails, each below a label, which may be empty.
Strips = Sequence[tuple[str, Sequence[Picture]]]


def figure(width: float, height: float) -> "Figure":
    """An empty figure; width and height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(drawn: "Figure", path: Path) -> None:
    """Writes a figure as a PNG file."""
    drawn.savefig(path, dpi=110)


def line(axes: "Axes", points: Sequence[tuple[int, float]], kind: int, **options: Any) -> None:
    """Draws a line through points (x, y) with the colour and marker number `kind`, from 0."""
    appearance: dict[str, Any] = {"color": SERIES[kind % len(SERIES)], "linewidth": 1.3}
    appearance |= {"marker": MARKERS[kind % len(MARKERS)], "markersize": 4}
    axes.plot(*zip(*points, strict=True), **appearance | options)


def style(axes: "Axes") -> "Axes":
    """Removes the top and right frame of the axes."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=INK, labelsize=8)
    return axes


def montage(
    images: Iterable[np.ndarray], count: int, columns: int, side: int, gap: int = 0
) -> np.ndarray:
    """Scales `count` images, see `as_image`, into square cells on white: uint8 [H, W, 3].

    Cells are `side` pixels wide, including a margin of `gap` pixels on each side.
    """
    canvas = np.full((math.ceil(count / columns) * side, columns * side, 3), 255, np.uint8)
    for i, image in enumerate(map(as_image, images)):
        scale = (side - 2 * gap) / max(image.shape[:2])
        height, width = (max(1, round(scale * length)) for length in image.shape[:2])
        resized = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))
        top = i // columns * side + (side - height) // 2
        left = i % columns * side + (side - width) // 2
        canvas[top : top + height, left : left + width] = resized
    return canvas


def as_image(row: np.ndarray) -> np.ndarray:
    """Converts an array to an image uint8 [H, W, 3]: images unchanged; other arrays in grey, with
    the first axis from left to right."""
    if row.dtype == np.uint8 and row.ndim == 3 and row.shape[2] == 3:
        return row
    values = row.reshape(len(row) if row.ndim else 1, -1).T.astype(np.float64)
    low, high = values.min(), values.max()
    grey = np.round(255 * (values - low) / (high - low or 1)).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def thumbnail(image: np.ndarray) -> np.ndarray:
    """Scales an image, see `as_image`, to the size of thumbnails."""
    small = Image.fromarray(as_image(image))
    small.thumbnail((SIDE, SIDE))
    return np.asarray(small)


def size_of_pictures(rows: Sequence[Sequence[Picture]]) -> tuple[float, float]:
    """Width and height of a figure for `draw_pictures`, in inches."""
    return 0.75 * len(rows[0]) + 0.5, 0.9 * len(rows) + 0.3


def draw_pictures(figure: "FigureBase", *, rows: Sequence[Sequence[Picture]]) -> None:
    """Draws one row per query: its thumbnail, then its neighbours with their notes below."""
    from matplotlib.patches import Rectangle

    columns, height = len(rows[0]), 1.2  # in widths of a picture
    axes = figure.subplots()
    for i, row in enumerate(rows):
        cells = montage((picture.pixels for picture in row), columns, columns, 72, gap=6)
        axes.imshow(cells, extent=(0, columns, i * height + 1, i * height))
        for j, picture in enumerate(row):
            colour, line = FRAME[picture.mark]
            corner, style = (j + 0.04, i * height + 0.04), {"color": colour, "linestyle": line}
            axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, linewidth=3, **style))
            axes.text(j + 0.5, i * height + 1.02, picture.note, fontsize=8, ha="center", va="top")
    for j in range(columns):
        axes.text(j + 0.5, -0.04, str(j) if j else "query", fontsize=9, ha="center", va="bottom")
    axes.set(xlim=(0, columns), ylim=(len(rows) * height, -0.25), aspect="equal")
    axes.set_axis_off()


def legend(axes: "Axes", **options: Any) -> None:
    """Adds a legend without a frame if there are labels."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, **options)


def text(name: str, length: int = 24) -> str:
    """Formats a name as a label: shortened in the middle, without control characters or markup."""
    name = printable(name)
    if len(name) > length:
        name = f"{name[: length // 2 - 1]}…{name[-(length // 2) :]}"
    return name.replace("$", r"\$")
