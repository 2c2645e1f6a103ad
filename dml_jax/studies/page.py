"""One HTML page about many runs: sortable tables, learning curves, rows beside published numbers, links to reports."""

import base64
import html
import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dml_jax import files
from dml_jax.analysis import drawing
from dml_jax.analysis.page_style import STYLE
from dml_jax.evaluation import metric_table
from dml_jax.studies import outcomes
from dml_jax.studies.outcomes import Group, Run
from dml_jax.studies.tables import Cell, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

SORTABLE = """
th { cursor: pointer; position: sticky; top: 0; background: #fff } th:hover { color: #1971c2 }
.best { font-weight: 700 } .second { text-decoration: underline } ul.runs { columns: 18rem; font-size: .9rem }
th[aria-sort=ascending]::after { content: " ▲" } th[aria-sort=descending]::after { content: " ▼" }
"""
SORT = """
document.querySelectorAll("th").forEach(head => head.addEventListener("click", () => {
  const table = head.closest("table"), column = head.cellIndex, body = table.tBodies[0];
  const down = head.getAttribute("aria-sort") !== "descending";
  table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = row => {
    const cell = row.cells[column], value = parseFloat(cell.dataset.value);
    return isNaN(value) ? (column ? -Infinity : cell.textContent) : value;
  };
  [...body.rows].sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (down ? -1 : 1))
    .forEach(row => body.append(row));
}));
"""


def write(
    path: Path,
    title: str,
    lead: str,
    parts: Sequence[tuple[Table, Group]],
    metric: str,
    figures: "Mapping[str, Figure | SubFigure] | None" = None,
    failed: Sequence[str] = (),
) -> None:
    """Writes the page.

    Args:
      path: HTML file to write.
      title: of the page.
      lead: paragraph below the title.
      parts: tables with the runs behind them.
      metric: drawn in the figures.
      figures: by caption, instead of the one that compares rows.
      failed: lines about trials without results.
    """
    body = []
    for table, group in parts:
        body.append(f"<h2>{html.escape(table.title)}</h2><div class=scroll>{_table(table)}</div>")
        body.append("".join(f"<p><small>{html.escape(note)}</small></p>" for note in table.notes))
        heading = _heading(metric)
        if figures is None:
            caption = f"{heading} by row: mean and standard deviation over seeds."
            body.append(_image(plot_rows(group, table, metric), caption))
        if curves := plot_curves(group, metric):
            body.append(_image(curves, f"{heading} during training, one line per run; rows as in the table."))
    for caption, figure in (figures or {}).items():
        body.append(_image(figure, caption))
    if failed:
        body.append("<h2>Without results</h2><ul>" + "".join(f"<li>{html.escape(line)}" for line in failed) + "</ul>")
    links = "".join(_link(path.parent, run) for _, group in parts for runs in group.rows.values() for run in runs)
    text = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{html.escape(title)}</title><style>{STYLE}{SORTABLE}</style>
<h1>{html.escape(title)}</h1><p class="lead">{html.escape(lead)}</p>
{"".join(body)}
<h2>Runs</h2><ul class=runs>{links}</ul><script>{SORT}</script></html>
"""
    with files.atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8")


def _heading(metric: str) -> str:
    return next((entry.heading for entry in metric_table.columns({metric: 0})), metric)


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(heading)}" for heading in table.head)
    names = {0: "", 1: " class=best", 2: " class=second"}

    def cell_tag(cell: Cell) -> str:
        value = "" if math.isnan(cell.value) else f" data-value={cell.value!r}"
        return f"<td{names[cell.rank]}{value}>{html.escape(cell.text)}"

    rows = "".join("<tr>" + "".join(map(cell_tag, row)) for row in table.rows)
    return f"<table><thead><tr>{head}</thead><tbody>{rows}</tbody></table>"


def _link(directory: Path, run: Run) -> str:
    report = run.directory / "report.html"
    target = report if report.exists() else run.directory / "results.json"
    address = html.escape(os.path.relpath(target, directory), quote=True)
    return f'<li><a href="{address}">{html.escape(run.directory.name)}</a>'


def _image(figure: "Figure | SubFigure", caption: str) -> str:
    buffer = io.BytesIO()
    figure.figure.savefig(buffer, format="png", dpi=110)
    data = base64.b64encode(buffer.getvalue()).decode()
    text = html.escape(caption)
    return f"<figure><img alt='{text}' src='data:image/png;base64,{data}'><figcaption>{text}</figcaption></figure>"


def plot_rows(group: Group, table: Table, metric: str) -> "Figure":
    """Mean and standard deviation of each row, beside published numbers, in %."""
    names = [row[0].text for row in table.rows]
    heading = _heading(metric)
    figure = drawing.figure(7.5, 1.1 + 0.24 * len(names))
    axes = drawing.style(figure.subplots())
    rows = outcomes.refined_rows(group)
    spreads = [outcomes.spread([run.results[metric] for run in rows[name] if metric in run.results]) for name in names]
    places = range(len(names))
    errors = [0 if math.isnan(s.deviation) else 100 * s.deviation for s in spreads]
    axes.errorbar(
        [100 * s.mean for s in spreads], places, xerr=errors, fmt="o", color=drawing.BLUE, capsize=2, label="these runs"
    )
    sources = [h.removeprefix(f"{heading} ") for h in table.head if h.startswith(f"{heading} ")]
    for source, marker, colour in zip(sources, drawing.MARKERS[1:], drawing.SERIES[1:], strict=False):
        column = table.head.index(f"{heading} {source}")
        points = [(100 * row[column].value, i) for i, row in enumerate(table.rows) if not math.isnan(row[column].value)]
        axes.plot(*zip(*points, strict=True), marker, color=colour, fillstyle="none", linestyle="none", label=source)
    axes.set(yticks=list(places), yticklabels=names, xlabel=f"{heading}, %")
    axes.invert_yaxis()
    axes.grid(axis="x", linewidth=0.4)
    if sources:
        drawing.legend(axes, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def plot_curves(group: Group, metric: str) -> "Figure | None":
    """The metric at every evaluation of every run; None if no run was evaluated during training."""
    found = {
        name: [(split, points) for split, points in (outcomes.curve(run, metric) for run in runs) if points]
        for name, runs in group.rows.items()
    }
    found = {name: curves for name, curves in found.items() if curves}
    if not found:
        return None
    figure = drawing.figure(7.5, 3.6)
    axes = drawing.style(figure.subplots())
    final = {name: sum(points[-1][1] for _, points in curves) / len(curves) for name, curves in found.items()}
    best = sorted(found, key=lambda name: -final[name])[: len(drawing.SERIES)]
    colours = dict(zip([name for name in found if name in best], drawing.SERIES, strict=False))
    splits = {split for curves in found.values() for split, _ in curves}
    for name in sorted(found, key=lambda name: name in colours):  # coloured ones on top
        label = name if name in colours else "others"
        if label in axes.get_legend_handles_labels()[1]:
            label = "_"
        for i, (_, points) in enumerate(found[name]):
            axes.plot(
                *zip(*((step, 100 * value) for step, value in points), strict=True), linewidth=1.2, marker="o",
                markersize=2.5, color=colours.get(name, drawing.GREY), label=label if i == 0 else "_",
            )  # fmt: skip
    axes.set(xlabel="step", ylabel=f"{_heading(metric)} on {' or '.join(sorted(splits))} classes, %")
    axes.grid(axis="y", linewidth=0.4)
    drawing.legend(axes, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
