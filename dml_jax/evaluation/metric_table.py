"""Reported metrics in display order, with their keys in `results.json` and headings in tables.

To add a metric, compute it in `protocol.evaluate` and list it in `METRICS`; the console tables and
the HTML report show every listed metric in the results.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class MetricEntry(NamedTuple):
    """A metric with the key `name`; its standard error, if known, has the key `<name>_stderr`.

    A name that ends in "@K" is a family with one key per number K.
    """

    name: str
    heading: str  # column heading; a final K is replaced, too
    percent: bool = True  # whether tables show it in percent
    secondary: bool = False  # omitted from console tables with one column per metric


PER_QUERY = "_per_query"  # suffix of keys of values per query
USER = "user/"  # prefix of keys of metrics that a configuration names by import path
METRICS = (
    MetricEntry("recall@K", "R@K"),
    MetricEntry("macro_recall@1", "R@1 per class", secondary=True),
    MetricEntry("mrr", "MRR", secondary=True),
    MetricEntry("map@r", "MAP@R"),
    MetricEntry("ndcg", "nDCG"),
    MetricEntry("ndcg@K", "nDCG@K", secondary=True),
    MetricEntry("r_precision", "R-precision"),
    MetricEntry("nmi", "NMI"),
    MetricEntry("density", "density", percent=False),
    MetricEntry("spectral_decay", "spectral decay", percent=False),
)


def columns(results: Mapping[str, Any]) -> list[MetricEntry]:
    """The metrics in `results` in display order; families are expanded by increasing K."""
    entries = []
    for entry in METRICS:
        if entry.name.endswith("@K"):
            prefix = entry.name.removesuffix("K")
            numbers = (key.removeprefix(prefix) for key in results if key.startswith(prefix))
            ks = sorted(int(number) for number in numbers if number.isdecimal())
            heading = entry.heading.removesuffix("K")
            entries += [entry._replace(name=f"{prefix}{k}", heading=f"{heading}{k}") for k in ks]
        elif entry.name in results:
            entries.append(entry)
    user = [name for name in results if name.startswith(USER) and not name.endswith("_stderr")]
    return [*entries, *(MetricEntry(name, name.removeprefix(USER), percent=False) for name in user)]


def heading(name: str) -> str:
    """The heading of one metric; its name if it is not listed."""
    return next((entry.heading for entry in columns({name: 0})), name)


def in_display_order(results: Mapping[str, Any]) -> dict[str, Any]:
    """Puts each listed metric, followed by its standard error, before all other results."""
    pairs = ((entry.name, f"{entry.name}_stderr") for entry in columns(results))
    listed = {key: results[key] for pair in pairs for key in pair if key in results}
    return listed | dict(results)


def printed_digits(published: Mapping[str, float]) -> int:
    """Decimal places, 1 or 2, of a paper's percentages, from all its metrics as fractions."""
    values = (value for name, value in published.items() if not name.endswith("_stderr"))
    return max(len(f"{100 * value:.2f}".rstrip("0").partition(".")[2]) for value in values) or 1


def cell(results: Mapping[str, Any], entry: MetricEntry, *, digits: int = 1) -> str:
    """Formats a metric with its standard error, if any; a dash if it is missing or undefined.

    Percentages have the decimal places in the results, or else `digits`; other values have four.
    """
    digits = results.get("digits", digits)
    value = results.get(entry.name)
    if value is None or math.isnan(value):
        return "–"

    def number(value: float) -> str:
        return f"{100 * value:.{digits}f}" if entry.percent else f"{value:.4f}"

    error = results.get(f"{entry.name}_stderr")
    return number(value) + (f" ± {number(error)}" if error is not None else "")
