"""The numbers that papers and reproductions print, from `*/published.csv`: one line per number.

Columns:

    paper, place    where the number is printed; "quoted by" if the paper itself was not read
    data            the data set
    of              one or several experiments, separated by "; ": a configuration,
                    "cars_hist:retuned", or the row of a study,
                    "hist:sizes-cars/embedding_dim=256 hidden_dim=256"
    refined         kind of batches (`evaluation.refine`) if measured after test-time refinement
    source          paper, reproduction, or authors' weights (evaluated again by a reproduction)
    protocol        paper: model selected on the test classes; clean: otherwise; or not stated
    settings        where they differ from those of the configuration
    metric          recall@K or nmi; density or spectral_decay
    printed         percent, or a number of the last two, as printed
    spread          ± as printed
"""

import csv
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from dml_jax.lab.definition import Study

SELECTED = {"paper": "selected on test", "clean": "not selected on test"}


class Entry(NamedTuple):
    """A line of `published.csv`; see above."""

    paper: str
    place: str
    data: str
    of: tuple[str, ...]
    refined: str
    source: str
    protocol: str
    settings: str
    metric: str
    printed: str
    spread: str

    @property
    def fraction(self) -> float:
        """The number as a fraction, or unchanged if it is not a percentage."""
        if self.metric in ("density", "spectral_decay"):
            return float(self.printed)
        return round(float(self.printed) / 100, 6)

    @property
    def numbers(self) -> dict[str, float]:
        """The fraction, and half the width of its printed interval, if any, by key of
        `results.json`."""
        if not self.spread:
            return {self.metric: self.fraction}
        spread = round(float(self.spread) / 100, 6)
        return {self.metric: self.fraction, f"{self.metric}_stderr": spread}


@cache
def entries() -> tuple[Entry, ...]:
    """All lines of all papers, in the order of the files."""
    found: list[Entry] = []
    for path in sorted(Path(__file__).parent.glob("*/published.csv")):
        with path.open(encoding="utf-8", newline="") as lines:
            read = csv.DictReader(lines)
            found += (Entry(**line | {"of": tuple(line["of"].split("; "))}) for line in read)
    return tuple(found)


def results(of: str) -> Iterator[list[Entry]]:
    """The results of a configuration or a row, each with all its metrics."""
    found = (entry for entry in entries() if of in entry.of)
    for _, metrics in groupby(found, lambda entry: entry[:8]):
        yield list(metrics)


def beside_runs(of: str) -> dict[str, dict[str, dict[str, float]]]:
    """The published results to show with the runs of a configuration, by the run's protocol and the
    source.

    For each source, this is the result with the same protocol and settings, or else the first one,
    with a note on what differs.
    """
    protocols = {protocol: _beside(of, protocol) for protocol in ("clean", "paper")}
    return {protocol: found for protocol, found in protocols.items() if found}


def _beside(of: str, protocol: str) -> dict[str, dict[str, float]]:
    nearest: dict[str, tuple[list[str], list[Entry]]] = {}
    for result in results(of):
        entry = result[0]
        selected = SELECTED.get(entry.protocol, "selection not stated")
        refined = f"after refinement, {entry.refined}" if entry.refined else ""
        differences = [entry.settings, refined, selected if entry.protocol != protocol else ""]
        differences = [difference for difference in differences if difference]
        if entry.source not in nearest or len(differences) < len(nearest[entry.source][0]):
            nearest[entry.source] = differences, result
    return {
        source + (f" ({'; '.join(differences)})" if differences else ""): {
            key: number for entry in result for key, number in entry.numbers.items()
        }
        for source, (differences, result) in nearest.items()
    }


def beside_rows(name: str, study: Study) -> Study:
    """A study with the published results of its rows added.

    Args:
      name: of the study with its variant, "hist:sizes-cars".
      study: results that its rows state already take precedence.
    """
    rows = []
    for row in study.rows:
        reported: dict[str, dict[str, float]] = {}
        refined: dict[str, dict[str, dict[str, float]]] = {}
        for entry in (entry for metrics in results(f"{name}/{row.name}") for entry in metrics):
            sources = refined.setdefault(entry.refined, {}) if entry.refined else reported
            sources.setdefault(entry.source, {}).update(entry.numbers)
        rows.append(
            replace(row, reported={**reported, **row.reported}, refined={**refined, **row.refined})
        )
    return replace(study, rows=tuple(rows))
