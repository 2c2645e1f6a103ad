"""Verdicts on claims: statistics against SciPy, units of replication, placebos and conditions, and
the simulated size and power of the whole procedure."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dml_jax.errors import ConfigError
from dml_jax.lab import outcomes, verdicts
from dml_jax.lab.claims import Lines, Target
from dml_jax.lab.definition import Claim

CUB = Target("cub")
NOISE = np.random.default_rng(0).normal(0, 0.002, 8)
NOISE -= NOISE.mean()


def claim(expects: Any = "higher", margin: float = 0.0, name: str = "a", **more: Any) -> Claim:
    return Claim(name, "says", "where", "s:t", ("first", "second"), expects, margin, **more)


def lines(
    row: str, values: Sequence[float], metric: str = "recall@1", splits: int = 1, **changed: str
) -> Lines:
    """A line per value, as many seeds of each split."""
    each = len(values) // splits
    return [
        {"study": "s:t", "row": row, "split": str(i // each), "seed": str(i % each)}
        | {metric: str(value), "seconds": "30", "look": "1", "data": "d", "code": "c"}
        | changed
        for i, value in enumerate(values)
    ]


def two_rows(differences: Sequence[float], **more: Any) -> Lines:
    first = lines("first", [0.5] * len(differences), **more)
    return [*first, *lines("second", [0.5 + x for x in differences], **more)]


@pytest.mark.parametrize("expects", ["higher", "lower", "equal"])
@pytest.mark.parametrize("mean", [-0.03, -0.008, 0.0, 0.004, 0.03])
def test_statistics(expects: str, mean: float) -> None:
    """As SciPy's one-sided t-tests of one sample, and its confidence interval."""
    values, margin = np.random.default_rng(0).normal(mean, 0.01, 9), 0.01
    found = verdicts.test(expects, margin, list(values))

    def p(bound: float, alternative: str) -> float:
        return float(stats.ttest_1samp(values, bound, alternative=alternative).pvalue)

    expected = {
        "higher": (p(margin, "greater"), p(margin, "less")),
        "lower": (p(-margin, "less"), p(-margin, "greater")),
        "equal": (
            max(p(-margin, "greater"), p(margin, "less")),
            min(p(-margin, "less"), p(margin, "greater")),
        ),
    }[expects]
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    np.testing.assert_allclose((found.low, found.high), (interval.low, interval.high))
    np.testing.assert_allclose((found.for_it, found.against), expected, rtol=1e-6, atol=1e-12)
    assert found.p == pytest.approx(min(1, 2 * min(expected)))


def test_holm() -> None:
    """As R's p.adjust(c(0.01, 0.04, 0.03, 0.005, 0.9), "holm")."""
    np.testing.assert_allclose(
        outcomes.holm([0.01, 0.04, 0.03, 0.005, 0.9]), [0.04, 0.09, 0.09, 0.025, 0.9]
    )
    assert outcomes.holm([]) == []


def test_levels_sum_to_the_whole() -> None:
    levels = [verdicts.level(look) for look in range(1, 60)]
    assert levels[:3] == pytest.approx([0.04, 0.005, 0.0025])
    assert sum(levels) == pytest.approx(0.05)


def test_units() -> None:
    """Splits, whose seeds are averaged; the seeds of a single split."""
    random = np.random.default_rng(2)
    values = random.normal(0.01, 0.01, (5, 3))
    found = verdicts.ledger([claim()], two_rows(values.ravel().tolist(), splits=5), CUB)[0]
    expected = stats.ttest_1samp(values.mean(axis=1), 0, alternative="greater").pvalue
    assert found.first.found.for_it == pytest.approx(float(expected), rel=1e-6)
    assert found.first.own == pytest.approx(values[0].mean())
    seeds = random.normal(0.01, 0.01, 8)
    found = verdicts.ledger([claim()], two_rows(seeds.tolist()), CUB)[0]
    expected = stats.ttest_1samp(seeds, 0, alternative="greater").pvalue
    assert found.first.found.for_it == pytest.approx(float(expected), rel=1e-6)


def test_verdicts() -> None:
    """Corrected for the number of claims; with too few units, a claim is undecided."""
    cases = {
        "yes": (claim(name="yes"), 0.02, "supported"),
        "no": (claim("lower", name="no", metric="nmi"), 0.02, "refuted"),
        "same": (claim("equal", 0.02, "same", metric="map@r"), 0.001, "supported"),
        "unclear": (claim(name="unclear", metric="density"), 0.0, "undecided"),
        "no worse": (claim("higher", -0.01, "no worse", metric="recall@2"), -0.003, "supported"),
        "few": (claim(name="few", metric="recall@4"), 0.02, "undecided"),
    }
    joined: dict[tuple[str, str], dict[str, str]] = {}
    for name, (each, shift, _) in cases.items():
        made = two_rows((shift + NOISE)[: 5 if name == "few" else 8], metric=each.metric)
        for line in made:
            joined.setdefault((line["row"], line["seed"]), line)[each.metric] = line[each.metric]
    entries = verdicts.ledger([each for each, *_ in cases.values()], [*joined.values()], CUB)
    assert [entry.first.verdict for entry in entries] == [wanted for *_, wanted in cases.values()]
    assert entries[-1].first.reason == "5 of 8 seeds"
    assert entries[0].first.p == pytest.approx(5 * entries[0].first.found.p)
    shown = dict(zip(verdicts.HEAD, verdicts.cells(entries[0]), strict=True))
    assert shown[verdicts.EFFECT].startswith("+2.00 [")
    assert shown["own split"] == "+2.00"
    assert entries[0].seconds == 16 * 30
    expected = [
        verdicts.cells(replace(entries[0], claim=claim(expects, margin)))[2]
        for expects, margin in (
            ("higher", 0.005), ("higher", -0.01), ("lower", 0.0), ("lower", 0.005), ("equal", 0.01)
        )
    ]  # fmt: skip
    assert expected == [
        "> 0.5 points", "> −1 points", "< 0 points", "< −0.5 points", "within ±1 points"
    ]  # fmt: skip
    four = verdicts.ledger([claim()], two_rows((0.02 + NOISE).tolist(), splits=4), CUB)[0]
    assert (four.first.verdict, four.first.reason) == ("undecided", "4 of 5 splits")


PLACEBOS = claim(placebos=("x", "y"), active=("divergence", "above", 0.05))
EFFECTS = {"first": 0.0, "second": 0.02, "x": 0.004, "y": 0.001}


def with_placebos(changed: dict[str, float | None], divergence: float | None = 0.2) -> Lines:
    """The lines of rows with these EFFECTS, some of them changed, or left out where None."""
    found: Lines = []
    for number, (row, shift) in enumerate((EFFECTS | changed).items()):
        if shift is not None:
            more = {"divergence": str(divergence)} if row == "second" and divergence else {}
            found += lines(row, 0.5 + shift + np.roll(NOISE, number), **more)
    return found


@pytest.mark.parametrize(
    ("changed", "measured", "verdict", "reason"),
    [
        ({}, 0.2, "supported by its mechanism", ""),
        ({"y": 0.018}, 0.2, "the placebo does as well", ""),
        ({"y": 0.01}, 0.2, "undecided", "supported, but not whether by its mechanism"),
        ({"y": None}, 0.2, "undecided", "supported, without all placebos"),
        ({}, 0.01, "not testable here", "divergence 0.01 is not above 0.05"),
        ({}, None, "undecided", "divergence was not measured"),
        ({"second": -0.02}, 0.2, "refuted", ""),
        ({"second": -0.02}, 0.01, "not testable here", "divergence 0.01 is not above 0.05"),
    ],
)
def test_placebos_and_conditions(
    changed: dict[str, float | None], measured: float | None, verdict: str, reason: str
) -> None:
    """A placebo with half of the effect decides nothing; without a mechanism, there is no test."""
    entry = verdicts.ledger([PLACEBOS], with_placebos(changed, measured), CUB)[0]
    assert (entry.first.verdict, entry.first.reason) == (verdict, reason)
    if not changed:
        assert entry.kept == pytest.approx({"x": 0.2, "y": 0.05})
        beyond = 0.01 - 0.001 + (np.roll(NOISE, 1) / 2 + NOISE / 2 - np.roll(NOISE, 3))
        expected = stats.ttest_1samp(beyond, 0, alternative="greater").pvalue
        assert entry.contrasts[1].for_it == pytest.approx(float(expected), rel=1e-6)


def test_shares_of_no_effect_are_not_shown() -> None:
    """Only those of an effect whose interval excludes zero."""
    kept = verdicts.HEAD.index("kept by placebos")
    shown = [
        verdicts.cells(verdicts.ledger([PLACEBOS], with_placebos(effects), CUB)[0])[kept]
        for effects in ({}, {"second": 0.0005})
    ]
    assert shown == ["x 20 %, y 5 %", "–"]


def test_the_other_metric_of_retrieval() -> None:
    """It is decided with its own correction, and shown; the verdict stays with the claim's."""
    stated = [claim(name="a"), claim(name="b", metric="map@r")]
    found = two_rows((0.02 + NOISE).tolist())
    for line, other in zip(found, two_rows((NOISE - 0.03).tolist(), metric="map@r"), strict=True):
        line["map@r"] = other["map@r"]
    first, second = verdicts.ledger(stated, found, CUB)
    assert (first.first.verdict, first.second.verdict) == ("supported", "refuted")
    assert (second.first.verdict, second.second.verdict) == ("refuted", "supported")
    shown = verdicts.cells(first)[verdicts.HEAD.index("also")]
    assert shown.startswith("map@r -3.00 [")
    assert shown.endswith("**refuted**")


@pytest.mark.parametrize(
    ("key", "message"), [("data", "data, d, x"), ("code", "versions of the code, c, x")]
)
def test_rows_that_cannot_be_compared(key: str, message: str) -> None:
    found = two_rows([0.1] * 8)
    found[-1][key] = "x"
    text = f"claim a: its rows were run with different {message}; run them again"
    with pytest.raises(ConfigError, match=text):
        verdicts.ledger([claim()], found, CUB)


def test_a_verdict_stands() -> None:
    """What a later look would say does not replace it; without one, later looks count."""
    early = two_rows((0.02 + NOISE).tolist())
    late = [{**line, "look": "2"} for line in two_rows([-0.2] * 30)]
    for line in late:
        line["seed"] = str(int(line["seed"]) + 8)
    assert verdicts.ledger([claim()], early + late, CUB)[0].first.verdict == "supported"
    unclear = two_rows(NOISE.tolist())
    assert verdicts.ledger([claim()], unclear + late, CUB)[0].first.verdict == "refuted"


def test_looks_of_a_claim() -> None:
    """Rows that other claims needed before do not make its first look a second one, and a look that
    only adds placebos decides."""
    late: dict[str, str] = {"look": "2"}
    shared = lines("first", [0.5] * 8) + lines("second", 0.5016 + NOISE, **late)
    found = verdicts.ledger([claim()], shared, CUB)[0]
    assert verdicts.level(2) < found.first.p < verdicts.level(1)
    assert (found.looks, found.first.verdict) == (1, "supported")

    early = lines("first", [0.5] * 8) + lines("second", 0.52 + NOISE)
    stated = claim(placebos=("x",))
    placebo = lines("x", 0.501 + np.roll(NOISE, 1), **late)
    unclear = verdicts.ledger([stated], early, CUB)[0].first
    assert (unclear.verdict, unclear.reason) == ("undecided", "supported, without all placebos")
    found = verdicts.ledger([stated], early + placebo, CUB)[0]
    assert (found.looks, found.first.verdict) == (1, "supported by its mechanism")
    more = [{**line, "seed": str(int(line["seed"]) + 8), "look": "3"} for line in early]
    unclear_rows = lines("first", [0.5] * 8) + lines("second", 0.5 + NOISE)
    assert verdicts.ledger([claim()], unclear_rows + more, CUB)[0].looks == 2
    number = 2 * len(NOISE)
    everywhere = lines("x", [0.501] * number, look="4")  # a placebo takes no look back
    assert verdicts.ledger([stated], unclear_rows + more + everywhere, CUB)[0].looks == 2


def simulated(effects: Sequence[float], draws: int, looks: int) -> list[list[str]]:
    """The verdicts of a paper with a claim per true effect, `draws` times.

    Each claim has a row of its own in five splits (deviation 0.004) of four seeds (0.006), and up
    to five more splits in each further look.
    """
    random = np.random.default_rng(7)
    stated = [
        replace(claim(name=str(i)), rows=("first", str(i)), placebos=())
        for i in range(len(effects))
    ]
    found = []
    for _ in range(draws):
        made: Lines = []
        for row, effect in [("first", 0.0), *((str(i), x) for i, x in enumerate(effects))]:
            for look in range(looks):
                values = effect + random.normal(0, 0.004, (5, 1)) + random.normal(0, 0.006, (5, 4))
                values = values if row != "first" else np.zeros((5, 4))
                part = lines(row, values.ravel(), splits=5, look=str(look + 1))
                for line in part:
                    line["split"] = str(int(line["split"]) + 5 * look)
                made += part
        found.append([entry.first.verdict for entry in verdicts.ledger(stated, made, CUB)])
    return found


def test_size_and_power() -> None:
    """The whole procedure: splits and seeds, correction, and three looks at growing data.

    Without an effect, a paper with three claims has a false verdict in at most 5 % of 400 cases,
    the bound of the levels; a bound that a binomial distribution exceeds in 1 of 1,000. With an
    effect of twice the deviation of a unit, the power of one look is that of SciPy's noncentral t.
    """
    false = simulated([0.0] * 3, 400, looks=3)
    wrong = sum(any(verdict != "undecided" for verdict in case) for case in false)
    assert wrong <= stats.binom.ppf(0.999, 400, 0.05)
    unit = np.hypot(0.004, 0.006 / 2)
    right = [case[0] == "supported" for case in simulated([2 * unit], 400, looks=1)]
    limit = stats.t.ppf(1 - verdicts.level(1) / 2, 4)
    power = stats.nct.sf(limit, 4, 2 * np.sqrt(5))
    assert np.mean(right) == pytest.approx(power, abs=4 * np.sqrt(power * (1 - power) / 400))
    repeated: Callable[[int], float] = lambda looks: np.mean(  # noqa: E731
        [case[0] == "supported" for case in simulated([unit], 100, looks=looks)]
    )
    assert repeated(3) > repeated(1)


def test_the_margin_is_not_that_of_the_mechanism() -> None:
    stated = replace(PLACEBOS, margin=0.015)
    entry = verdicts.ledger([stated], with_placebos({}), CUB)[0]
    assert entry.first.verdict == "supported by its mechanism"


def test_a_condition_below_a_bound() -> None:
    stated = replace(PLACEBOS, active=("divergence", "below", 0.05))
    found = [
        verdicts.ledger([stated], with_placebos({}, value), CUB)[0].first.verdict
        for value in (0.2, 0.01)
    ]
    assert found == ["not testable here", "supported by its mechanism"]


def test_the_condition_of_a_refined_row() -> None:
    """It is measured in the row without refinement."""
    stated = replace(PLACEBOS, rows=("first", "second + reciprocal"))
    found = with_placebos({})
    refined = [{**line, "row": "second + reciprocal"} for line in found if line["row"] == "second"]
    for line in refined:
        del line["divergence"]
    assert verdicts.ledger([stated], found + refined, CUB)[0].active == pytest.approx(0.2)


def test_the_condition_of_a_row_that_looks_refined() -> None:
    """It is not measured in the row "D + DaNCE", which is another one, of any version."""
    stated = replace(claim(active=("divergence", "above", 0.05)), rows=("D", "D + DaNCE + S"))
    found = lines("D", [0.5] * 8) + lines("D + DaNCE + S", 0.52 + NOISE)
    found += lines("D + DaNCE", 0.5 + NOISE, divergence="0.2", code="other")
    entry = verdicts.ledger([stated], found, CUB)[0]
    assert np.isnan(entry.active)
    assert entry.first.reason == "divergence was not measured"


def test_mechanisms_are_corrected() -> None:
    """For the number of claims with placebos, and one placebo of several for their number."""
    by_mechanism = {"y": 0.0082}  # for_it between 0.01 and 0.02
    by_placebo = {"y": 0.0118}  # against likewise
    for effects in (by_mechanism, by_placebo):
        found = with_placebos(effects)
        alone = replace(PLACEBOS, placebos=("y",))
        one = verdicts.ledger([alone], found, CUB)[0]
        p = min(one.contrasts[0].for_it, one.contrasts[0].against)
        assert 0.01 < p < 0.02
        expected = verdicts.BY_MECHANISM if effects is by_mechanism else verdicts.BY_PLACEBO
        assert one.first.verdict == expected
        two = [replace(alone, name=name) for name in "ab"]
        assert [e.first.verdict for e in verdicts.ledger(two, found, CUB)] == ["undecided"] * 2
    both = verdicts.ledger([PLACEBOS], with_placebos(by_placebo), CUB)[0]
    assert both.first.verdict == "undecided"


def test_claims_without_a_study(tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text("VARIANTS = ('t-cars',)\n")
    stated = replace(claim(), study=f"{tmp_path / 'study.py'}:t")
    found = verdicts.ledger([stated], [], CUB)[0].first
    assert (found.verdict, found.reason) == ("not testable here", "no study on cub")
