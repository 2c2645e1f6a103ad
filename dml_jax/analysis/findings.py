"""The results of an analysis: figures with the numbers behind them, stored for the report; models side by side.

`<workdir>/analysis/` holds `<name>.png`, `<name>.csv` and, per subject, the JSON file
from which the report is made. At the end of a run, the standard subjects are written to `<workdir>/figures/` in the
same way.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pydantic

from dml_jax.analysis import drawing
from dml_jax.analysis.evaluated_model import EvaluatedModel
from dml_jax.analysis.html import View
from dml_jax.errors import CheckpointError, printable
from dml_jax.files import atomic_write, reading, write_csv, write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIRECTORY, STANDARD_DIRECTORY = "analysis", "figures"
COLUMNS = 3  # panels side by side in comparisons of models


class Panel(NamedTuple):
    """The part of a figure that comparisons of models show."""

    draw: Callable[["Axes"], None]  # draws it in axes, to which others may have been drawn if they are overlaid
    # All models in one panel, or one panel each, with the same axes or their own.
    layout: Literal["overlaid", "same axes", "own axes"]


class Finding(NamedTuple):
    """A figure and its numbers."""

    name: str  # stem of the file names
    caption: str  # what the figure shows and how to read it
    plot: Callable[[Path], None]  # writes the figure as a PNG file
    columns: Sequence[str]  # header of the CSV file
    rows: Iterable[Sequence[Any]]  # rows of the CSV file, with one value per column
    view: View | None = None  # what the report shows: pictures instead of the figure, or a table below it
    panel: Panel | None = None  # None if models are not compared by it


class Subject(NamedTuple):
    """An analysis.

    Attributes:
      title: heading in the report.
      findings: computes the numbers for a split; drawing follows.
      reason_not_to: why it does not apply to a run; empty if it does.
      by_split: whether it is of one split.
      of_run: whether it needs a trained run, and not just the embeddings of labelled images.
      standard: whether it is in the report of every run.
      compared: whether it can show several models side by side.
      is_map: whether it shows chosen classes.
    """

    title: str
    findings: Callable[[EvaluatedModel, str], list[Finding]]
    reason_not_to: Callable[[EvaluatedModel], str] = lambda run: ""
    by_split: bool = True
    of_run: bool = False
    standard: bool = False
    compared: bool = False
    is_map: bool = False


@dataclass(frozen=True)
class Shown:
    """A finding as the report shows it; `file` is the figure's path in the work directory, without suffix."""

    file: str
    caption: str
    view: View | None


@dataclass(frozen=True)
class Section:
    """A subject in the report: its title, the step of the model, and what is shown."""

    title: str
    step: int
    shown: list[Shown]


def write(
    directory: Path,
    name: str,
    title: str,
    step: int,
    found: Sequence[Finding],
    *,
    suffix: str = "",
    to: str = DIRECTORY,
) -> None:
    """Writes the figures and numbers of a subject to a folder in the work directory.

    The suffix is appended to all file names, for splits other than the test split.
    """
    target = directory / to
    target.mkdir(exist_ok=True)
    for finding in found:
        file = target / f"{finding.name}{suffix}.csv"
        with atomic_write(file) as draft, draft.open("w", newline="", encoding="utf-8") as stream:
            write_csv(stream, [finding.columns, *([_cell(value) for value in row] for row in finding.rows)])
        finding.plot(file.with_suffix(".png"))
    shown = [Shown(f"{to}/{finding.name}{suffix}", finding.caption, finding.view) for finding in found]
    write_json(target / f"{name}{suffix}.json", _printable(asdict(Section(title, step, shown))))


def read(directory: Path, order: Sequence[str]) -> list[Section]:
    """Reads the sections that `write` stored in a work directory, in the order of the names of subjects.

    A repeated analysis replaces the one from the end of the run. A damaged file raises `CheckpointError`.
    """
    sections = []
    folders = (STANDARD_DIRECTORY, DIRECTORY)
    present = {path.stem: path for folder in folders for path in (directory / folder).glob("*.json")}
    places = {name: place for place, name in enumerate(order)}
    for name in sorted(present, key=lambda name: (places.get(name.partition("-")[0], len(order)), name)):
        with reading(present[name], "delete it", CheckpointError):
            sections.append(pydantic.TypeAdapter(Section).validate_json(present[name].read_bytes()))
    return sections


def _cell(value: Any) -> Any:
    """Formats floats with seven digits, the precision of float32, and escapes control characters in names."""
    if isinstance(value, str):
        return printable(value)
    return f"{value:.7g}" if isinstance(value, float) else value


def _printable(value: Any) -> Any:
    """Escapes control characters and undecodable bytes in all strings, since JSON must not hold the latter."""
    match value:
        case str():
            return printable(value)
        case dict():
            return {key: _printable(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_printable(entry) for entry in value]
        case _:
            return value


def side_by_side(runs: Mapping[str, EvaluatedModel], subject: Subject, split: str) -> list[Finding]:
    """The findings of a subject that have a panel, each of all models together."""
    found = {name: [each for each in subject.findings(run, split) if each.panel] for name, run in runs.items()}
    made = []
    for parts in zip(*found.values(), strict=True):
        by_model = dict(zip(found, parts, strict=True))
        captions = [f"{name}: {part.caption}" for name, part in by_model.items()]
        same = len({part.caption for part in parts}) == 1
        made.append(
            Finding(
                parts[0].name,
                parts[0].caption if same else " ".join(captions),
                partial(_plot_panels, panels={name: part.panel for name, part in by_model.items()}),
                ("model", *parts[0].columns),
                [(name, *row) for name, part in by_model.items() for row in part.rows],
            )
        )
    return made


def _plot_panels(path: Path, *, panels: Mapping[str, Panel]) -> None:
    """Draws the panels of the models."""
    first = next(iter(panels.values()))
    if first.layout == "overlaid":
        figure = drawing.figure(6.5, 3.8)
        axes = figure.subplots()
        for name, panel in panels.items():
            known = len(axes.lines)
            panel.draw(axes)
            for line in axes.lines[known:]:
                line.set_label(f"{drawing.text(name)}: {line.get_label()}")
        drawing.legend(axes)
    else:
        columns = min(len(panels), COLUMNS)
        rows = math.ceil(len(panels) / columns)
        figure = drawing.figure(4.2 * columns, 3.4 * rows + 0.5)
        share = first.layout == "same axes"
        cells = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share).ravel()
        for cell, (name, panel) in zip(cells, panels.items(), strict=False):
            panel.draw(cell)
            cell.set_title(drawing.text(name), fontsize=10)
            if share:
                cell.label_outer()
        for cell in cells[len(panels) :]:
            cell.set_axis_off()
        entries = cells[0].get_legend_handles_labels()
        figure.legend(*entries, loc="outside lower center", ncols=2 * columns, frameon=False, fontsize=8)
    drawing.save(figure, path)
