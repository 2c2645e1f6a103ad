"""Console tables of results: one row per model, one column per metric."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dml_jax.errors import printable
from dml_jax.evaluation import metric_table


def print_results(
    title: str, rows: Sequence[tuple[str, dict[str, Any]]], results: dict[str, Any], console: Console
) -> None:
    """Prints a table of rows, by name and metrics, and the evaluation protocol below it.

    `results` is the main row, printed bold; it determines the columns and names the `protocol`.
    """
    columns = [entry for entry in metric_table.columns(results) if not entry.secondary]
    table = Table(title=escape(printable(title)), title_justify="left")
    table.add_column("", max_width=26)
    for entry in columns:
        table.add_column(entry.heading, justify="right", no_wrap=True)
    for name, numbers in rows:
        cells = (metric_table.cell(numbers, entry) for entry in columns)
        table.add_row(escape(printable(name)), *cells, style="bold" if numbers is results else "")
    console.print(table)
    console.print(results["protocol"], style="dim", markup=False)
