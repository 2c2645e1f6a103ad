"""What an analysis yields: figures with the numbers behind them, on disk for the report.

Each subject is a module of this package with

    TITLE                                      heading in the report
    reason_not_to(run) -> str                  why it does not apply to a run; empty, or no such function, if it does
    findings(run, split) -> list[Finding]      numbers first, then drawn

`<workdir>/analysis/` holds `<name>.png`, `<name>.csv` and, per subject, the JSON file from which the report is made.
"""

import csv
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dml_jax.errors import CheckpointError, printable
from dml_jax.files import atomic_write, read_json, write_json

# In the order of the report. A subject is the name of its module.
SUBJECTS = (
    "health", "overfitting", "retrieval", "classes", "distances", "calibration", "spectra", "tsne", "umap",
    "attention", "influence", "heat_maps",
)  # fmt: skip
BY_SPLIT = ("retrieval", "classes", "distances", "spectra", "tsne", "umap", "heat_maps")  # made for one split
DIRECTORY = "analysis"


class Finding(NamedTuple):
    """A figure and its numbers.

    Attributes:
      name: of the files.
      caption: what the figure shows and how to read it.
      plot: writes it as a PNG file.
      columns: of the CSV file.
      rows: of the CSV file, with one value per column.
    """

    name: str
    caption: str
    plot: Callable[[Path], None]
    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]


@dataclass(frozen=True)
class Section:
    """A subject in the report: its title, the step of the model, and the file names and captions of its figures."""

    title: str
    step: int
    figures: list[list[str]]


def subject(name: str) -> Any:
    """The module of a subject."""
    return importlib.import_module(f"dml_jax.analysis.{name}")


def write(directory: Path, name: str, suffix: str, title: str, step: int, found: Sequence[Finding]) -> None:
    """Writes the figures and numbers of a subject into `<directory>/analysis`.

    Args:
      directory: the work directory.
      name: of the subject.
      suffix: of all file names; names a split that is not the test split.
      title: for the report.
      step: of the model.
      found: by the subject.
    """
    target = directory / DIRECTORY
    target.mkdir(exist_ok=True)
    for finding in found:
        file = target / f"{finding.name}{suffix}.csv"
        with atomic_write(file) as draft, draft.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(finding.columns)
            writer.writerows([_cell(value) for value in row] for row in finding.rows)
        finding.plot(file.with_suffix(".png"))
    figures = [[f"{finding.name}{suffix}", finding.caption] for finding in found]
    write_json(target / f"{name}{suffix}.json", asdict(Section(title, step, figures)))


def read(directory: Path) -> list[Section]:
    """The sections that `write` has left in a work directory, in the order of SUBJECTS.

    Raises:
      CheckpointError: a file is damaged.
    """
    sections = []
    present = {path.stem: path for path in (directory / DIRECTORY).glob("*.json")}
    order = {name: position for position, name in enumerate(SUBJECTS)}
    for name in sorted(present, key=lambda name: (order.get(name.partition("-")[0], len(order)), name)):
        content = read_json(present[name], Section, "delete it", CheckpointError)
        sections.append(Section(**content))
    return sections


def _cell(value: Any) -> Any:
    """Floats with the seven digits that float32 has; names without control characters."""
    if isinstance(value, str):
        return printable(value)
    return f"{value:.7g}" if isinstance(value, float) else value
