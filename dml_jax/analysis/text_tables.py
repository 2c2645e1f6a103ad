"""Tables of text: on the console, in Markdown and in LaTeX."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from dml_jax import files
from dml_jax.errors import ConfigError, printable, suggest


class Table(NamedTuple):
    """A table with notes below it."""

    title: str
    notes: Sequence[str]
    columns: Mapping[str, Sequence[str]]  # cells by heading; the first has the names of the rows
    best: Collection[tuple[str, int]] = ()  # heading and row of the best cells of each column
    narrow: Sequence[str] = ()  # headings of the columns to show on a terminal; empty for all


def print_table(table: Table, console: Console) -> None:
    """Prints the narrow version of a table."""
    printed = RichTable(title=escape(table.title), title_justify="left")
    headings = table.narrow or list(table.columns)
    for i, heading in enumerate(headings):
        # Only headings and the names of the rows are wrapped.
        width = max(map(len, table.columns[heading]), default=0) if i else None
        printed.add_column(escape(heading), justify="right" if i else "left", min_width=width)
    for row, cells in enumerate(
        zip(*(table.columns[heading] for heading in headings), strict=True)
    ):
        styles = ("bold" if (heading, row) in table.best else "" for heading in headings)
        printed.add_row(*map(Text, cells, styles))
    console.print(printed)
    for note in table.notes:
        console.print(note, style="dim", markup=False)


def _lines(table: Table, escaped: Callable[[str], str], bold: str) -> list[list[str]]:
    """The escaped headings, then the cells of each row, the best ones in the format `bold`."""
    lines = [[escaped(heading) for heading in table.columns]]
    for row, cells in enumerate(zip(*table.columns.values(), strict=True)):
        styles = [bold if (heading, row) in table.best else "{}" for heading in table.columns]
        lines.append([s.format(escaped(cell)) for s, cell in zip(styles, cells, strict=True)])
    return lines


def markdown(table: Table) -> str:
    """The table in Markdown."""
    lines = _lines(table, lambda text: text.replace("|", r"\|"), "**{}**")
    head, *rows = ("| " + " | ".join(line) + " |" for line in lines)
    rule = "|---" + "|---:" * (len(table.columns) - 1) + "|"
    return "\n".join([f"## {table.title}", "", head, rule, *rows, "", *table.notes, ""])


def latex(table: Table) -> str:
    """The table in LaTeX, with the package booktabs."""
    lines = _lines(table, _tex, r"\textbf{{{}}}")
    head, *body = ("  " + " & ".join(line) + r" \\" for line in lines)
    # The first note belongs to the caption; further notes are comments.
    caption = _tex(" ".join((f"{table.title}.", *table.notes[:1])))
    kinds, rows = "l" + "r" * (len(table.columns) - 1), "\n".join(body)
    notes = "".join(f"  % {note}\n" for note in table.notes[1:])
    return rf"""\begin{{table}}
  \centering
  \caption{{{caption}}}
  \begin{{tabular}}{{{kinds}}}
  \toprule
{head}
  \midrule
{rows}
  \bottomrule
  \end{{tabular}}
{notes}\end{{table}}
"""


def _tex(text: str) -> str:
    symbols = {"<": "$<$", ">": "$>$", "±": r"$\pm$"}
    symbols |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\^{}"}
    escaped = "".join(symbols.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
    # Keeps two hyphens from becoming a dash.
    return re.sub("-(?=-)", "-{}", escaped).replace("–", "--")


def only(table: Table, headings: Sequence[str]) -> Table:
    """The table with only these columns, in this order, after the names of the rows."""
    first, *available = table.columns
    for heading in headings:
        if heading not in available:
            raise ConfigError(f"--columns: {heading!r} is unknown; {suggest(heading, available)}")
    columns = {heading: table.columns[heading] for heading in (first, *headings)}
    return table._replace(columns=columns, narrow=())


def write_report(output: Path, tables: Sequence[Table], lead: str) -> None:
    """Writes tables to report.md, after the paragraph `lead`, and to report.tex."""
    output.mkdir(parents=True, exist_ok=True)
    texts = {"md": [f"{printable(lead)}\n"] * bool(lead) + [markdown(table) for table in tables]}
    texts["tex"] = [latex(table) for table in tables]
    for suffix, parts in texts.items():
        with files.atomic_write(output / f"report.{suffix}") as draft:
            draft.write_text("\n".join(parts), encoding="utf-8")
