"""The results of an analysis: figures with the numbers behind them, stored for the report.

Each subject is a module of this package with

    TITLE                                      heading in the report
    reason_not_to(run) -> str                  optional: why it does not apply to a run; empty if it does
    findings(run, split) -> list[Finding]      computes the numbers; drawing follows

`<workdir>/analysis/` holds `<name>.png`, for charts also `<name>.svg`, `<name>.csv` and, per subject, the JSON file
from which the report is made. At the end of a run, the STANDARD subjects are written to `<workdir>/figures/` in the
same way.
"""

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pydantic

from dml_jax.analysis.subjects import SUBJECTS
from dml_jax.analysis.views import View
from dml_jax.errors import CheckpointError, printable
from dml_jax.files import atomic_write, reading, write_csv, write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIRECTORY, STANDARD_DIRECTORY = "analysis", "figures"


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
    view: View | None = None  # what the report shows: pictures or a map instead of the figure, or a table below it
    panel: Panel | None = None  # None if models are not compared by it


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


def subject(name: str) -> Any:
    """Imports the module of a subject."""
    return importlib.import_module(f"dml_jax.analysis.{name}")


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


def read(directory: Path) -> list[Section]:
    """Reads the sections that `write` stored in a work directory, in the order of SUBJECTS.

    A repeated analysis replaces the one from the end of the run. A damaged file raises `CheckpointError`.
    """
    sections = []
    folders = (STANDARD_DIRECTORY, DIRECTORY)
    present = {path.stem: path for folder in folders for path in (directory / folder).glob("*.json")}
    order = {name: position for position, name in enumerate(SUBJECTS)}
    for name in sorted(present, key=lambda name: (order.get(name.partition("-")[0], len(order)), name)):
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
