"""The ledger of claims: its statistics against SciPy, and the module from end to end."""

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.claims import verdicts
from benchmarks.claims.ledger import Claim, Lines, Target

ROOT = Path(__file__).parents[1]
NOISE = np.random.default_rng(0).normal(0, 0.002, 8)
PLACEBO = Claim("a", "", "", "s:t", ("first", "second"), placebos=("p",))


def lines(**effects: float) -> Lines:
    """Eight seeds of each row, with another order of the same noise."""
    facts = {"study": "s:t", "split": "0", "seconds": "3", "look": "1", "data": "d", "code": "c"}
    return [
        facts | {"row": row, "seed": str(i), "recall@1": str(0.5 + effect + noise)}
        for number, (row, effect) in enumerate(effects.items())
        for i, noise in enumerate(np.roll(NOISE, number))
    ]


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
    ("second", "placebo", "verdict"),
    [(0.02, 0.001, "supported by its mechanism"), (0.02, 0.018, "the placebo does as well"),
     (0.0, 0.0, "undecided"), (-0.02, 0.0, "refuted")],
)  # fmt: skip
def test_verdicts(second: float, placebo: float, verdict: str) -> None:
    found = lines(first=0.0, second=second, p=placebo)
    assert verdicts.ledger([PLACEBO], found, Target("cub"))[0].first.verdict == verdict


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
        options: Any = {
            "cwd": ROOT,
            "env": os.environ | {"COLUMNS": "300", "JAX_NUM_CPU_DEVICES": "1"},
            "text": True,
        }
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
