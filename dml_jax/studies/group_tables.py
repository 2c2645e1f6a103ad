"""The table of a group of rows, and its text, Markdown, LaTeX and CSV."""

import io
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from dml_jax.analysis.html import Cell
from dml_jax.errors import printable
from dml_jax.evaluation import metric_table
from dml_jax.evaluation.metric_table import MetricEntry
from dml_jax.files import write_csv
from dml_jax.studies import outcomes
from dml_jax.studies.outcomes import Group, Run

DIGITS = 1  # decimal places of percentages


class Table(NamedTuple):
    """A table with sentences below it."""

    title: str
    notes: tuple[str, ...]
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]  # cells, as many as headings
    narrow: tuple[int, ...]  # indices of the columns that fit on a terminal


def build(title: str, group: Group, metric: str, reported: Mapping[str, Mapping[str, Any]]) -> Table:
    """The table of a group, whose rows are compared by `metric`, with published metrics by row and source."""
    rows = outcomes.all_rows(group)
    entries = metric_table.columns({key: 0 for runs in rows.values() for key in runs[0].results})
    known = {name: outcomes.published(runs[0], reported.get(name, {})) for name, runs in rows.items()}
    sources = list(dict.fromkeys(source for found in known.values() for source in found))
    columns: dict[str, list[Cell]] = {"seeds": [Cell(str(len(runs)), len(runs)) for runs in rows.values()]}
    others: list[str] = []  # columns of published metrics of another kind, e.g. the density
    for entry in entries:
        columns[entry.heading] = _ranked([_spread_cell(runs, entry) for runs in rows.values()], entry)
        for source in sources:
            cells = [_published_cell(found.get(source, {}), entry) for found in known.values()]
            if any(cell.text for cell in cells):
                columns[f"{entry.heading} {source}"] = cells
                others += [] if entry.percent else [entry.heading, f"{entry.heading} {source}"]
    if len(rows) > 1:
        columns |= _significance(rows, metric)
    columns |= _costs(list(rows.values()))
    main = next((entry.heading for entry in entries if entry.name == metric), "")
    beside = (f"{main} {source}" for source in sources)
    shown = ("seeds", main, *beside, *(others or ("MAP@R", "NMI")), "p queries", "p seeds", "time")
    head = ("", *columns)
    lines = tuple((Cell(printable(name)), *(column[i] for column in columns.values())) for i, name in enumerate(rows))
    narrow = tuple(i for i, heading in enumerate(head) if heading in shown or i == 0)
    notes = tuple(map(printable, _notes(group, head, main, known)))
    return Table(printable(title), notes, head, lines, narrow)


def _notes(group: Group, head: Sequence[str], main: str, known: Mapping[str, Any]) -> list[str]:
    notes = [f"Data: {group.data or 'of the members'}. Evaluation: {group.protocol}."]
    notes.append(
        "Retrieval and NMI in %, mean ± standard deviation over seeds; bold: best, underlined: second best of a "
        "column. Time, speed and memory of the training, without compilation and evaluations: medians over seeds."
    )
    on_test = [name for name, runs in group.rows.items() if any(run.results.get("model") == "test" for run in runs)]
    if on_test:
        which = "all rows" if len(on_test) == len(group.rows) else ", ".join(on_test)
        notes.append(f"Models selected on the test classes, so that their results are optimistic: {which}.")
    if "p queries" in head or "p seeds" in head:
        notes.append(
            f"p: of the difference to the row with the best {main}; 'queries', paired test over the test queries for "
            "the seeds at hand, which takes queries of one class for independent and is therefore optimistic; 'seeds', "
            "Welch's test over seeds. Not corrected for the number of rows."
        )
    shown = any(metrics for found in known.values() for metrics in found.values())
    if shown and len(on_test) < len(group.rows):
        others = "the other rows" if on_test else "these runs"
        notes.append(f"Published numbers are usually of the epoch that is best on the test set; {others} are not.")
    return notes


def numbers(runs: Sequence[Run], metric: str) -> list[float]:
    """A metric of the runs that have it; an undefined one (no relevant images) is null."""
    return [run.results[metric] for run in runs if isinstance(run.results.get(metric), float | int)]


def _spread_cell(runs: Sequence[Run], entry: MetricEntry) -> Cell:
    values = numbers(runs, entry.name)
    if not values:
        return Cell("–")
    mean, deviation, count = outcomes.spread(values)
    text = _number(mean, entry) + (f" ± {_number(deviation, entry)}" if count > 1 else "")
    return Cell(text, mean)


def _published_cell(metrics: Mapping[str, float], entry: MetricEntry) -> Cell:
    if entry.name not in metrics:
        return Cell("")
    value = metrics[entry.name]
    text = f"{100 * value:.{metric_table.printed_digits(metrics)}f}" if entry.percent else f"{value:.2f}"
    return Cell(text, value)


def _number(value: float, entry: MetricEntry) -> str:
    return f"{100 * value:.{DIGITS}f}" if entry.percent else f"{value:.3f}"


def _ranked(cells: list[Cell], entry: MetricEntry) -> list[Cell]:
    """Marks the best and the second best; equal values share a rank. Metrics without a direction are not marked."""
    order = sorted({cell.value for cell in cells if not math.isnan(cell.value)}, reverse=True)
    if not entry.percent or len(order) < 2:
        return cells
    ranks = {value: rank for rank, value in enumerate(order[:2], start=1)}
    return [cell._replace(rank=ranks.get(cell.value, 0)) for cell in cells]


def _significance(rows: Mapping[str, list[Run]], metric: str) -> dict[str, list[Cell]]:
    values = {name: numbers(runs, metric) or [math.nan] for name, runs in rows.items()}
    means = {name: statistics.fmean(found) for name, found in values.items()}
    best = max(means, key=lambda name: -math.inf if math.isnan(means[name]) else means[name])
    queries = [math.nan if n == best else outcomes.query_test(runs, rows[best], metric) for n, runs in rows.items()]
    seeds = [math.nan if n == best else outcomes.seed_test(v, values[best]) for n, v in values.items()]
    columns = {"p queries": queries, "p seeds": seeds}
    return {
        heading: [Cell(_p_value(p), p) for p in column]
        for heading, column in columns.items()
        if not all(map(math.isnan, column))
    }


def pairs(table: Table, group: Group, metric: str) -> Table | None:
    """p-values between every two of the rows of a table, compared by `metric`; None with fewer than three."""
    means = {name: outcomes.query_means(runs, metric) for name, runs in outcomes.all_rows(group).items()}
    names = [name for name, found in means.items() if found is not None]
    if len(names) < 3:
        return None
    heading, rows = metric_table.heading(metric), []
    for name in names:
        found = [math.nan if name == n else outcomes.paired_test(means[name], means[n]) for n in names]
        rows.append((Cell(printable(name)), *(Cell(_p_value(p), p) for p in found)))
    note = "Paired test over the test queries for the seeds at hand, as above. Not corrected for the number of pairs."
    head = ("", *map(printable, names))
    return Table(f"{table.title}; p-values of the differences in {heading}", (note,), head, tuple(rows), ())


def _p_value(p: float) -> str:
    return "" if math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"


def _costs(rows: Sequence[Sequence[Run]]) -> dict[str, list[Cell]]:
    """Medians over seeds of training time, speed and memory."""
    columns: dict[str, list[Cell]] = {}
    for heading, key, text in (
        ("time", "seconds", duration),
        ("images/s", "images_per_second", lambda value: f"{value:.0f}"),
        ("memory", "peak_memory", lambda value: f"{value / 2**20:.0f} MiB"),
    ):
        values = [[run.timing[key] for run in runs if key in run.timing] for runs in rows]
        if any(values):
            columns[heading] = [
                Cell(text(statistics.median(v)), statistics.median(v)) if v else Cell("") for v in values
            ]
    return columns


def duration(seconds: float) -> str:
    """A time for people: "45 s", "12 min", "3.4 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def print_table(table: Table, console: Console) -> None:
    """Prints the columns that matter most."""
    printed = RichTable(title=escape(table.title), title_justify="left")
    for i in table.narrow:
        longest = max(len(row[i].text) for row in table.rows)  # only names and headings are wrapped
        printed.add_column(escape(table.head[i]), justify="right" if i else "left", min_width=longest if i else None)
    style = {0: "", 1: "bold", 2: "underline"}
    for row in table.rows:
        printed.add_row(*(Text(row[i].text, style[row[i].rank]) for i in table.narrow))
    console.print(printed)
    for note in table.notes:
        console.print(note, style="dim", markup=False)


def markdown(table: Table) -> str:
    """The table in Markdown; the second best is underlined by HTML, which Markdown allows."""
    form = {0: "{}", 1: "**{}**", 2: "<u>{}</u>"}
    lines = [f"## {table.title}", ""]
    lines.append("| " + " | ".join(heading.replace("|", r"\|") for heading in table.head) + " |")
    lines.append("|---" + "|---:" * (len(table.head) - 1) + "|")
    for row in table.rows:
        lines.append("| " + " | ".join(form[cell.rank].format(cell.text.replace("|", r"\|")) for cell in row) + " |")
    return "\n".join([*lines, "", *table.notes, ""])


def latex(table: Table) -> str:
    """The table in LaTeX, with the package booktabs."""
    form = {0: "{}", 1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"}

    def line(cells: Sequence[str]) -> str:
        return "  " + " & ".join(cells) + r" \\"

    body = [line([form[cell.rank].format(_tex(cell.text)) for cell in row]) for row in table.rows]
    return "\n".join(
        [
            r"\begin{table}", r"  \centering", rf"  \caption{{{_tex(' '.join((table.title + '.', *table.notes)))}}}",
            rf"  \begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}", r"  \toprule",
            line([_tex(heading) for heading in table.head]), r"  \midrule", *body,
            r"  \bottomrule", r"  \end{tabular}", r"\end{table}", "",
        ]
    )  # fmt: skip


def _tex(text: str) -> str:
    signs = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\^{}", "<": "$<$", ">": "$>$", "±": r"$\pm$"}
    escaped = "".join(signs.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
    return re.sub("-(?=-)", "-{}", escaped).replace("–", "--")  # keeps two hyphens from becoming a dash


def comma_separated(table: Table) -> str:
    """The table as CSV with full precision: the text of a cell, followed by its value where it has one.

    The last column is the title, since a file may hold several tables.
    """
    valued = [any(not math.isnan(row[i].value) for row in table.rows) for i in range(len(table.head))]
    head: list[str] = []
    for heading, has_value in zip(table.head, valued, strict=True):
        head += [heading or "row", f"{heading} (value)"] if has_value else [heading or "row"]
    rows = [[*head, "table"]]
    for row in table.rows:
        cells: list[str] = []
        for cell, has_value in zip(row, valued, strict=True):
            cells += [cell.text, "" if math.isnan(cell.value) else repr(cell.value)] if has_value else [cell.text]
        rows.append([*cells, table.title])
    out = io.StringIO()
    write_csv(out, rows)
    return out.getvalue()
