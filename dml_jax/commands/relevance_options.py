"""The options of `dml-jax evaluate` beyond one class per row: --relevant, --exclude, --groups and --categories."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from dml_jax import files
from dml_jax.commands.cli import Parser
from dml_jax.errors import ConfigError, DataError, printable
from dml_jax.evaluation import check_inputs, metric_table

INPUTS = ("relevant", "exclude", "groups", "query_groups")


def add_to(flags: Parser) -> None:
    """Adds the options to a command line."""
    flags.add_argument(
        "--relevant", metavar="FILE", help='relevant rows in place of labels: .jsonl, [3,17] or {"3":2} per query'
    )
    flags.add_argument("--exclude", metavar="FILE", help="rows to leave out: .jsonl, or .npy [Q, M] filled up with -1")
    flags.add_argument("--groups", metavar="FILE", help="e.g. cameras: leave out relevant rows of the query's group")
    flags.add_argument("--query_groups", metavar="FILE", help="groups of the queries")
    flags.add_argument("--categories", metavar="FILE", help="add the metrics of each category of queries")


def check(options: argparse.Namespace) -> None:
    """Raises ConfigError for combinations of options that make no sense."""
    if options.relevant and (options.labels or options.query_labels):
        raise ConfigError("--relevant: replaces the labels; leave out --labels and --query_labels")
    if options.query_groups and not options.query_embeddings:
        raise ConfigError("--query_groups: needs --query_embeddings; without queries, give --groups only")
    if options.groups and options.query_embeddings and not options.query_groups:
        raise ConfigError("--groups: with queries, give --query_groups too")
    given = [key for key in INPUTS if getattr(options, key)]
    if given and (options.rerank or options.expand):
        raise ConfigError(f"--{given[0]}: not with --rerank and --expand")
    if given and options.protocol == "paper":
        raise ConfigError(f"--{given[0]}: needs --protocol=clean")


def check_labels(options: argparse.Namespace, labels: Any) -> None:
    """Raises ConfigError for options that need one class per row."""
    needing = [key for key in ("rerank", "expand", "verification", "geometry", "storage") if getattr(options, key)]
    if not isinstance(labels, np.ndarray):
        if needing:
            raise ConfigError(f"--{needing[0]}: needs one class per row")
        if not options.no_clustering:
            raise ConfigError("--no_clustering: missing; NMI needs one class per row")


def load(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `metrics.retrieval` that the options name."""
    found: dict[str, Any] = {}
    for key in (*INPUTS, "categories"):
        if text := getattr(options, key):
            path = files.expand_path(f"--{key}", text)
            found[key] = _rows(path, f"--{key}") if key in ("relevant", "exclude") else load_classes(path, f"--{key}")
    if options.query_embeddings and "groups" in found:
        found["gallery_groups"], found["groups"] = found["groups"], found.pop("query_groups")
    return found


def load_classes(path: Path, name: str) -> np.ndarray | list[list[str]]:
    """Classes from a `.npy` file, a text file with one per line, or a `.tsv` file with any number per line, by tabs."""
    if path.suffix == ".npy":
        return check_inputs.load(path, name=name)
    if path.suffix == ".tsv":
        return [[word for word in line.split("\t") if word] for line in _lines(path, name)]
    return check_inputs.read_lines(path, name=name)


def _rows(path: Path, name: str) -> Any:
    """Rows of each query, from a `.npy` file or from lines of JSON; the rows of a JSON object become integers."""
    if path.suffix == ".npy":
        return check_inputs.load(path, name=name)
    found = []
    for number, line in enumerate(_lines(path, name), start=1):
        try:
            value = json.loads(line)
            found.append({int(row): grade for row, grade in value.items()} if isinstance(value, dict) else list(value))
        except (ValueError, TypeError):
            raise DataError(f'{name}={path}: line {number} is not a list of rows, [3,17], or {{"3":2}}') from None
    return found


def _lines(path: Path, name: str) -> list[str]:
    """The lines of a UTF-8 text file; empty ones, too."""
    if not path.is_file():
        raise DataError(f"{name}={path}: there is no such file")
    with files.reading(f"{name}={path}"):
        try:
            return path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
        except UnicodeDecodeError:
            raise DataError("is not text in UTF-8") from None


def print_categories(results: dict[str, Any]) -> None:
    """Prints one row per category, with its number of queries and its metrics."""
    columns = [entry for entry in metric_table.columns(results) if not entry.secondary]
    columns = [entry for entry in columns if any(entry.name in values for values in results["categories"].values())]
    table = Table(box=box.SIMPLE, title="metrics of each category's queries in %")
    for heading in ("category", "queries", *(entry.heading for entry in columns)):
        table.add_column(heading, justify="left" if heading == "category" else "right")
    for name, values in results["categories"].items():
        cells = (metric_table.cell(values, entry, digits=2).split(" ±")[0] for entry in columns)
        table.add_row(printable(name), f"{values['queries']:,}", *cells)
    Console(highlight=False, soft_wrap=True, markup=False).print(table)
