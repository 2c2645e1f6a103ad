"""Finished runs: seeds of one row, comparable rows, published numbers, and tests of differences."""

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

GEOMETRY = ("density", "spectral_decay")  # of `results["geometry"]` that are columns
IMAGES = ("labels.npy", "ids.json")  # files that identify the images of the embeddings
REMEDY = "evaluate the run again, or leave it out"


def read(directory: Path, name: str = "results.json") -> dict[str, Any]:
    """A JSON file of a run, checked by its manifest; empty if there is none."""
    if not (directory / name).exists():
        return {}
    path = seal.file(directory, name, error=CheckpointError, remedy=REMEDY)
    content: dict[str, Any] = read_json(path, dict[str, Any], REMEDY, CheckpointError)
    if name == "results.json":
        identity.check_results(directory, content, REMEDY)
    return content


def _test_images(directory: Path) -> Seal:
    """The seal of the embeddings of the test images; an empty one if there are none."""
    place = directory / "embeddings" / "test"
    if not seal.sealed(place):
        return Seal("embeddings", {})
    return seal.stated(place, "embeddings", error=CheckpointError, remedy=REMEDY)


def missing(trial: Trial) -> str:
    """Why the results on disk, if any, are not of the whole trial; empty if they are."""
    results = read(trial.directory)
    if not results:
        return "not finished"
    found = results.get("length", {})
    if trial.length and found != trial.length:
        unit = "steps" if trial.length["steps"] else "epochs"
        return f"{found.get(unit, 'unknown')} of {trial.length[unit]} {unit}"
    members = [asdict(_test_images(path)) for path in trial.members]
    if members and _test_images(trial.directory).about.get("members") != members:
        return "not of the present embeddings of its members"
    return ""


def finished(trials: Iterable[Trial]) -> set[str]:
    """The names of the finished trials; each trial comes after the trials that it needs.

    An ensemble is not finished while one of its members is unfinished.
    """
    done: set[str] = set()
    for trial in trials:
        if not missing(trial) and (not trial.members or done.issuperset(trial.needs)):
            done.add(trial.name)
    return done


@dataclass(frozen=True)
class Run:
    """A finished run or ensemble, or a trial without results and its `problem`."""

    directory: Path
    row: str
    results: dict[str, Any] = field(default_factory=dict)  # contents of `results.json`
    config: dict[str, Any] = field(default_factory=dict)  # as nested mapping; empty for an ensemble
    # Digests of labels and names of the test images, or of all data without embeddings; not of
    # pixels: rows may differ in the sizes of images, and an ensemble knows names only.
    images: tuple[str, ...] = ()
    data_hash: str = ""  # empty for an ensemble
    problem: str = ""


def read_run(directory: Path, row: str = "") -> Run:
    """A finished run; its row is by default its directory's without "-0" or "-seed0" at the end."""
    results = read(directory)
    if not results:
        problem = "holds no finished run (no results.json); finish it or leave it out"
        raise CheckpointError(f"{directory}: {problem}")
    facts = {"config": {}, "data_hash": ""} | read(directory, "config.json")
    geometry = results.get("geometry", {})
    results = {**{name: geometry[name] for name in GEOMETRY if name in geometry}, **results}
    known = _test_images(directory).files
    images = tuple(known[name]["sha256"] for name in IMAGES) if known.keys() >= set(IMAGES) else ()
    images = images or (facts["data_hash"] or str(directory.resolve()),)
    row = row or re.sub(r"[-_](seed[-_]?)?\d+$", "", directory.name) or directory.name
    return Run(directory, row, results, facts["config"], images, facts["data_hash"])


def name_rows(runs: Sequence[Run]) -> list[Run]:
    """Runs that differ only in the seed get one row; equal names of others become distinct."""
    names: dict[str, str] = {}
    seen: dict[tuple[Any, ...], Path] = {}
    named = []
    for run in runs:
        same = {"data_hash": run.data_hash, **decisive(run.config), "seed": "", "name": ""}
        # By the results: until a continued run ends, they are of the former length.
        same |= {"length": run.results.get("length"), "method": run.config.get("method")}
        identity = json.dumps(same, sort_keys=True) if run.config else str(run.directory)
        if identity not in names:
            choices = (run.row, run.directory.name, str(run.directory.resolve()))
            names[identity] = next(name for name in choices if name not in names.values())
        # The same model may be evaluated under two protocols, whose tables differ.
        key = (identity, run.config.get("seed"), run.images, run.results["protocol"])
        other = seen.setdefault(key, run.directory)
        if other != run.directory:
            raise ConfigError(
                f"{other} and {run.directory}: hold the same configuration with the same seed, so "
                "that they would count as two seeds; leave one out"
            )
        named.append(replace(run, row=names[identity]))
    return named


def comparable(runs: Sequence[Run]) -> tuple[str, dict[str, list[Run]]]:
    """The protocol of runs, without distances that differ, and their rows by name.

    Raises ConfigError for runs with other test images or another protocol.
    """
    from dml_jax.evaluation import protocol  # imports JAX

    first = runs[0]
    found = (protocol.distance_of(run.results["protocol"]) for run in runs)
    distances, protocols = zip(*found, strict=True)
    rows: dict[str, list[Run]] = {}
    for run, stated in zip(runs, protocols, strict=True):
        reasons = ["other test images or labels"] * (run.images != first.images)
        reasons += [f"protocol '{stated}' instead of '{protocols[0]}'"] * (stated != protocols[0])
        if reasons:
            raise ConfigError(
                f"{run.directory} cannot be compared with {first.directory}: "
                f"{' and '.join(reasons)}; leave one out"
            )
        rows.setdefault(run.row, []).append(run)
    return first.results["protocol"] if len(set(distances)) == 1 else protocols[0], rows


def duration(seconds: float) -> str:
    """A time in words: "45 s", "12 min", "3.4 h"."""
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
    """p-values corrected for their number (Holm, 1979)."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def p_text(p: float) -> str:
    """A p-value in a table."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def published_values(
    run: Run, stated: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Published metrics by source: the study's, and of other sources the configuration's."""
    found = {source: dict(metrics) for source, metrics in stated.items()}
    for label, metrics in (published(run.config) if run.config.get("paper") else {}).items():
        # Tables say of all published numbers together how the model was selected.
        short = re.sub(r" \(selected on test\)|; selected on test", "", label)
        if not short.startswith(tuple(stated)):
            found[short] = dict(metrics)
    return found


def all_rows(trained: Mapping[str, list[Run]]) -> dict[str, list[Run]]:
    """Rows, each followed by its refined embeddings, by kind of batches.

    A kind whose clustering failed in all runs has runs with a `problem`.
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
