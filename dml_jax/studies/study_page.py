"""One HTML page about many runs: sortable tables, learning curves, rows beside published numbers, links to reports."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from dml_jax import files
from dml_jax.analysis import drawing, html
from dml_jax.analysis.html import text
from dml_jax.evaluation import metric_table
from dml_jax.studies import group_tables, outcomes
from dml_jax.studies.group_tables import Table
from dml_jax.studies.outcomes import Group, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure


def write(
    path: Path,
    title: str,
    lead: str,
    parts: Sequence[tuple[Table, Group]],
    metric: str,
    figures: "Mapping[str, Figure | SubFigure] | None" = None,
    failed: Sequence[str] = (),
) -> None:
    """Writes the page, with `lead` below its title, the tables with their runs, and lines about failed trials.

    `figures`, by caption, take the place of the one that compares rows by `metric`.
    """
    heading, parts_of_page = metric_table.heading(metric), []
    captions = {
        "rows": f"{heading} by row: mean and standard deviation over seeds.",
        "grid": f"{heading} over the two varied values, in %: mean over seeds.",
        "curves": f"{heading} during training, one line per run; rows as in the table.",
        "spectra": "Singular values of the test embeddings, largest first, divided by their sum; rows as in the table.",
    }
    for number, (table, group) in enumerate(parts, start=1):
        parts_of_page.append(_table(table))
        rows = plot_rows(group, table, metric) if figures is None else None
        drawn = (rows, plot_grid(group, metric), plot_curves(group, metric), plot_spectra(group))
        for (name, caption), chart in zip(captions.items(), drawn, strict=True):
            if chart:
                parts_of_page.append(html.chart(drawing.svg(chart), f"{name}-{number}", caption))
        if pairs := group_tables.pairs(table, group, metric):
            parts_of_page.append(_table(pairs))
    for number, (caption, figure) in enumerate((figures or {}).items(), start=1):
        parts_of_page.append(html.chart(drawing.png(figure), f"search-{number}", text(caption)))
    if failed:
        lines = "".join(f"<li>{text(line)}</li>" for line in failed)
        parts_of_page.append(f"{html.heading('Without results')}<ul>{lines}</ul>")
    links = "".join(_link(path.parent, run) for _, group in parts for runs in group.rows.values() for run in runs)
    parts_of_page.append(f"{html.heading('Runs')}<ul class=runs>{links}</ul>")
    body = f'<h1>{text(title)}</h1><p class="lead">{text(lead)}</p>{"".join(parts_of_page)}'
    with files.atomic_write(path) as draft:
        draft.write_text(html.document(title, body), encoding="utf-8")


def _table(table: Table) -> str:
    notes = "".join(f'<p class="note">{text(note)}</p>' for note in table.notes)
    return html.heading(table.title) + html.table(("row", *table.head[1:]), table.rows, table.title) + notes


def _link(directory: Path, run: Run) -> str:
    report = run.directory / "report.html"
    target = report if report.exists() else run.directory / "results.json"
    address = quote(os.fsencode(os.path.relpath(target, directory)))  # names may hold "#", "?" and "%"
    return f'<li><a href="{address}">{text(run.directory.name)}</a></li>'


def plot_rows(group: Group, table: Table, metric: str) -> "Figure":
    """Mean and standard deviation of each row, beside published numbers, in %."""
    heading = metric_table.heading(metric)
    rows = outcomes.all_rows(group)  # as in the table
    figure = drawing.figure(7.5, 1.1 + 0.24 * len(rows))
    axes = drawing.style(figure.subplots())
    spreads = [outcomes.spread(group_tables.numbers(runs, metric) or [math.nan]) for runs in rows.values()]
    places = range(len(rows))
    errors = [0 if math.isnan(s.deviation) else 100 * s.deviation for s in spreads]
    axes.errorbar(
        [100 * s.mean for s in spreads], places, xerr=errors, fmt="o", color=drawing.BLUE, capsize=2, label="these runs"
    )
    shown = [table.head[i] for i in table.narrow]  # without "R@1 per class", which is of these runs, too
    sources = [h.removeprefix(f"{heading} ") for h in shown if h.startswith(f"{heading} ")]
    for source, marker, colour in zip(sources, drawing.MARKERS[1:], drawing.SERIES[1:], strict=False):
        column = table.head.index(f"{heading} {source}")
        points = [(100 * row[column].value, i) for i, row in enumerate(table.rows) if not math.isnan(row[column].value)]
        axes.plot(
            *zip(*points, strict=True), marker, color=colour, fillstyle="none", linestyle="none",
            label=drawing.text(source, 60),
        )  # fmt: skip
    axes.set(yticks=list(places), yticklabels=[drawing.text(name, 60) for name in rows], xlabel=f"{heading}, %")
    axes.invert_yaxis()
    axes.grid(axis="x", linewidth=0.4, color=drawing.GREY, alpha=0.5)
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
    markers = dict(zip(colours, drawing.MARKERS, strict=False))
    splits = {split for curves in found.values() for split, _ in curves}
    for number, name in enumerate(sorted(found, key=lambda name: name in colours)):  # coloured ones on top
        label = drawing.text(name, 60) if name in colours else "_" if number else "others"
        for i, (_, points) in enumerate(found[name]):
            axes.plot(
                *zip(*((step, 100 * value) for step, value in points), strict=True), linewidth=1.2, markersize=3.5,
                color=colours.get(name, drawing.GREY), marker=markers.get(name, "."), label=label if i == 0 else "_",
            )  # fmt: skip
    axes.set(xlabel="step", ylabel=f"{metric_table.heading(metric)} on {' or '.join(sorted(splits))} classes, %")
    axes.grid(axis="y", linewidth=0.4, color=drawing.GREY, alpha=0.5)
    drawing.legend(axes, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def plot_grid(group: Group, metric: str) -> "Figure | None":
    """A heat map of rows such as "layers=1 heads=2"; None unless all rows vary the same two values."""
    found = {name: re.fullmatch(r"(\S+)=(\S+) (\S+)=(\S+)", name) for name in group.rows}
    keys = {(m[1], m[3]) if m else ("", "") for m in found.values()}
    if len(keys) != 1 or ("", "") in keys:
        return None
    ((first, second),) = keys
    values = {
        (m[2], m[4]): 100 * outcomes.spread(group_tables.numbers(group.rows[name], metric) or [math.nan]).mean
        for name, m in found.items()
        if m
    }
    rows, columns = (list(dict.fromkeys(key[i] for key in values)) for i in range(2))
    if min(len(rows), len(columns)) < 2:
        return None
    table = [[values.get((row, column), math.nan) for column in columns] for row in rows]
    figure = drawing.figure(1.8 + 0.75 * len(columns), 1.2 + 0.45 * len(rows))
    axes = figure.subplots()
    shown = axes.imshow(table, cmap="Blues", aspect="auto")
    middle = (max(values.values()) + min(values.values())) / 2
    for (row, column), value in values.items():
        colour = "white" if value > middle else drawing.INK
        axes.text(columns.index(column), rows.index(row), f"{value:.1f}", ha="center", va="center", color=colour)
    axes.set(xticks=range(len(columns)), xticklabels=columns, yticks=range(len(rows)), yticklabels=rows)
    axes.set(xlabel=second.replace("_", " "), ylabel=first.replace("_", " "))
    figure.colorbar(shown, ax=axes, label=f"{metric_table.heading(metric)}, %")
    return figure


def plot_spectra(group: Group) -> "Figure | None":
    """The spectrum of the first run of every row, as far as there are colours; None if no run has one."""
    geometries = {name: runs[0].results.get("geometry", {}) for name, runs in group.rows.items()}
    found = {name: known["singular_values"] for name, known in geometries.items() if "singular_values" in known}
    if not found:
        return None
    figure = drawing.figure(7.5, 3.6)
    axes = drawing.style(figure.subplots())
    for (name, shares), colour in zip(found.items(), drawing.SERIES, strict=False):
        heights = [max(share, 1e-9) for share in shares]
        axes.plot(range(1, len(shares) + 1), heights, color=colour, linewidth=1.3, label=drawing.text(name, 60))
    axes.set(xlabel="index of the singular value", ylabel="share of their sum", yscale="log")
    axes.grid(axis="y", linewidth=0.4, color=drawing.GREY, alpha=0.5)
    drawing.legend(axes, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
