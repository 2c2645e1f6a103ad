"""Reads finished runs: means and spreads over seeds, and whether rows differ."""

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dml_jax import config as configs
from dml_jax import manifest
from dml_jax.errors import CheckpointError, ConfigError, DataError
from dml_jax.files import read_json
from dml_jax.studies.plan import Trial
from dml_jax.train.records import timing, workdir

WITHOUT_LEARNING = ("raw pixels", "colour histogram")  # of `results["controls"]`
GEOMETRY = ("density", "spectral_decay", "uniformity", "alignment")  # of `results["geometry"]` that are columns


def read_results(directory: Path) -> dict[str, Any]:
    """The contents of `results.json`; empty if there is none yet."""
    results = workdir.read_results(directory)
    return results if "protocol" in results else {}


def missing(trial: Trial) -> str:
    """Why the results on disk, if any, are not those of the whole trial; empty if they are."""
    results = read_results(trial.directory)
    if not results:
        return "not finished"
    found = results.get("length")
    if trial.length and found != trial.length:
        unit = "steps" if trial.length["steps"] else "epochs"
        return f"{found.get(unit) if isinstance(found, dict) else 'unknown'} of {trial.length[unit]} {unit}"
    if trial.members and _manifest(trial.directory).get("members") != [_manifest(path) for path in trial.members]:
        return "not of the present embeddings of its members"
    return ""


def is_finished(trial: Trial) -> bool:
    """Whether the results of the whole trial are on disk; of an ensemble, those of its members as they are now."""
    return not missing(trial)


def finished(trials: Iterable[Trial]) -> set[str]:
    """The names of the finished ones among trials, each of which follows those that it needs.

    An ensemble is not finished while one of its members is to be continued.
    """
    done: set[str] = set()
    for trial in trials:
        if is_finished(trial) and (not trial.members or done.issuperset(trial.needs)):
            done.add(trial.name)
    return done


@dataclass(frozen=True)
class Run:
    """A finished run or ensemble; `row` is the name of its row."""

    directory: Path
    row: str
    results: dict[str, Any]  # contents of `results.json`
    config: dict[str, Any]  # its configuration as nested mapping; empty for an ensemble
    # A digest of the names and labels of its test images; without its embeddings, of all data, or its directory.
    data: str
    timing: dict[str, float]  # see `timing.summary`
    data_hash: str = ""  # see `split.digest`; empty for an ensemble


def read_run(directory: Path, row: str = "") -> Run:
    """A finished run."""
    results = read_results(directory)
    if not results:
        raise CheckpointError(f"{directory}: holds no finished run (no results.json); finish it or leave it out")
    config: dict[str, Any] = {}
    data_hash = ""
    with suppress(DataError, KeyError):
        facts = read_json(directory / "config.json", dict[str, Any])
        config, data_hash = facts["config"], str(facts.get("data_hash", ""))
    times = results.get("timing")
    if times is None and config:
        times = timing.summary(read_lines(directory / "timing.jsonl"), config["data"]["batch_size"])
    results = {
        **{name: results["geometry"][name] for name in GEOMETRY if name in results.get("geometry", {})},
        **results,
    }
    data = _test_images(directory) or data_hash or str(directory.resolve())
    return Run(directory, row or _row_name(directory), results, config, data, times or {}, data_hash)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a log."""
    lines = []
    manifest.check_file(path, CheckpointError)
    with suppress(OSError):
        for text in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, RecursionError):
                lines.append(json.loads(text))
    return lines


def _row_name(directory: Path) -> str:
    """The name without a seed at its end, as in "hist-0" and "hist-seed0"; "resnet50" stays."""
    return re.sub(r"[-_](seed[-_]?)?\d+$", "", directory.name) or directory.name


def _manifest(directory: Path) -> dict[str, Any]:
    """The manifest of the exported embeddings of the test images; empty if there is none."""
    with suppress(DataError):
        manifest: dict[str, Any] = read_json(directory / "embeddings" / "test" / "manifest.json", dict[str, Any])
        return manifest
    return {}


def _test_images(directory: Path) -> str:
    """A digest of the labels and names of the test images, from the exported embeddings; empty without them."""
    # Not of the pixels: rows may differ in the sizes of the same images, and an ensemble knows names only.
    with suppress(KeyError, TypeError):
        known = _manifest(directory)["files"]
        return f"{known['labels.npy']['sha256']}-{known['ids.json']['sha256']}"
    return ""


def name_rows(runs: Sequence[Run]) -> list[Run]:
    """Runs that differ in nothing but the seed share the name of the first; equal names of others become distinct."""
    names: dict[str, str] = {}
    seen: dict[tuple[Any, ...], Path] = {}
    named = []
    for run in runs:
        same = {key: value for key, value in configs.decisive(run.config).items() if key not in ("seed", "name")}
        # Of the results: a run may be continued, but its results are those of the former length until it ends.
        same |= {"length": run.results.get("length"), "data_hash": run.data_hash, "method": run.config.get("method")}
        identity = json.dumps(same, sort_keys=True) if run.config else str(run.directory)
        if identity not in names:
            numbered = (f"{run.directory} ({number})" for number in itertools.count(2))
            choices = itertools.chain((run.row, run.directory.name, str(run.directory)), numbered)
            names[identity] = next(name for name in choices if name not in names.values())
        # The same model may be evaluated under two protocols, whose tables differ.
        key = (identity, run.config.get("seed"), run.data, run.results["protocol"])
        other = seen.setdefault(key, run.directory)
        if other != run.directory:
            raise ConfigError(
                f"{other} and {run.directory}: hold the same configuration with the same seed, so that they would "
                "count as two seeds; leave one out"
            )
        named.append(replace(run, row=names[identity]))
    return named


class Group(NamedTuple):
    """Rows that may be compared, by name: runs with the same test images, of the data set `data`, and protocol."""

    data: str
    protocol: str
    rows: dict[str, list[Run]]


def groups(runs: Sequence[Run]) -> list[Group]:
    """Divides runs into groups that may be compared, in the order of the runs."""
    found: dict[tuple[str, str], Group] = {}
    for run in runs:
        key = (run.data, run.results["protocol"])
        name = run.config.get("data", {}).get("name", "")
        group = found.setdefault(key, Group(name, key[1], {}))
        if name and not group.data:
            found[key] = group = group._replace(data=name)
        group.rows.setdefault(run.row, []).append(run)
    return list(found.values())


class Spread(NamedTuple):
    """Mean, sample standard deviation (NaN with one run) and number of runs of a metric over seeds."""

    mean: float
    deviation: float
    runs: int


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation."""
    array = np.asarray(values, dtype=np.float64)
    deviation = float(array.std(ddof=1)) if len(array) > 1 else math.nan
    return Spread(float(array.mean()), deviation, len(array))


def per_query(run: Run, metric: str) -> np.ndarray | None:
    """The metric of every test query, float64 [N], NaN where it is undefined; None if the run has not kept it."""
    path = run.directory / "queries.npz"
    if not path.exists():
        return None
    manifest.check_file(path, CheckpointError)
    with np.load(path, allow_pickle=False) as arrays:
        if metric.startswith("recall@"):
            rank = arrays["rank"]
            return ((rank > 0) & (rank <= int(metric.removeprefix("recall@")))).astype(np.float64)
        return arrays[metric].astype(np.float64) if metric in arrays else None


def query_test(one: Sequence[Run], other: Sequence[Run], metric: str) -> float:
    """Two-sided p-value of a paired t-test over the test queries, each averaged over seeds; NaN where it is unknown.

    It says nothing about other seeds.
    """
    return paired_test(query_means(one, metric), query_means(other, metric))


def query_means(runs: Sequence[Run], metric: str) -> np.ndarray | None:
    """The metric of every test query averaged over seeds, float64 [N]; None if a run has not kept it."""
    arrays = [array for run in runs if (array := per_query(run, metric)) is not None]
    if len(arrays) < len(runs) or len({len(array) for array in arrays}) != 1:
        return None
    return np.asarray(np.mean(np.stack(arrays), axis=0))


def paired_test(one: np.ndarray | None, other: np.ndarray | None) -> float:
    """Two-sided p-value of a paired t-test of float [N] and [N], without NaN; NaN where it is unknown."""
    if one is None or other is None or len(one) != len(other):
        return math.nan
    difference = one - other
    difference = difference[np.isfinite(difference)]
    if len(difference) < 2:
        return math.nan
    if np.ptp(difference) == 0:  # without a spread
        return float(difference[0] == 0)
    from scipy import stats  # slow to import

    return float(stats.ttest_1samp(difference, 0.0).pvalue)


def seed_test(one: Sequence[float], other: Sequence[float]) -> float:
    """Two-sided p-value of Welch's test over seeds; NaN with fewer than two seeds on a side."""
    if min(len(one), len(other)) < 2:
        return math.nan
    if np.ptp(one) == np.ptp(other) == 0:
        return float(one[0] == other[0])
    from scipy import stats

    return float(stats.ttest_ind(one, other, equal_var=False).pvalue)


def evaluations(directory: Path, split: str, metric: str) -> list[tuple[int, float]]:
    """(step, metric) of each evaluation on a split during training."""
    lines, key = read_lines(directory / "metrics.jsonl"), f"{split}/{metric}"
    return [(line["step"], line[key]) for line in lines if key in line]


def curve(run: Run, metric: str) -> tuple[str, list[tuple[int, float]]]:
    """The split that was evaluated during training, and (step, metric) of each evaluation."""
    for split in ("validation", "test"):
        if points := evaluations(run.directory, split, metric):
            return split, points
    return "", []


def published(run: Run, stated: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Published metrics by source: those that the study states, and of other sources those in the configuration."""
    known = configs.published(run.config) if run.config.get("paper") else {}
    # Tables say of all published numbers together how the model was selected.
    known = {re.sub(r" \(selected on test\)|; selected on test", "", label): known[label] for label in known}
    others = {label: dict(metrics) for label, metrics in known.items() if not label.startswith(tuple(stated))}
    return {source: dict(metrics) for source, metrics in stated.items()} | others


def all_rows(group: Group) -> dict[str, list[Run]]:
    """The rows of a group, after those without learning, each followed by its refined embeddings, by kind of batches.

    Rows without learning are the controls that depend on the test images alone, of the first run that has evaluated
    them.
    """
    first = next((run for runs in group.rows.values() for run in runs if run.results.get("controls")), None)
    known = first.results["controls"] if first else {}
    rows = {name: [Run(Path("-"), name, known[name], {}, group.data, {})] for name in WITHOUT_LEARNING if name in known}
    for name, runs in group.rows.items():
        rows[name] = runs
        kinds = dict.fromkeys(itertools.chain.from_iterable(run.results.get("refined", {}) for run in runs))
        for kind in kinds:
            parts = [run.results.get("refined", {}).get(kind, {}) for run in runs]
            refined = [
                Run(Path("-"), f"{name} + {kind}", part, {}, run.data, {})
                for run, part in zip(runs, parts, strict=True)
                if "recall@1" in part
            ]
            if refined:
                rows[f"{name} + {kind}"] = refined
    return rows
