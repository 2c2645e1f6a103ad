"""The reported metrics in display order: their keys in `results.json`, their headings in tables.

Adding a metric takes one entry in `METRICS` and its computation in `protocol.evaluate`; the console
tables and the HTML report show every listed metric that the results hold.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class MetricEntry(NamedTuple):
    """One metric with the key `name`, and `<name>_stderr` for its standard error, if known.

    A name with the suffix "@K" stands for a family with one key per number K.
    """

    name: str
    heading: str  # column heading; K is replaced in the same way
    percent: bool = True  # whether tables show it in percent
    secondary: bool = False  # omitted from console tables that have one column per metric


PER_QUERY = "_per_query"  # suffix of the keys of values of single queries
USER = "user/"  # prefix of the keys of metrics that a configuration names by import paths
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
    """The metrics that `results` holds, in display order; families are expanded by increasing K."""
    found = []
    for entry in METRICS:
        if entry.name.endswith("@K"):
            prefix = entry.name.removesuffix("K")
            numbers = (key.removeprefix(prefix) for key in results if key.startswith(prefix))
            ks = sorted(int(number) for number in numbers if number.isdecimal())
            heading = entry.heading.removesuffix("K")
            found += [entry._replace(name=f"{prefix}{k}", heading=f"{heading}{k}") for k in ks]
        elif entry.name in results:
            found.append(entry)
    user = [name for name in results if name.startswith(USER) and not name.endswith("_stderr")]
    return [*found, *(MetricEntry(name, name.removeprefix(USER), percent=False) for name in user)]


def heading(name: str) -> str:
    """The heading of one metric; its name if it is not listed."""
    return next((entry.heading for entry in columns({name: 0})), name)


def in_display_order(results: Mapping[str, Any]) -> dict[str, Any]:
    """Reorders results: each listed metric followed by its standard error, then everything else."""
    pairs = ((entry.name, f"{entry.name}_stderr") for entry in columns(results))
    listed = {key: results[key] for pair in pairs for key in pair if key in results}
    return listed | dict(results)


def printed_digits(published: Mapping[str, float]) -> int:
    """Decimal places, 1 or 2, of a paper's percentages, from all its metrics as fractions."""
    values = (value for name, value in published.items() if not name.endswith("_stderr"))
    return max(len(f"{100 * value:.2f}".rstrip("0").partition(".")[2]) for value in values) or 1


def cell(results: Mapping[str, Any], entry: MetricEntry, *, digits: int = 1) -> str:
    """Formats a metric with its standard error, if any; a dash if it is missing or undefined.

    `digits` are the decimal places of percentages unless the results state them; others have four.
    """
    digits = results.get("digits", digits)
    value = results.get(entry.name)
    if value is None or math.isnan(value):
        return "–"

    def number(value: float) -> str:
        return f"{100 * value:.{digits}f}" if entry.percent else f"{value:.4f}"

    error = results.get(f"{entry.name}_stderr")
    return number(value) + (f" ± {number(error)}" if error is not None else "")
