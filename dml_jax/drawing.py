"""Shared drawing code: figures, axes, and colours that colour-blind readers can tell apart (Okabe & Ito).

matplotlib is imported only when a figure is drawn.
"""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from dml_jax.errors import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY = "#1f2933", "#8a949e"
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # one per colour of SERIES, so that colour alone carries no meaning
KINDS = len(SERIES) * len(MARKERS)  # that colour and marker together distinguish


def figure(width: float, height: float) -> "Figure":
    """An empty figure; width and height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(drawn: "Figure", path: Path) -> None:
    """Writes a figure as a PNG file."""
    drawn.savefig(path, dpi=130)


def plot_alone(path: Path, draw: "Callable[[Axes], None]", size: tuple[float, float]) -> None:
    """Writes a figure of one pair of axes with a legend; the size is in inches."""
    made = figure(*size)
    axes = made.subplots()
    draw(axes)
    legend(axes)
    save(made, path)


def style(axes: "Axes") -> "Axes":
    """Removes the top and right frame of the axes."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=INK, labelsize=8)
    return axes


def montage(images: Iterable[np.ndarray], count: int, columns: int, side: int, gap: int = 0) -> np.ndarray:
    """Arranges `count` images uint8 [h, w, 3] in square cells, scaled to fit, on white: uint8 [H, columns * side, 3].

    Cells are `side` pixels wide, with `gap` empty ones at each side.
    """
    made = np.full((math.ceil(count / columns) * side, columns * side, 3), 255, np.uint8)
    for i, image in enumerate(images):
        scale = (side - 2 * gap) / max(image.shape[:2])
        height, width = (max(1, round(scale * length)) for length in image.shape[:2])
        resized = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))
        top, left = i // columns * side + (side - height) // 2, i % columns * side + (side - width) // 2
        made[top : top + height, left : left + width] = resized
    return made


def legend(axes: "Axes", **options: Any) -> None:
    """Adds a legend without a frame, if anything has a label."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, **options)


def text(name: str, length: int = 24) -> str:
    """A name as a label: shortened in the middle, without control characters or formula markup."""
    name = printable(name)
    if len(name) > length:
        name = f"{name[: length // 2 - 1]}…{name[-(length // 2) :]}"
    return name.replace("$", r"\$")
