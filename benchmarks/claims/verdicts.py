"""Verdicts on claims, from measurements.

The unit of replication is a split of the classes, whose seeds are averaged: an effect is the mean,
over units, of the difference of two rows with the same splits and seeds. Where all measurements are
of one split, the units are its seeds, and a verdict is about these classes only. Two t-tests
compare the effect with the claim's margin, one for and one against the claim; the p-value is twice
the smaller one, corrected for the paper's number of claims (Holm).

A claim that its test supports is tested again: the mechanism must account for more than half of the
effect, (row 1 + row 2) / 2 - placebo > 0, for every placebo; a placebo that keeps more than half
of the effect does as well.

Measurements are looked at repeatedly: the k-th time that those of a claim grew, its verdict is
made at the level of `level(k)`. The first one stands. The levels sum to LEVEL, so that no number of
follow-ups makes a false verdict more probable.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.claims import ledger as claims
from benchmarks.claims.ledger import PERCENT, Claim, Lines, Target
from dml_jax.analysis.text_tables import Table
from dml_jax.errors import ConfigError
from dml_jax.lab import outcomes

SEEDS = 8  # with fewer, and one split, no claim is decided
SPLITS = 5  # with fewer, but more than one, neither
SEEDS_PER_SPLIT = 4  # trained by default
LEVEL, FIRST = 0.05, 0.04  # of all looks together, and of the first one
SECOND = {"recall@1": "map@r", "map@r": "recall@1"}
# Verdicts.
SUPPORTED, REFUTED, UNDECIDED = "supported", "refuted", "undecided"  # the first without placebos
BY_MECHANISM, BY_PLACEBO = "supported by its mechanism", "the placebo does as well"
NOT_TESTABLE = "not testable here"
Key = tuple[int, int]  # split and seed
Values = Mapping[Key, float]


def level(look: int) -> float:
    """The probability of a false verdict that the look may add: 0.04, 0.005, 0.0025, …"""
    return FIRST if look == 1 else (LEVEL - FIRST) / 2 ** (look - 1)


def units(values: Values) -> list[float]:
    """The mean of each split, or the values of the seeds if there is one split."""
    splits: dict[int, list[float]] = {}
    for (split, _), value in sorted(values.items()):
        splits.setdefault(split, []).append(value)
    if len(splits) == 1:
        return next(iter(splits.values()))
    return [float(np.mean(found)) for found in splits.values()]


def shortage(values: Values) -> str:
    """Why there are too few units for a verdict; empty if there are enough."""
    splits = len({split for split, _ in values})
    if splits > 1:
        return f"{splits} of {SPLITS} splits" if splits < SPLITS else ""
    return f"{len(values)} of {SEEDS} seeds" if len(values) < SEEDS else ""


@dataclass(frozen=True)
class Test:
    """The statistics of an effect.

    Attributes:
      values: one per unit.
      mean: of the units.
      low, high: bounds of its 95 % confidence interval.
      for_it, against: p-values of the one-sided tests for and against the claim.
    """

    values: tuple[float, ...]
    mean: float
    low: float
    high: float
    for_it: float
    against: float

    @property
    def p(self) -> float:
        """Twice the smaller p-value, not corrected."""
        return min(1.0, 2 * min(self.for_it, self.against))


def test(expects: str, margin: float, values: Sequence[float]) -> Test:
    """The tests of a claim for the effect in two or more units.

    "higher" tests a mean above the margin against one below it, "lower" likewise, and "equal" a
    mean within the margins (two one-sided tests; Schuirmann, 1987) against one outside.
    """
    from scipy import special  # slow to import

    found = np.asarray(values, np.float64)
    deviation = max(float(np.std(found, ddof=1)), 1e-9)
    mean, error, freedom = float(found.mean()), deviation / math.sqrt(len(found)), len(found) - 1

    def beyond(effect: float) -> tuple[float, float]:
        """p-values of an effect above the margin and of one below it, by Student's t."""
        statistic = (effect - margin) / error
        return float(special.stdtr(freedom, -statistic)), float(special.stdtr(freedom, statistic))

    if expects == "equal":
        (above, not_above), (below, not_below) = beyond(mean), beyond(-mean)
        for_it, against = max(not_above, not_below), min(above, below)
    else:
        for_it, against = beyond(-mean if expects == "lower" else mean)
    half = float(special.stdtrit(freedom, 0.975)) * error
    return Test(tuple(values), mean, mean - half, mean + half, for_it, against)


@dataclass
class Decision:
    """What the measurements of one metric say about a claim."""

    metric: str
    found: Test | None = None
    reason: str = ""  # why there is no other verdict
    p: float = math.nan  # corrected
    verdict: str = UNDECIDED
    own: float = math.nan  # effect on the data set's own split


@dataclass
class Entry:
    """A claim in the ledger."""

    claim: Claim
    seconds: float  # training time of the rows
    first: Decision  # by the claim's metric, whose verdict counts
    second: Decision | None  # by the other metric of retrieval
    kept: dict[str, float]  # the part of the effect that each placebo has
    contrasts: list[Test | None]  # for every placebo, of half the effect beyond it
    active: float  # mean of what the condition of the claim measures; NaN if it was not
    looks: int  # that added splits or seeds
    latest: int  # the last one that added a measurement


@dataclass(frozen=True)
class Measured:
    """The values of a claim: of its rows and placebos, by metric, split and seed."""

    # Both rows, the second one without refinement, the placebos.
    rows: tuple[Mapping[Key, dict[str, str]], ...]

    def of(self, metric: str, *rows: int) -> list[dict[Key, float]]:
        """The values of some rows, at the splits and seeds where all of these have some."""
        having = [{key for key in self.rows[i] if self.rows[i][key].get(metric)} for i in rows]
        keys = sorted(set.intersection(*having))
        return [{key: float(self.rows[i][key][metric]) for key in keys} for i in rows]


def measured(claim: Claim, lines: Lines, target: Target) -> Measured:
    """The lines of a claim; ConfigError if some were run with different data or code."""
    rows: list[dict[Key, dict[str, str]]] = []
    first, second = claims.rows_of(claim, target)
    for name in (first, second, claims.unrefined(second), *claim.placebos):
        of_row = (line for line in lines if (line["study"], line["row"]) == (claim.study, name))
        rows.append({(int(line["split"]), int(line["seed"])): line for line in of_row})
    both = [(rows[0][key], rows[1][key]) for key in rows[0].keys() & rows[1].keys()]
    for split in {line["split"] for pair in both for line in pair}:
        used = [line for row in rows for line in row.values() if line["split"] == split]
        for key, what in (("data", "data"), ("code", "versions of the code")):
            if len(different := {line[key] for line in used}) > 1:
                raise ConfigError(
                    f"claim {claim.name}: its rows were run with different {what}, "
                    f"{', '.join(sorted(different))}; run them again"
                )
    return Measured(tuple(rows))


def ledger(stated: Sequence[Claim], lines: Lines, target: Target) -> list[Entry]:
    """The claims of a paper with their verdicts, each of the first look that had one.

    Raises ConfigError if the rows of a claim were run with different data or code.
    """
    final: dict[str, Entry] = {}
    for look in sorted({int(line["look"]) for line in lines if line["look"]}) or [1]:
        seen = [line for line in lines if line["look"] and int(line["look"]) <= look]
        entries = [_entry(claim, seen, target) for claim in stated]
        decide(entries)
        for entry in entries:
            before = final.get(entry.claim.name)
            if before is None or (
                before.first.verdict == UNDECIDED and entry.latest > before.latest
            ):
                final[entry.claim.name] = entry
    return [final[claim.name] for claim in stated]


def _entry(claim: Claim, lines: Lines, target: Target) -> Entry:
    found = measured(claim, lines, target)
    first, *others = [
        _tested(claim, metric, found)
        for metric in (claim.metric, SECOND.get(claim.metric))
        if metric
    ]
    used = [line for row in found.rows[:2] for line in row.values()]
    if not used and not claims.study_of(claim, target):
        first.verdict, first.reason = NOT_TESTABLE, f"no study on {target.variant}"
    kept, contrasts = {}, []
    for number, name in enumerate(claim.placebos, start=3):
        a, b, placebo = found.of(claim.metric, 0, 1, number)
        effect, of_placebo = (sum(x[key] - a[key] for key in a) for x in (b, placebo))
        kept[name] = of_placebo / effect if effect else math.nan
        beyond = {key: (a[key] + b[key]) / 2 - placebo[key] for key in a}
        enough = not shortage(beyond)
        contrasts.append(test(claim.expects, 0.0, units(beyond)) if enough else None)
    # A row after refinement measures nothing of its own.
    measures = [found.of(claim.active[0], i)[0] for i in (1, 2)] if claim.active else [{}]
    at_work = measures[0] or measures[-1]
    active = float(np.mean(units(at_work))) if at_work else math.nan
    seconds = sum(float(line["seconds"]) for line in used)
    compared, placebos = found.rows[:2], found.rows[3:]
    looks = [_looks(*compared), *(_looks(*compared, row) for row in placebos)]
    shown = (claim, seconds, first, (*others, None)[0], kept, contrasts, active)
    return Entry(*shown, max(map(len, looks)), max(set().union(*looks), default=0))


def _looks(*rows: Mapping[Any, Mapping[str, Any]]) -> set[int]:
    """The looks at which a comparison of rows grew: a row may be older than the others, because
    another claim has it, too."""
    keys = set.intersection(*map(set, rows))
    return {max(int(row[key]["look"]) for row in rows) for key in keys}


def _tested(claim: Claim, metric: str, found: Measured) -> Decision:
    first, second = found.of(metric, 0, 1)
    effects = {key: second[key] - first[key] for key in first}
    own = [effect for (split, _), effect in effects.items() if split == 0]
    made = Decision(metric, own=float(np.mean(own)) if own else math.nan)
    made.reason = shortage(effects)
    if not made.reason:
        made.found = test(claim.expects, claim.margin, units(effects))
    return made


def decide(entries: Sequence[Entry]) -> None:
    """Sets verdicts, and p-values that are corrected for the number of claims."""
    for part in ("first", "second"):
        tested = [
            (entry, made, made.found)
            for entry in entries
            if (made := getattr(entry, part)) is not None and made.found
        ]
        corrected = outcomes.holm([found.p for *_, found in tested])
        for (entry, made, found), p in zip(tested, corrected, strict=True):
            made.p = p
            if p < level(entry.looks):
                made.verdict = SUPPORTED if found.for_it < found.against else REFUTED
    # A mechanism must beat every placebo, which needs no correction; one placebo of several is
    # enough to do as well, which does.
    compared = [entry for entry in entries if None not in entry.contrasts and entry.contrasts]
    each = [[found for found in entry.contrasts if found] for entry in compared]
    by_mechanism = outcomes.holm([min(1.0, 2 * max(x.for_it for x in made)) for made in each])
    by_placebo = outcomes.holm(
        [min(1.0, 2 * len(made) * min(x.against for x in made)) for made in each]
    )
    for entry in entries:
        made, limit = entry.first, level(entry.looks)
        if made.verdict == SUPPORTED and entry.claim.placebos:
            made.verdict, made.reason = UNDECIDED, "supported, without all placebos"
            if entry in compared:
                number = compared.index(entry)
                made.reason = "supported, but not whether by its mechanism"
                if by_placebo[number] < limit:
                    made.verdict, made.reason = BY_PLACEBO, ""
                elif by_mechanism[number] < limit:
                    made.verdict, made.reason = BY_MECHANISM, ""
        if not entry.claim.active or made.found is None:
            continue
        name, side, bound = entry.claim.active
        if math.isnan(entry.active):
            made.reason = made.reason or f"{name} was not measured"
            if made.verdict == BY_MECHANISM:
                made.verdict = UNDECIDED
        elif (entry.active > bound) != (side == "above"):
            made.verdict = NOT_TESTABLE
            made.reason = f"{name} {entry.active:.2g} is not {side} {bound:g}"


EFFECT = "effect [95 % interval]"
HEAD = (
    "claim", "metric", "expected", EFFECT, "own split", "units", "p (Holm)", "verdict",
    "kept by placebos", "mechanism", "also", "time",
)  # fmt: skip


def table(paper: str, lines: Lines, target: Target, shown: Collection[Claim]) -> Table:
    """The ledger of a paper; only some claims are shown, but all that are measured count in the
    correction."""
    title, stated = claims.load(paper)
    rows = [cells(entry) for entry in ledger(stated, lines, target) if entry.claim in shown]
    made = dict(zip(HEAD, zip(*rows, strict=True), strict=True))
    return Table(f"{title}: claims on {target.name}", (), made)


def cells(entry: Entry) -> tuple[str, ...]:
    """A row of the table, with the columns of HEAD."""
    claim, first = entry.claim, entry.first
    factor, unit = (100, " points") if first.metric in PERCENT else (1, "")
    margin, opposite = (f"{factor * value:g}{unit}" for value in (claim.margin, -claim.margin or 0))
    expected = {
        "higher": f"> {margin}", "lower": f"< {opposite}", "equal": f"within ±{margin}"
    }[claim.expects].replace("-", "−")  # fmt: skip
    count = str(len(first.found.values)) if first.found else "–"
    p = outcomes.p_text(first.p) if first.found else "–"
    verdict = first.verdict + (f" ({first.reason})" if first.reason else "")
    # The share of an effect that may be zero says nothing.
    held = first.found is not None and first.found.for_it < LEVEL / 2
    shares = {name: share for name, share in entry.kept.items() if held and not math.isnan(share)}
    kept = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
    mechanism = ""
    if claim.active and not math.isnan(entry.active):
        mechanism = f"{claim.active[0]} {entry.active:.2g}"
    also = ""
    if entry.second and entry.second.found:
        also = f"{entry.second.metric} {_effect(entry.second)}"
        agrees = first.verdict in (BY_MECHANISM, BY_PLACEBO)
        plain = SUPPORTED if agrees else first.verdict
        if entry.second.verdict != plain:
            also += f": **{entry.second.verdict}**"
    own = "" if math.isnan(first.own) else f"{factor * first.own:+.{2 if factor > 1 else 3}f}"
    found = (
        claim.name, first.metric, expected, _effect(first), own, count, p, verdict, kept,
        mechanism, also, outcomes.duration(entry.seconds),
    )  # fmt: skip
    return tuple(cell or "–" for cell in found)


def _effect(made: Decision) -> str:
    if not (found := made.found):
        return "–"
    factor, digits = (100, 2) if made.metric in PERCENT else (1, 3)
    values = (found.mean, found.low, found.high)
    mean, low, high = (f"{factor * value:+.{digits}f}" for value in values)
    return f"{mean} [{low}, {high}]"
