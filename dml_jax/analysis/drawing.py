"""What all figures share: canvas, axes and colours that colour-blind readers can tell apart (Okabe & Ito).

matplotlib is imported only when a figure is drawn.
"""

from typing import TYPE_CHECKING, Any

from dml_jax.errors import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY = "#1f2933", "#8a949e"
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, INK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # one per colour of SERIES, so that no meaning rests on colour alone
CORRECT, WRONG = BLUE, ORANGE


def figure(width: float, height: float) -> "Figure":
    """An empty figure of a size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def style(axes: "Axes") -> "Axes":
    """The axes without a frame at the top and on the right."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=INK, labelsize=8)
    return axes


def legend(axes: "Axes", **options: Any) -> None:
    """A legend without a frame, if anything has a label."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, **options)


def text(name: str, length: int = 24) -> str:
    """A name as a label: shortened in the middle, without control characters, and not typeset as a formula."""
    name = printable(name)
    if len(name) > length:
        name = f"{name[: length // 2 - 1]}…{name[-(length // 2) :]}"
    return name.replace("$", r"\$")
