"""The results of an analysis: figures and their numbers, stored for the report.

`<workdir>/analysis/` contains `<name>.png`, `<name>.csv` and, per analysis, a JSON file with its
section of the report. At the end of a run, the standard analyses are written to
`<workdir>/figures/` in the same way.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dml_jax import drawing, seal
from dml_jax.analysis import html
from dml_jax.analysis.html import Section, text
from dml_jax.drawing import Strips
from dml_jax.errors import CheckpointError, printable
from dml_jax.files import read_json, write_csv, write_json

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

DIRECTORY, STANDARD_DIRECTORY = "analysis", "figures"
ACROSS = 3  # models side by side


class Finding(NamedTuple):
    """A figure and its numbers."""

    name: str  # stem of the file names
    caption: str  # content of the figure and how to read it
    draw: Callable[["FigureBase"], None]
    columns: Mapping[str, Sequence[Any]]  # of the CSV file, with equal lengths
    size: tuple[float, float] = (5.0, 3.4)  # of the figure, in inches
    pictures: Strips = ()  # shown in the report instead of the figure
    listed: bool = False  # whether the report shows the numbers below the figure
    same_axes: bool = False  # whether models are compared with the same axis limits


def write_analysis(
    directory: Path,
    name: str,
    title: str,
    step: int,
    by_model: Mapping[str, Sequence[Finding]],
    *,
    suffix: str = "",
    to: str = DIRECTORY,
) -> None:
    """Writes the figures, numbers and report section of an analysis to a folder of a run.

    `by_model` contains the findings by model; several models are shown side by side. The suffix is
    appended to all file names, for splits other than the test split.
    """
    target, body = directory / to, ""
    target.mkdir(exist_ok=True)
    aligned = list(zip(*by_model.values(), strict=True))
    for parallel in aligned:
        first, models = parallel[0], dict(zip(by_model, parallel, strict=True))
        stem = f"{first.name}{suffix}"
        file = target / f"{stem}.csv"
        rows = [
            [*([model] if len(by_model) > 1 else []), *row]
            for model, part in models.items()
            for row in zip(*part.columns.values(), strict=True)
        ]
        head = [*(["model"] if len(by_model) > 1 else []), *first.columns]
        write_csv(file, [head, *(map(_cell, row) for row in rows)])
        picture = file.with_suffix(".png")
        drawing.save(side_by_side(models), picture)
        captions = dict.fromkeys(part.caption for part in parallel)
        caption = first.caption
        if len(captions) > 1:
            caption = " ".join(f"{model}: {part.caption}" for model, part in models.items())
        heading = stem.replace("_", " ").capitalize()
        body += f"<h3>{text(heading)}</h3>" if len(aligned) > 1 and heading != title else ""
        link = f'<a href="{text(f"{to}/{stem}.csv")}" title="a file next to this page">Numbers</a>'
        caption_html = f"{text(caption)} {link}"
        if first.pictures and len(by_model) == 1:
            body += html.pictures(first.pictures, stem, caption_html)
        else:
            body += html.chart(picture.read_bytes(), stem, caption_html)
        body += html.listing(head, rows, stem) if first.listed else ""
    section = Section(printable(title), body, f"(step {step:,})")
    write_json(target / f"{name}{suffix}.json", asdict(section))


def side_by_side(models: Mapping[str, Finding]) -> Any:
    """The figure of a finding; with several models, one figure per model below its name."""
    width, height = next(iter(models.values())).size
    across = min(len(models), ACROSS)
    down = math.ceil(len(models) / across)
    figure = drawing.figure(width * across, height * down)
    parts = [figure]
    if len(models) > 1:
        parts = figure.subfigures(down, across, squeeze=False).ravel().tolist()
    for part, (name, finding) in zip(parts, models.items(), strict=False):
        finding.draw(part)
        if len(models) > 1:
            part.suptitle(drawing.text(name), fontsize=10)
    if len(models) > 1 and next(iter(models.values())).same_axes:
        for group in zip(*(part.axes for part in parts[: len(models)]), strict=True):
            for axis in ("x", "y"):
                limits = [getattr(axes, f"get_{axis}lim")() for axes in group]
                low, high = min(pair[0] for pair in limits), max(pair[1] for pair in limits)
                for axes in group:
                    axes.set(**{f"{axis}lim": (low, high)})
    return figure


def _cell(value: Any) -> Any:
    """Formats floats with the seven digits of float32, and escapes control characters in names."""
    if isinstance(value, str):
        return printable(value)
    return f"{value:.7g}" if isinstance(value, float) else value


def read_sections(directory: Path, order: Sequence[str]) -> list[Section]:
    """Reads the sections that `write_analysis` stored in a work directory, in this `order`.

    A repeated analysis replaces the one from the end of the run. CheckpointError for a damaged
    file, or for one that a finished run has not written.
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
