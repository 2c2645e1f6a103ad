"""The figures that only one method has, for `dml-jax analyse`.

A method's package with a module `figures` declares there:

    FIGURES    the figures by name: dict[str, Figure]

The docstring of that module has one indented line per figure, its name and content, which `dml-jax
analyse --help` shows. Pure functions compute the numbers, others draw them with `dml_jax.drawing`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from dml_jax.config import Config
from dml_jax.data.split import Split
from dml_jax.drawing import Mark, Picture, Strips, thumbnail
from dml_jax.methods.contract import Batch, Method, PyTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Panel(NamedTuple):
    """The part of a figure that comparisons of models show."""

    draw: Callable[["Axes"], None]  # draws it in axes, over those of other models if overlaid
    # All models in one panel, or one panel each, with the same axes or separate ones.
    layout: Literal["overlaid", "same axes", "own axes"]


class Finding(NamedTuple):
    """A figure and its numbers."""

    name: str  # stem of the file names
    caption: str  # content of the figure and how to read it
    plot: Callable[[Path], None]  # writes the figure as a PNG file
    columns: Sequence[str]  # header of the CSV file
    rows: Iterable[Sequence[Any]]  # rows of the CSV file, with one value per column
    pictures: Strips = ()  # shown in the report instead of the figure
    table: str = ""  # HTML, shown in the report below the figure
    panel: Panel | None = None  # None if models are not compared by it


class Trained(Protocol):
    """A method with its variables after a step of the training."""

    @property
    def method(self) -> Method: ...
    @property
    def params(self) -> PyTree: ...
    @property
    def model_state(self) -> PyTree: ...
    @property
    def step(self) -> int: ...


class FigureInput(Protocol):
    """A run, as figures see it.

    Attributes:
      node: position, in the training batch, of the image that is shown.
      training_batch: images of one training batch by class, cropped as for evaluation.
    """

    node: int

    @property
    def config(self) -> Config: ...
    @property
    def model(self) -> Trained: ...
    @property
    def training_batch(self) -> Batch: ...

    def models(self) -> Iterator[Trained]:
        """The untrained model, if it can be restored, those of checkpoints, and this one."""

    def split(self, name: str) -> Split:
        """The split of this name; "batch" stands for the images of `training_batch`."""

    def images(self, name: str, indices: np.ndarray) -> np.ndarray:
        """Images of a split, cropped as for evaluation: uint8 [n, H, W, 3]."""


class Figure(NamedTuple):
    """An analysis that only runs of one method have."""

    title: str  # heading in the report
    findings: Callable[[FigureInput, str], list[Finding]]  # computes the numbers for a split
    reason_not_to: Callable[[FigureInput], str]  # why it does not apply to a run; empty if it does
    by_split: bool = True  # False if it shows the training batch, or all splits


def picture(split: Split, index: int, mark: Mark, note: str = "") -> Picture:
    """The thumbnail of an image of a split."""
    name = split.classes[split.labels[index]]
    return Picture(thumbnail(split.read(index, None)), split.ids[index], name, mark, note)
