"""Verdicts on claims, from measurements.

Two questions: does the claim hold, and if it does, is it the mechanism? The effect is the
difference of two rows with the same splits and seeds. The units are the test classes: the
difference of a class is the mean over its queries, averaged over seeds and over the splits in which
the class is tested, so verdicts hold for classes like these. For measurements without values by
class, the units are splits, or the seeds of one split, and verdicts hold for these classes only.

Two t-tests compare the effect with the claim's margin, one for and one against the claim; the
p-value is twice the smaller one, corrected (Holm) for all claims of the paper that the data set and
recipe can decide, measured or not. A claim between two rows that are no better than the features
before training is not tested. Each plan is analysed once, when all its runs have finished.

The mechanism explains the effect of a claim that holds if it accounts for more than half of it,
(row 1 + row 2) / 2 - placebo > 0 for every placebo; a placebo that keeps more than half does as
well. If the claim's condition finds the mechanism inert, it explains nothing, whatever the effect.
"""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.claims import ledger as claims
from benchmarks.claims.ledger import PERCENT, Claim, Lines, Target
from dml_jax.analysis.text_tables import Table
from dml_jax.errors import ConfigError
from dml_jax.lab import outcomes

CLASSES, SPLITS, SEEDS = 20, 5, 8  # with fewer units of a kind, no claim is decided
SEEDS_PER_SPLIT = 4  # trained by default
LEVEL = 0.05  # the probability of a false verdict for a paper
POWER = 0.8  # with which the smallest detectable effect is found
SECOND = {"recall@1": "map@r", "map@r": "recall@1"}
SUPPORTED, REFUTED, UNDECIDED = "supported", "refuted", "undecided"
NOT_TESTABLE = "not testable here"
BY_MECHANISM, BY_PLACEBO, INERT = "the mechanism's", "the placebo does as well", "not at work"
Key = tuple[int, int]  # split and seed
Values = Mapping[Key, Mapping[str, float]]  # by class; one value named "" without classes


@dataclass(frozen=True)
class Units:
    """Differences of two rows.

    Attributes:
      kind: "classes", "splits" or "seeds".
      values: one per unit.
    """

    kind: str
    values: tuple[float, ...]

    @property
    def shortage(self) -> str:
        """Why there are too few units for a verdict; empty if there are enough."""
        least = {"classes": CLASSES, "splits": SPLITS, "seeds": SEEDS}[self.kind]
        count = len(self.values)
        return f"{count} of {least} {self.kind}" if count < least else ""


def units(values: Values) -> Units:
    """The mean of each class; without classes, that of each split, or the values of one split's
    seeds."""
    found: dict[tuple[int, str], list[float]] = {}  # by split and class, of all seeds
    for (split, _), by_class in sorted(values.items()):
        for name, value in by_class.items():
            found.setdefault((split, name), []).append(value)
    if any(name for _, name in found):
        classes: dict[str, list[float]] = {}
        for (_, name), of_seeds in found.items():
            classes.setdefault(name, []).append(float(np.mean(of_seeds)))
        return Units("classes", tuple(float(np.mean(means)) for means in classes.values()))
    if len(found) == 1:
        return Units("seeds", tuple(itertools.chain(*found.values())))
    return Units("splits", tuple(float(np.mean(of_seeds)) for of_seeds in found.values()))


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
    units: Units
    found: Test | None = None
    reason: str = ""  # why there is no other verdict
    p: float = 1.0  # corrected
    verdict: str = UNDECIDED
    by_split: tuple[float, ...] = ()  # the effect in each split


@dataclass
class Entry:
    """A claim in the ledger.

    Attributes:
      seconds: training time of the rows.
      first: by the claim's metric, whose verdict counts.
      second: by the other metric of retrieval.
      kept: the part of the effect that each placebo has.
      contrasts: for every placebo, the test of half the effect beyond it.
      active: mean of what the condition of the claim measures; NaN if it was not measured.
      mechanism: whether it is the mechanism; empty if nothing asks.
    """

    claim: Claim
    seconds: float
    first: Decision
    second: Decision | None
    kept: dict[str, float]
    contrasts: list[Test | None]
    active: float
    mechanism: str = ""


@dataclass(frozen=True)
class Measured:
    """The values of a claim: of its rows and placebos, by metric, split and seed."""

    # Both rows, the second one without refinement, the placebos.
    rows: tuple[Mapping[Key, dict[str, str]], ...]

    def of(self, metric: str, *rows: int) -> list[Values]:
        """The values of some rows, at the splits and seeds where all of these have some."""
        having = [{key for key in self.rows[i] if self.rows[i][key].get(metric)} for i in rows]
        keys = sorted(set.intersection(*having))
        classes = claims.by_class(metric)
        fine = all(self.rows[i][key].get(classes) for i in rows for key in keys)
        return [
            {key: claims.unpacked(self.rows[i][key][classes]) for key in keys}
            if fine
            else {key: {"": float(self.rows[i][key][metric])} for key in keys}
            for i in rows
        ]

    def means(self, metric: str, row: int, splits: Collection[int]) -> float:
        """The mean over some splits, of the means of their seeds; NaN if there is none."""
        found: dict[int, list[float]] = {split: [] for split in splits}
        for (split, _), line in self.rows[row].items():
            if split in found and line.get(metric):
                found[split].append(float(line[metric]))
        of_splits = [float(np.mean(values)) for values in found.values() if values]
        return float(np.mean(of_splits)) if of_splits else math.nan


def difference(first: Values, second: Values) -> Values:
    """`second - first` by split, seed and class."""
    return {
        key: {name: value - first[key][name] for name, value in values.items()}
        for key, values in second.items()
    }


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
    """The claims of a paper with their verdicts.

    Raises ConfigError if the rows of a claim were run with different data or code.
    """
    entries = [_entry(claim, lines, target) for claim in stated]
    decide(entries)
    return entries


def _entry(claim: Claim, lines: Lines, target: Target) -> Entry:
    found = measured(claim, lines, target)
    first, *others = [
        _tested(claim, metric, found)
        for metric in (claim.metric, SECOND.get(claim.metric))
        if metric
    ]
    if not claims.study_of(claim, target):
        first.verdict, first.reason = NOT_TESTABLE, f"no study on {target.variant}"
    kept, contrasts = {}, list[Test | None]()
    for number, name in enumerate(claim.placebos, start=3):
        a, b, placebo = found.of(claim.metric, 0, 1, number)
        beyond = units(difference(placebo, {k: _half(a[k], b[k]) for k in b}))
        contrasts.append(None if beyond.shortage else test(claim.expects, 0.0, beyond.values))
        if beyond.values:
            effect, of_placebo = (np.mean(units(difference(a, x)).values) for x in (b, placebo))
            kept[name] = float(of_placebo / effect) if effect else math.nan
    # A row after refinement measures nothing of its own.
    measures = [found.of(claim.active[0], i)[0] for i in (1, 2)] if claim.active else [{}]
    at_work = units(measures[0] or measures[-1]).values if any(measures) else ()
    active = float(np.mean(at_work)) if at_work else math.nan
    used = [line for row in found.rows[:2] for line in row.values()]
    seconds = sum(float(line["seconds"]) for line in used)
    return Entry(claim, seconds, first, (*others, None)[0], kept, contrasts, active)


def _half(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: (value + first[name]) / 2 for name, value in second.items()}


def _tested(claim: Claim, metric: str, found: Measured) -> Decision:
    first, second = found.of(metric, 0, 1)
    effect = difference(first, second)
    splits = dict.fromkeys(split for split, _ in sorted(effect))
    made = Decision(metric, units(effect) if effect else Units("splits", ()))
    whole = [found.means(metric, row, [split]) for split in splits for row in (0, 1)]
    made.by_split = tuple(b - a for a, b in zip(whole[::2], whole[1::2], strict=True))
    made.reason = made.units.shortage
    if not made.reason:
        made.found = test(claim.expects, claim.margin, made.units.values)
    # Metrics that were not measured before training are judged by Recall@1.
    measure = metric if found.means(claims.floor(metric), 1, splits) >= 0 else "recall@1"
    floor = found.means(claims.floor(measure), 1, splits)
    best = max((found.means(measure, row, splits) for row in (0, 1)), default=math.nan)
    if best <= floor:
        made.verdict = NOT_TESTABLE
        made.reason = f"{measure} of both rows is at most {best:.3f}, no training {floor:.3f}"
    return made


def decide(entries: Sequence[Entry]) -> None:
    """Sets verdicts, and p-values that are corrected for the number of claims that could be
    decided."""
    possible = [entry for entry in entries if not entry.first.reason.startswith("no study")]
    for part in ("first", "second"):
        made = [d for entry in possible if (d := getattr(entry, part)) is not None]
        p_values = [one.found.p if one.found else 1.0 for one in made]
        for one, p in zip(made, outcomes.holm(p_values), strict=True):
            one.p = p
            if one.found and p < LEVEL and one.verdict == UNDECIDED:
                one.verdict = SUPPORTED if one.found.for_it < one.found.against else REFUTED
    # A mechanism must beat every placebo, which needs no correction. To do as well, one placebo is
    # enough, which needs one.
    asked = [entry for entry in possible if entry.first.verdict == SUPPORTED and entry.contrasts]
    each = [[found for found in entry.contrasts if found] for entry in asked]
    full = [len(made) == len(entry.contrasts) for entry, made in zip(asked, each, strict=True)]
    by_mechanism = outcomes.holm(
        [
            min(1.0, 2 * max(x.for_it for x in made)) if whole else 1.0
            for made, whole in zip(each, full, strict=True)
        ]
    )
    by_placebo = outcomes.holm(
        [min(1.0, 2 * len(m) * min(x.against for x in m)) if m else 1.0 for m in each]
    )
    for entry, ours, placebo in zip(asked, by_mechanism, by_placebo, strict=True):
        entry.mechanism = UNDECIDED
        if ours < LEVEL:
            entry.mechanism = BY_MECHANISM
        elif placebo < LEVEL:
            entry.mechanism = BY_PLACEBO
    for entry in possible:
        if entry.first.verdict == SUPPORTED and entry.claim.active and not math.isnan(entry.active):
            _, side, bound = entry.claim.active
            if (entry.active > bound) != (side == "above"):
                entry.mechanism = INERT


EFFECT = "effect [95 % interval]"
HEAD = (
    "claim", "metric", "expected", EFFECT, "by split", "units", "detectable", "p (Holm)",
    "does it hold?", "is it the mechanism?", "kept by placebos", "also", "time",
)  # fmt: skip


def table(paper: str, lines: Lines, target: Target, shown: Collection[Claim]) -> Table:
    """The ledger of a paper; only some claims are shown, but all count in the correction."""
    title, stated = claims.load(paper)
    entries = ledger(stated, lines, target)
    rows = [cells(entry, len(entries)) for entry in entries if entry.claim in shown]
    made = dict(zip(HEAD, zip(*rows, strict=True), strict=True))
    return Table(f"{title}: claims on {target.name}", (), made)


def cells(entry: Entry, number: int) -> tuple[str, ...]:
    """A row of the table of a paper with this number of claims, with the columns of HEAD."""
    claim, first = entry.claim, entry.first
    factor, unit = (100, " points") if first.metric in PERCENT else (1, "")
    margin, opposite = (f"{factor * value:g}{unit}" for value in (claim.margin, -claim.margin or 0))
    expected = {
        "higher": f"> {margin}", "lower": f"< {opposite}", "equal": f"within ±{margin}"
    }[claim.expects].replace("-", "−")  # fmt: skip
    verdict = first.verdict + (f" ({first.reason})" if first.reason else "")
    # The share of an effect that may be zero says nothing.
    held = first.found is not None and first.found.for_it < LEVEL / 2
    shares = {name: share for name, share in entry.kept.items() if held and not math.isnan(share)}
    mechanism = entry.mechanism
    if claim.active and not math.isnan(entry.active):
        mechanism = f"{mechanism} ({claim.active[0]} {entry.active:.2g})".lstrip()
    also = ""
    if entry.second and entry.second.found:
        also = f"{entry.second.metric} {_effect(entry.second)}"
        if entry.second.verdict != first.verdict:
            also += f": **{entry.second.verdict}**"
    splits = [f"{factor * value:+.{1 if factor > 1 else 3}f}" for value in first.by_split]
    found = (
        claim.name,
        first.metric,
        expected,
        _effect(first),
        ", ".join(splits),
        f"{len(first.units.values)} {first.units.kind}" if first.units.values else "",
        f"{factor * detectable(first.found, number):.2g}{unit}" if first.found else "",
        outcomes.p_text(first.p) if first.found else "",
        verdict,
        mechanism,
        ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items()),
        also,
        outcomes.duration(entry.seconds),
    )
    return tuple(cell or "–" for cell in found)


def detectable(found: Test, number: int) -> float:
    """The distance from the margin that is found with the probability POWER, at the level of the
    first of `number` claims; by Student's t, whose shift under the alternative is neglected."""
    from scipy import special

    freedom = len(found.values) - 1
    error = float(np.std(found.values, ddof=1)) / math.sqrt(len(found.values))
    quantiles = special.stdtrit(freedom, [1 - LEVEL / (2 * number), POWER])
    return error * float(quantiles.sum())


def _effect(made: Decision) -> str:
    if not (found := made.found):
        return "–"
    factor, digits = (100, 2) if made.metric in PERCENT else (1, 3)
    values = (found.mean, found.low, found.high)
    mean, low, high = (f"{factor * value:+.{digits}f}" for value in values)
    return f"{mean} [{low}, {high}]"
