"""Finished runs: rows of several seeds, published numbers, and tests of differences."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax import identity, seal
from dml_jax.config import decisive, published
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.files import read_json
from dml_jax.lab.plan import Trial
from dml_jax.seal import Seal

GEOMETRY = ("density", "spectral_decay")  # columns from `results["geometry"]`
IMAGES = ("labels.npy", "ids.json")  # files that identify the test images
REMEDY = "evaluate the run again, or leave it out"


def read_file(directory: Path, name: str = "results.json") -> dict[str, Any]:
    """A JSON file of a run, verified by its manifest; empty if the file is missing."""
    if not (directory / name).exists():
        return {}
    path = seal.file(directory, name, error=CheckpointError, remedy=REMEDY)
    content: dict[str, Any] = read_json(path, dict[str, Any], REMEDY, CheckpointError)
    if name == "results.json":
        identity.check_results(directory, content, REMEDY)
    return content


def _test_images(directory: Path) -> Seal:
    """The manifest of the test embeddings; empty if there are none."""
    place = directory / "embeddings" / "test"
    if not seal.sealed(place):
        return Seal("embeddings", {})
    return seal.read_manifest(place, "embeddings", error=CheckpointError, remedy=REMEDY)


def why_unfinished(trial: Trial) -> str:
    """The reason why a trial is incomplete; empty if it is complete."""
    results = read_file(trial.directory)
    if not results:
        return "not finished"
    finished_length = results.get("length", {})
    if trial.length and finished_length != trial.length:
        unit = "steps" if trial.length["steps"] else "epochs"
        return f"{finished_length.get(unit, 'unknown')} of {trial.length[unit]} {unit}"
    members = [asdict(_test_images(path)) for path in trial.members]
    if members and _test_images(trial.directory).about.get("members") != members:
        return "the embeddings of its members have changed"
    return ""


def finished(trials: Iterable[Trial]) -> set[str]:
    """The names of the finished trials; `trials` lists each after the trials that it needs.

    An ensemble is unfinished while one of its members is.
    """
    done: set[str] = set()
    for trial in trials:
        if not why_unfinished(trial) and (not trial.members or done.issuperset(trial.needs)):
            done.add(trial.name)
    return done


@dataclass(frozen=True)
class Run:
    """A finished run or ensemble, or a trial without results and the reason (`problem`)."""

    directory: Path
    row: str
    results: dict[str, Any] = field(default_factory=dict)  # contents of `results.json`
    config: dict[str, Any] = field(default_factory=dict)  # as nested mapping; empty for an ensemble
    # Digests of the test images' labels and names or, without embeddings, of all data. Pixels do
    # not count: rows may differ in image size, and ensembles only have names.
    images: tuple[str, ...] = ()
    data_hash: str = ""  # empty for an ensemble
    problem: str = ""


def read_run(directory: Path, row: str = "") -> Run:
    """A finished run; its row is by default its directory name without "-0" or "-seed0"."""
    results = read_file(directory)
    if not results:
        problem = "contains no finished run (no results.json); finish the run or leave it out"
        raise CheckpointError(f"{directory}: {problem}")
    record = {"config": {}, "data_hash": ""} | read_file(directory, "config.json")
    geometry = results.get("geometry", {})
    results = {**{name: geometry[name] for name in GEOMETRY if name in geometry}, **results}
    digests = _test_images(directory).files
    images = (
        tuple(digests[name]["sha256"] for name in IMAGES) if digests.keys() >= set(IMAGES) else ()
    )
    images = images or (record["data_hash"] or str(directory.resolve()),)
    row = row or re.sub(r"[-_](seed[-_]?)?\d+$", "", directory.name) or directory.name
    return Run(directory, row, results, record["config"], images, record["data_hash"])


def name_rows(runs: Sequence[Run]) -> list[Run]:
    """Gives runs that differ only in the seed the same row, and other runs distinct rows."""
    names: dict[str, str] = {}
    directories: dict[tuple[Any, ...], Path] = {}
    renamed = []
    for run in runs:
        facts = {"data_hash": run.data_hash, **decisive(run.config), "seed": "", "name": ""}
        # From the results, which keep the old length until a continued run ends.
        facts |= {"length": run.results.get("length"), "method": run.config.get("method")}
        identity = json.dumps(facts, sort_keys=True) if run.config else str(run.directory)
        if identity not in names:
            choices = (run.row, run.directory.name, str(run.directory.resolve()))
            names[identity] = next(name for name in choices if name not in names.values())
        # The same model may be evaluated with two protocols.
        key = (identity, run.config.get("seed"), run.images, run.results["protocol"])
        first_directory = directories.setdefault(key, run.directory)
        if first_directory != run.directory:
            raise ConfigError(
                f"{first_directory} and {run.directory}: have the same configuration and seed, but "
                "would count as two seeds; leave one out"
            )
        renamed.append(replace(run, row=names[identity]))
    return renamed


def comparable(runs: Sequence[Run]) -> tuple[str, dict[str, list[Run]]]:
    """The protocol of the runs, without distances if these differ, and the runs by row.

    Raises ConfigError if test images or protocols differ.
    """
    from dml_jax.evaluation import protocol  # imports JAX

    first = runs[0]
    pairs = (protocol.distance_of(run.results["protocol"]) for run in runs)
    distances, protocols = zip(*pairs, strict=True)
    rows: dict[str, list[Run]] = {}
    for run, text in zip(runs, protocols, strict=True):
        reasons = ["different test images or labels"] * (run.images != first.images)
        reasons += [f"protocol '{text}' instead of '{protocols[0]}'"] * (text != protocols[0])
        if reasons:
            raise ConfigError(
                f"{run.directory} cannot be compared with {first.directory}: "
                f"{' and '.join(reasons)}; leave one out"
            )
        rows.setdefault(run.row, []).append(run)
    return first.results["protocol"] if len(set(distances)) == 1 else protocols[0], rows


def duration(seconds: float) -> str:
    """A time as text: "45 s", "12 min", "3.4 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def seed_test(one: Sequence[float], other: Sequence[float]) -> float:
    """Two-sided p-value of Welch's test over seeds; NaN with fewer than two seeds on a side."""
    if min(len(one), len(other)) < 2:
        return math.nan
    if np.ptp(one) == np.ptp(other) == 0:
        return float(one[0] == other[0])
    from scipy import stats

    return float(stats.ttest_ind(one, other, equal_var=False).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for multiple tests (Holm, 1979)."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def p_text(p: float) -> str:
    """A p-value as text."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def published_values(
    run: Run, from_study: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Published metrics by source, from the study and, for other sources, the configuration."""
    by_source = {source: dict(metrics) for source, metrics in from_study.items()}
    for label, metrics in (published(run.config) if run.config.get("paper") else {}).items():
        # The notes of a table say how published models were selected.
        short = re.sub(r" \(selected on test\)|; selected on test", "", label)
        if not short.startswith(tuple(from_study)):
            by_source[short] = dict(metrics)
    return by_source


def all_rows(trained: Mapping[str, list[Run]]) -> dict[str, list[Run]]:
    """The rows, each followed by a row for every test-time refinement.

    A refinement whose clustering failed in all runs has runs with a `problem`.
    """
    rows: dict[str, list[Run]] = {}
    for name, runs in trained.items():
        rows[name] = runs
        by_kind: dict[str, list[dict[str, Any]]] = {}
        for kind, part in (item for run in runs for item in run.results.get("refined", {}).items()):
            by_kind.setdefault(kind, []).append(part)
        for kind, parts in by_kind.items():
            refined = [Run(Path("-"), kind, part) for part in parts if "recall@1" in part]
            problems = (str(part.get("problem", "no result")) for part in parts)
            failed = [Run(Path("-"), kind, problem=problem) for problem in problems]
            rows[f"{name} + {kind}"] = refined or failed
    return rows
