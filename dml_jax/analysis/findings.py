"""The results of an analysis: figures and their numbers, stored for the report; several models.

`<workdir>/analysis/` holds `<name>.png`, `<name>.csv` and, per subject, a JSON file with its
section of the report. At the end of a run, the standard subjects are written to
`<workdir>/figures/` in the same way.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dml_jax import drawing, seal
from dml_jax.analysis import html
from dml_jax.analysis.analysed_model import AnalysedModel
from dml_jax.analysis.html import Section, text
from dml_jax.drawing import Strips
from dml_jax.errors import CheckpointError, printable
from dml_jax.files import read_json, write_csv, write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIRECTORY, STANDARD_DIRECTORY = "analysis", "figures"
COLUMNS = 3  # panels side by side in comparisons of models


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


class Subject(NamedTuple):
    """An analysis."""

    title: str  # heading in the report
    findings: Callable[[AnalysedModel, str], list[Finding]]  # computes the numbers for a split
    by_split: bool = True
    of_run: bool = False  # needs a trained run, not only embeddings of labelled images
    standard: bool = False  # in the report of every run
    compared: bool = False  # can show several models side by side
    is_map: bool = False  # shows chosen classes


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
    """Writes the figures, numbers and report section of a subject to a folder of a work directory.

    The suffix is appended to all file names, for splits other than the test split.
    """
    target = directory / to
    target.mkdir(exist_ok=True)
    body = ""
    for finding in found:
        stem = f"{finding.name}{suffix}"
        file = target / f"{stem}.csv"
        write_csv(file, [finding.columns, *(map(_cell, row) for row in finding.rows)])
        finding.plot(file.with_suffix(".png"))
        heading = stem.replace("_", " ").capitalize()
        body += f"<h3>{text(heading)}</h3>" if len(found) > 1 and heading != title else ""
        link = f'<a href="{text(f"{to}/{stem}.csv")}" title="a file beside this page">Numbers</a>'
        caption = f"{text(finding.caption)} {link}"
        if finding.pictures:
            body += html.pictures(finding.pictures, stem, caption)
        else:
            body += html.chart(file.with_suffix(".png").read_bytes(), stem, caption) + finding.table
    section = Section(printable(title), body, f"(step {step:,})")
    write_json(target / f"{name}{suffix}.json", asdict(section))


def _cell(value: Any) -> Any:
    """Formats floats with the seven digits of float32, and escapes control characters in names."""
    if isinstance(value, str):
        return printable(value)
    return f"{value:.7g}" if isinstance(value, float) else value


def read(directory: Path, order: Sequence[str]) -> list[Section]:
    """Reads the sections that `write` stored in a work directory, in the `order` of subjects.

    A repeated analysis replaces that of the run's end. CheckpointError for a damaged file, or one
    that a finished run has not written.
    """
    folders = STANDARD_DIRECTORY, DIRECTORY
    present = {path.stem: path for to in folders for path in (directory / to).glob("*.json")}
    places = {name: place for place, name in enumerate(order)}
    names = sorted(present, key=lambda name: (places.get(name.partition("-")[0], len(order)), name))

    def section(path: Path) -> Section:
        remedy, name = "delete it", path.relative_to(directory).as_posix()
        path = seal.file(directory, name, error=CheckpointError, remedy=remedy)
        return Section(**read_json(path, Section, remedy, CheckpointError))

    return [section(present[name]) for name in names]


def side_by_side(runs: Mapping[str, AnalysedModel], subject: Subject, split: str) -> list[Finding]:
    """The findings of a subject that have a panel, each of all models together."""
    found = [[each for each in subject.findings(run, split) if each.panel] for run in runs.values()]
    made = []
    for parts in zip(*found, strict=True):
        by_model = dict(zip(runs, parts, strict=True))
        caption = parts[0].caption
        if any(part.caption != caption for part in parts):
            caption = " ".join(f"{name}: {part.caption}" for name, part in by_model.items())
        plot = partial(_plot_panels, panels={name: part.panel for name, part in by_model.items()})
        rows = [(name, *row) for name, part in by_model.items() for row in part.rows]
        made.append(Finding(parts[0].name, caption, plot, ("model", *parts[0].columns), rows))
    return made


def _plot_panels(path: Path, *, panels: Mapping[str, Panel]) -> None:
    layout = next(iter(panels.values())).layout
    if layout == "overlaid":
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
        share = layout == "same axes"
        cells = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share).ravel()
        for cell, (name, panel) in zip(cells, panels.items(), strict=False):
            panel.draw(cell)
            cell.set_title(drawing.text(name), fontsize=10)
        for cell in cells[len(panels) :]:
            cell.set_axis_off()
        entries, look = cells[0].get_legend_handles_labels(), {"frameon": False, "fontsize": 8}
        figure.legend(*entries, loc="outside lower center", ncols=2 * columns, **look)
    drawing.save(figure, path)
