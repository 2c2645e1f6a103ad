"""The ledger of claims: statements of the papers as tests that can fail.

A claim names two rows of a study (`definition.Claim`). Both are trained with the same seeds; the
effect is the mean of their paired differences. Two t-tests compare it with the claim's margin, one
for and one against the claim. The p-value is twice the smaller one, corrected for the paper's
number of claims on the data set (Holm). Below 5 % the claim is supported or refuted, else
undecided. Claims about retrieval are decided a second time, by the other one of Recall@1 and MAP@R,
with the same correction: the verdict is the first metric's; the table says so if the second's
differs.

Rows with the same configuration are trained once, even if they belong to different studies.
"""

import csv
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from dml_jax.analysis.text_tables import Table
from dml_jax.config import files as config_files
from dml_jax.errors import ConfigError, require, suggest
from dml_jax.files import reading
from dml_jax.lab import outcomes, plan
from dml_jax.lab.definition import Claim, Study
from dml_jax.lab.plan import Settings, Trial

SEEDS = 8  # with fewer, no claim is decided
LEVEL, POWER = 0.05, 0.8
MOST = 1000  # seeds; larger numbers are not computed
SECOND = {"recall@1": "map@r", "map@r": "recall@1"}
PERCENT = ("recall@1", "recall@2", "recall@4", "recall@8", "map@r", "nmi")
OTHERS = ("density", "spectral_decay", "attention_divergence", "attention_own_class")
METRICS = PERCENT + OTHERS
COLUMNS = ("study", "row", "seed", *METRICS, "seconds", "data", "code", "machine")
Verdict = Literal["supported", "refuted", "undecided"]
Lines = list[dict[str, str]]


def papers() -> tuple[str, ...]:
    """The papers with claims."""
    return tuple(config_files.known_files("--claims"))


def load(paper: str) -> tuple[str, tuple[Claim, ...]]:
    """The title and the claims of a paper, from `configs/PAPER/claims.py`, or of a user's file."""
    module = config_files.run_file("--claims", paper)
    with config_files.running(f"--claims={paper}"):
        return module.TITLE, module.CLAIMS


def selected(papers: Iterable[str], names: Collection[str]) -> dict[str, tuple[Claim, ...]]:
    """The claims of each paper with one of the names, or all; ConfigError if a name is unknown."""
    stated = {paper: load(paper)[1] for paper in papers}
    known = [claim.name for found in stated.values() for claim in found]
    for name in names:
        require(name in known, f"--claim={name}: {suggest(name, known)}")
    chosen = {
        paper: tuple(claim for claim in found if not names or claim.name in names)
        for paper, found in stated.items()
    }
    return {paper: found for paper, found in chosen.items() if found}


def study_of(claim: Claim, data: str) -> Study | None:
    """The study of a claim on a data set; None if it has no such variant."""
    file, _, name = claim.study.partition(":")
    module = config_files.run_file("--study", file)
    variant = f"{name}-{data}"
    return module.get_study(variant) if variant in module.VARIANTS else None


def listed(claims: Mapping[str, Iterable[Claim]], data: str) -> Iterator[str]:
    """Claims by paper, each with the rows that decide it on a data set."""
    for paper, stated in claims.items():
        for claim in stated:
            rows = " against ".join(reversed(rows_of(claim, data)))
            study = f"{claim.study}-{data}: {rows}"
            decided_by = study if study_of(claim, data) else f"no study on {data}"
            yield f"{paper}  {claim.name}: {claim.says} [{claim.where}; {decided_by}]"


def rows_of(claim: Claim, data: str) -> tuple[str, str]:
    """The names of the two rows on a data set."""
    return claim.rows_on.get(data, claim.rows)


# Trials by study, row (without the kind of refinement) and seed; equal ones are one object.
Owners = dict[tuple[str, str, int], Trial]


def distinct(owners: Owners) -> list[Trial]:
    """Each trial once, seed by seed."""
    return list({trial.name: trial for trial in owners.values()}.values())


def planned(claims: Iterable[Claim], data: str, settings: Settings) -> Owners:
    """The trials that decide claims on a data set.

    ConfigError if a study lacks a row that a claim names, or no claim has a study on the data set.
    """
    studies: dict[str, tuple[Study, list[str]]] = {}
    for claim in claims:
        if (study := study_of(claim, data)) is None:
            continue
        names = studies.setdefault(claim.study, (study, []))[1]
        known = {row.name: row for row in study.rows}
        for row in rows_of(claim, data):
            name = row if row in known else row.partition(" + ")[0]
            if name not in known:
                where, remedy = f"{claim.study}-{data}", suggest(name, known)
                raise ConfigError(f"claim {claim.name}: {where} has no row {name!r}; {remedy}")
            names += [*known[name].members, name]
    if not studies:
        raise ConfigError(f"--on={data}: no claim has a study on this data set")
    owners: Owners = {}
    trained: dict[str, Trial] = {}
    for name, (study, names) in studies.items():
        rows = [row for row in study.rows if row.name in names]
        names += [needed for row in rows for needed in plan.referred(row).values()]
        rows = [row for row in study.rows if row.name in names]
        folder = replace(settings, root=settings.root / plan.slug(name))
        made = plan.trials(replace(study, rows=tuple(rows)), folder)
        needed_by_others = {other for trial in made for other in trial.needs}
        prefix = f"{folder.root.name}/"
        for trial in made:
            # Others read a trial in its directory, so another study's cannot replace it.
            fixed = trial.config is None or trial.name in needed_by_others
            same = f"{trial.seed} {trial.directory if fixed else plan.evaluated_as(trial)}"
            needs = tuple(prefix + other for other in trial.needs)
            trial = replace(trial, name=prefix + trial.name, needs=needs)
            owners[name, trial.row, trial.seed] = trained.setdefault(same, trial)
    return owners


def measurements(owners: Owners) -> Lines:
    """A line with COLUMNS for each finished seed of each row, refined rows included."""
    found = []
    for (study, row, seed), trial in owners.items():
        if not (results := outcomes.read(trial.directory)):
            continue
        facts = outcomes.read(trial.directory, "config.json")
        parts = {row: results | results.get("geometry", {})}
        parts |= {f"{row} + {kind}": part for kind, part in results.get("refined", {}).items()}
        for name, part in parts.items():
            known = [key for key in METRICS if isinstance(part.get(key), float | int)]
            line = dict.fromkeys(COLUMNS, "") | {"study": study, "row": name, "seed": str(seed)}
            line |= {key: f"{part[key]:.6f}" for key in known}
            line["seconds"] = f"{results.get('timing', {}).get('seconds', 0.0):.1f}"
            line["data"] = facts.get("data_hash", "")[:12]
            line["code"] = (facts.get("code") or facts.get("commit") or "")[:12]
            line["machine"] = results.get("machine", "")
            found.append(line)
    return found


def merged(old: Lines, new: Lines) -> Lines:
    """Lines by study, row and seed; new ones replace old ones."""
    keyed = {(line["study"], line["row"], line["seed"]): line for line in [*old, *new]}
    return sorted(keyed.values(), key=lambda line: (line["study"], line["row"], int(line["seed"])))


def read(path: Path) -> Lines:
    """The measurements in a CSV file; empty if there is none."""
    if not path.exists():
        return []
    with reading(path), path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True)
class Test:
    """The statistics of a claim: differences of the rows, second minus first, one per seed."""

    differences: tuple[float, ...]
    mean: float
    low: float  # bounds of the 95 % confidence interval of the mean
    high: float
    p: float  # twice the smaller p-value, not corrected
    favours: bool  # whether the test for the claim has the smaller p-value


def test(claim: Claim, differences: Sequence[float]) -> Test:
    """The paired tests of a claim for two or more differences.

    "higher" tests a mean above the margin against one below it, "lower" likewise, and "equal" a
    mean within the margins (two one-sided tests; Schuirmann, 1987) against one outside.
    """
    from scipy import stats  # slow to import

    values = np.asarray(differences, np.float64)
    mean, error = float(values.mean()), _deviation(values) / math.sqrt(len(values))
    t = stats.t(len(values) - 1)

    def beyond(effect: float) -> tuple[float, float]:
        """p-values of an effect above the margin and of one below it."""
        statistic = (effect - claim.margin) / error
        return float(t.sf(statistic)), float(t.cdf(statistic))

    if claim.expects == "equal":
        (above, not_above), (below, not_below) = beyond(mean), beyond(-mean)
        for_it, against = max(not_above, not_below), min(above, below)
    else:
        for_it, against = beyond(-mean if claim.expects == "lower" else mean)
    half = float(t.ppf(0.975)) * error
    p = min(1.0, 2 * min(for_it, against))
    return Test(tuple(differences), mean, mean - half, mean + half, p, for_it < against)


def _deviation(values: Sequence[float] | np.ndarray) -> float:
    return max(float(np.std(values, ddof=1)), 1e-9)


def seeds_needed(claim: Claim, found: Test, tests: int) -> int:
    """The smallest number of seeds that would decide the claim with probability POWER, if the
    effect and its spread are as observed; MOST + 1 if there is none up to MOST.

    The p-value is multiplied by the number of tests.
    """
    from scipy import stats

    effect = {"higher": found.mean, "lower": -found.mean, "equal": abs(found.mean)}[claim.expects]
    ratio = abs(effect - claim.margin) / _deviation(found.differences)
    for count in range(SEEDS, MOST + 1):
        limit = stats.t.ppf(1 - LEVEL / 2 / tests, count - 1)
        if stats.nct.sf(limit, count - 1, ratio * math.sqrt(count)) >= POWER:
            return count
    return MOST + 1


@dataclass
class Decision:
    """What the measurements of one metric say about a claim."""

    metric: str
    found: Test | None
    reason: str  # why the claim is undecided
    p: float = math.nan  # corrected
    verdict: Verdict = "undecided"


@dataclass
class Entry:
    """A claim in the ledger."""

    claim: Claim
    seconds: float  # training time of the rows
    first: Decision  # by the claim's metric, whose verdict counts
    second: Decision | None  # by the other metric of retrieval


def ledger(claims: Sequence[Claim], lines: Lines, data: str) -> list[Entry]:
    """The claims of a paper with their verdicts on a data set.

    Raises ConfigError if the rows of a claim were run with different data or code.
    """
    values: dict[tuple[str, str], dict[int, dict[str, str]]] = {}
    for line in lines:
        values.setdefault((line["study"], line["row"]), {})[int(line["seed"])] = line
    entries = []
    for claim in claims:
        first, second = (values.get((claim.study, row), {}) for row in rows_of(claim, data))
        both = [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]
        pairs = [(a, b) for a, b in both if a[claim.metric] and b[claim.metric]]
        for key, what in (("data", "data"), ("code", "versions of the code")):
            if len(different := {line[key] for pair in pairs for line in pair}) > 1:
                raise ConfigError(
                    f"claim {claim.name}: its rows were run with different {what}, "
                    f"{', '.join(sorted(different))}; run them again"
                )
        reason = f"{len(pairs)} of {SEEDS} seeds"
        if not pairs and not study_of(claim, data):
            reason = f"no study on {data}"
        decisions = [
            Decision(metric, _tested(claim, metric, pairs), reason)
            for metric in (claim.metric, SECOND.get(claim.metric))
            if metric
        ]
        seconds = sum(float(line["seconds"]) for pair in pairs for line in pair)
        entries.append(Entry(claim, seconds, decisions[0], (*decisions[1:], None)[0]))
    _decide([(entry.claim, entry.first) for entry in entries])
    _decide([(entry.claim, entry.second) for entry in entries if entry.second])
    return entries


def _tested(
    claim: Claim, metric: str, pairs: Sequence[tuple[dict[str, str], dict[str, str]]]
) -> Test | None:
    """The test of a claim by a metric; None with fewer than SEEDS pairs that have it."""
    differences = [float(b[metric]) - float(a[metric]) for a, b in pairs if a[metric] and b[metric]]
    return test(claim, differences) if len(differences) >= SEEDS else None


def _decide(decisions: Iterable[tuple[Claim, Decision]]) -> None:
    """Sets verdicts, and p-values that are corrected for the number of decisions."""
    tested = [(claim, made, made.found) for claim, made in decisions if made.found]
    corrected = outcomes.holm([found.p for *_, found in tested])
    for (claim, made, found), p in zip(tested, corrected, strict=True):
        made.p, made.reason = p, ""
        if p < LEVEL:
            made.verdict = "supported" if found.favours else "refuted"
        else:
            count = seeds_needed(claim, found, len(tested))
            made.reason = f"{count if count <= MOST else f'more than {MOST:,}'} seeds would decide"


EFFECT = "effect [95 % interval]"
HEAD = ("claim", "metric", "expected", EFFECT, "seeds", "p (Holm)", "verdict", "also", "time")


def table(paper: str, lines: Lines, data: str, shown: Collection[Claim]) -> Table:
    """The ledger of a paper on a data set; only some claims are shown, but all that are measured
    count in the correction."""
    title, stated = load(paper)
    rows = [cells(entry) for entry in ledger(stated, lines, data) if entry.claim in shown]
    columns = dict(zip(HEAD, zip(*rows, strict=True), strict=True))
    return Table(f"{title}: claims on {data}", (), columns)


def cells(entry: Entry) -> tuple[str, ...]:
    """A row of the table, with the columns of HEAD."""
    claim, first = entry.claim, entry.first
    factor, unit = (100, " points") if first.metric in PERCENT else (1, "")
    margin = f"{factor * claim.margin:g}{unit}"
    below = f"−{margin}" if claim.margin else margin
    expected = {"higher": f"> {margin}", "lower": f"< {below}", "equal": f"within ±{margin}"}
    seeds = str(len(first.found.differences)) if first.found else "–"
    p = outcomes.p_text(first.p) if first.found else "–"
    verdict = first.verdict + (f" ({first.reason})" if first.reason else "")
    also = "–"
    if entry.second and entry.second.found:
        also = f"{entry.second.metric} {_effect(entry.second)}"
        if entry.second.verdict != first.verdict:
            also += f": **{entry.second.verdict}**"
    stated = claim.name, first.metric, expected[claim.expects]
    return *stated, _effect(first), seeds, p, verdict, also, outcomes.duration(entry.seconds)


def _effect(made: Decision) -> str:
    if not (found := made.found):
        return "–"
    factor, digits = (100, 2) if made.metric in PERCENT else (1, 3)
    values = (found.mean, found.low, found.high)
    mean, low, high = (f"{factor * value:+.{digits}f}" for value in values)
    return f"{mean} [{low}, {high}]"


def on_maps(trials: Sequence[Trial]) -> list[Trial]:
    """The trials of heads on stored maps, all seeds of a row together, before their ensembles."""
    heads = [trial for trial in trials if trial.config and trial.config.train.feature_views]
    rows = list(dict.fromkeys((trial.directory.parent, trial.row) for trial in heads))
    heads.sort(key=lambda trial: rows.index((trial.directory.parent, trial.row)))
    known = {trial.directory for trial in heads}
    return heads + [trial for trial in trials if trial.members and known.issuperset(trial.members)]
