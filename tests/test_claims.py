"""The ledger of claims: its statistics against SciPy, and the module from end to end."""

import csv
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.claims import verdicts
from benchmarks.claims.ledger import Claim, Lines, Target, merged, packed
from dml_jax.errors import ConfigError

ROOT = Path(__file__).parents[1]
NOISE = np.random.default_rng(0).normal(0, 0.002, 8)
PLACEBO = Claim("a", "", "", "mpn:losses", ("first", "second"), placebos=("p",), active=("at_work", "above", 1))


def lines(**effects: float) -> Lines:
    """Eight seeds of each row, with another order of the same noise."""
    facts = {"study": "mpn:losses", "split": "0", "seconds": "3", "data": "d", "code": "c"}
    return [
        facts | {"row": row, "seed": str(i), "recall@1": str(0.5 + effect + noise), "at_work": "2"}
        for number, (row, effect) in enumerate(effects.items())
        for i, noise in enumerate(np.roll(NOISE, number))
    ]


def decided(found: Lines, claim: Claim = PLACEBO) -> verdicts.Entry:
    return verdicts.ledger([claim], found, Target("cub"))[0]


@pytest.mark.parametrize("expects", ["higher", "lower", "equal"])
def test_statistics(expects: str) -> None:
    """As SciPy's one-sided t-tests of one sample, and its confidence interval."""
    values, margin = np.random.default_rng(1).normal(0.012, 0.01, 9), 0.01

    def p(bound: float, alternative: str) -> float:
        return float(stats.ttest_1samp(values, bound, alternative=alternative).pvalue)

    above, below = p(margin, "greater"), p(-margin, "less")
    equal = max(p(-margin, "greater"), p(margin, "less"))
    expected = {"higher": above, "lower": below, "equal": equal}[expects]
    found = verdicts.test(expects, margin, list(values))
    assert found.for_it == pytest.approx(expected, rel=1e-6)
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    np.testing.assert_allclose((found.low, found.high), interval)


@pytest.mark.parametrize(
    ("second", "placebo", "at_work", "verdict", "mechanism"),
    [(0.02, 0.001, 2, "supported", "the mechanism's"), (0.0, 0.0, 2, "undecided", ""),
     (0.02, 0.018, 2, "supported", "the placebo does as well"), (-0.02, 0.0, 2, "refuted", ""),
     (0.02, 0.001, 0, "supported", "not at work"), (-0.02, 0.001, 0, "refuted", "")],
)  # fmt: skip
def test_verdicts(second: float, placebo: float, at_work: int, verdict: str, mechanism: str) -> None:
    """A mechanism that is not at work takes nothing from a verdict on the claim itself."""
    found = [line | {"at_work": str(at_work)} for line in lines(first=0, second=second, p=placebo)]
    entry = decided(found)
    assert (entry.first.verdict, entry.mechanism) == (verdict, mechanism)


@pytest.mark.parametrize(("untrained", "verdict"), [(0.53, "not testable here"), (0.51, "refuted")])
def test_rows_below_no_training_decide_nothing(untrained: float, verdict: str) -> None:
    found = lines(first=0.02, second=0.0, p=0.0)
    found = [line | {"untrained recall@1": str(untrained)} for line in found]
    assert decided(found).first.verdict == verdict


def test_all_claims_of_a_paper_count() -> None:
    """Claims that are not measured count in Holm's correction, so that measuring them one at a time gains nothing."""
    found, others = lines(first=0.0, second=0.004), [replace(PLACEBO, name=str(i)) for i in "bcde"]
    others = [replace(claim, rows=("first", "not run")) for claim in others]
    alone = decided(found).first.p
    together = verdicts.ledger([PLACEBO, *others], found, Target("cub"))[0].first.p
    assert together == pytest.approx(min(1.0, 5 * alone))


def test_classes_are_units() -> None:
    """As a t-test of the differences of class means, over the splits that test a class."""
    random = np.random.default_rng(2)
    values = random.uniform(size=(2, 2, 40))  # row, split, class
    tested = [range(30), range(10, 40)]
    found = [
        {"study": "mpn:losses", "row": row, "split": str(split), "seed": "0", "recall@1": "0.5",
         "seconds": "1", "data": str(split), "code": "c",
         "recall@1 by class": packed({str(c): float(values[i, split, c]) for c in tested[split]})}
        for i, row in enumerate(("first", "second"))
        for split in range(2)
    ]  # fmt: skip
    difference = np.where(
        np.arange(40) < 10,
        values[1, 0] - values[0, 0],
        np.where(np.arange(40) < 30, (values[1] - values[0]).mean(0), values[1, 1] - values[0, 1]),
    )
    made = decided(found).first
    assert (made.units.kind, len(made.units.values)) == ("classes", 40)
    assert made.found is not None
    expected = stats.ttest_1samp(difference, 0)
    assert made.found.p == pytest.approx(expected.pvalue, rel=1e-2)  # stored with four digits
    assert made.found.mean == pytest.approx(difference.mean(), abs=1e-4)


def test_a_plan_is_not_extended() -> None:
    found = lines(first=0.0)
    with pytest.raises(ConfigError, match="split 0 with seed 4, which is not in this plan"):
        merged(found, found[:4])


FILES = {
    "heads.py": """
from configs.digits_baseline import get_config as whole
def get_choices(variant):
    return ({"train.groups.loss.learning_rate": 0.0}, {"train.groups.loss.learning_rate": 0.01})
def get_config():
    values = whole("proxy_anchor")
    values.train.groups.backbone.freeze = True
    values.train.update(feature_views=1, epochs=0, steps=2)
    values.evaluation.cluster = False
    return values
""",
    "study.py": """
from pathlib import Path
from dml_jax.lab.definition import Row, Study
VARIANTS = ("sizes-digits",)
def get_study(variant):
    config = str(Path(__file__).with_name("heads.py"))
    sizes = {"narrow": 2, "wide": 32, "placebo": 33}
    return Study("T", rows=tuple(
        Row(name, config, {"method.embedding_dim": size}) for name, size in sizes.items()
    ))
""",
    "claims.py": """
from pathlib import Path
from benchmarks.claims.ledger import Claim
TITLE, STUDY = "Digits", str(Path(__file__).with_name("study.py")) + ":sizes"
CLAIMS = (Claim("size", "It helps.", "here", STUDY, ("narrow", "wide"), placebos=("placebo",),
                metric="map@r"),)
""",
}


@pytest.mark.slow
def test_the_module(tmp_path: Path) -> None:
    """Choices, heads on stored maps, measurements and the verdict, which the same command makes
    again without training."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    output = tmp_path / "results"
    command = [sys.executable, "-m", "benchmarks.claims", str(tmp_path / "claims.py")]
    command += ["--on=digits", f"--root={tmp_path / 'root'}", f"--output={output}"]

    def run(*more: str) -> str:
        options: Any = {"cwd": ROOT, "env": os.environ | {"COLUMNS": "300", "JAX_NUM_CPU_DEVICES": "1"}, "text": True}
        return subprocess.run([*command, *more], check=True, capture_output=True, **options).stdout

    assert "size: It helps. [here; " in run("--list")
    first = run()
    assert "24 of 24" in first
    with (output / "digits.csv").open() as file:
        found = list(csv.DictReader(file))
    assert len(found) == 24
    with (output / "choices" / "digits.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 4
    again = run()
    assert "of 24" not in again
    for printed in (first, again):
        assert "the placebo does as well" in " ".join(printed.split()), printed
