"""The ledger of claims: statistics against SciPy and published values, verdicts, and the trials
that decide them."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dml_jax.commands import study as command
from dml_jax.errors import ConfigError
from dml_jax.lab import claims, outcomes, runner
from dml_jax.lab.definition import Claim
from dml_jax.lab.plan import Settings

ROOT = Path(__file__).parents[2]
DATA = ("photos", "photos_stages", "omniglot", "cub", "cars", "sop", "inshop")


def claim(
    expects: str = "higher", margin: float = 0.0, name: str = "a", metric: str = "recall@1"
) -> Claim:
    return Claim(name, "says", "where", "mpn:losses", ("first", "second"), expects, margin, metric)  # type: ignore[arg-type]


def lines(claim: Claim, differences: Sequence[float], **changed: str) -> claims.Lines:
    made = []
    for seed, difference in enumerate(differences):
        for row, value in zip(claim.rows, (0.5, 0.5 + difference), strict=True):
            line = dict.fromkeys(claims.COLUMNS, "") | {
                "study": claim.study,
                "row": row,
                "seed": str(seed),
            }
            made.append(
                line | {claim.metric: str(value), "seconds": "30", "data": "d", "code": "c"}
            )
    made[-1] |= changed
    return made


@pytest.mark.parametrize("paper", claims.papers())
def test_claims_of_the_papers(paper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six or more each, whose studies have their rows on every data set."""
    monkeypatch.chdir(ROOT)
    _, stated = claims.load(paper)
    assert len({each.name for each in stated}) == len(stated) >= 6
    for each in stated:
        studies = {data: found for data in DATA if (found := claims.study_of(each, data))}
        assert studies, each.name
        for data, found in studies.items():
            names = {row.name for row in found.rows}
            for row in claims.rows_of(each, data):
                assert row in names or row.rpartition(" + ")[0] in names, (each.name, data, row)


@pytest.mark.parametrize("expects", ["higher", "lower", "equal"])
@pytest.mark.parametrize("mean", [-0.03, -0.008, 0.0, 0.004, 0.03])
def test_statistics(expects: str, mean: float) -> None:
    """As SciPy's one-sided t-tests of one sample, and its confidence interval."""
    values, margin = np.random.default_rng(0).normal(mean, 0.01, 9), 0.01
    found = claims.test(claim(expects, margin), list(values))

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
    np.testing.assert_allclose(found.p, min(1, 2 * min(expected)), rtol=1e-6, atol=1e-12)
    assert found.favours == (expected[0] < expected[1])


def test_holm() -> None:
    """As R's p.adjust(c(0.01, 0.04, 0.03, 0.005, 0.9), "holm")."""
    np.testing.assert_allclose(
        outcomes.holm([0.01, 0.04, 0.03, 0.005, 0.9]), [0.04, 0.09, 0.09, 0.025, 0.9]
    )
    assert outcomes.holm([]) == []


def test_seeds_that_would_decide() -> None:
    """The power of that many seeds, simulated, is as wanted, and of fewer it is not."""
    random = np.random.default_rng(1)
    values = random.normal(0, 1, 8)
    values = 0.006 + 0.01 * (values - values.mean()) / values.std(ddof=1)
    count = claims.seeds_needed(claim(), claims.test(claim(), list(values)), 3)

    def power(seeds: int) -> float:
        draws = random.normal(0.006, 0.01, (20_000, seeds))
        return float(
            np.mean(stats.ttest_1samp(draws, 0, axis=1, alternative="greater").pvalue < 0.025 / 3)
        )

    assert power(count) == pytest.approx(0.8, abs=0.02)
    assert power(count - 2) < power(count)
    assert claims.seeds_needed(claim(), claims.test(claim(), [1e-5, -1e-5] * 4), 3) > claims.MOST


def test_verdicts() -> None:
    """Corrected for the number of claims; with fewer seeds than needed, a claim is undecided."""
    noise = np.random.default_rng(0).normal(0, 0.002, 8)
    stated = [
        claim(name="yes"),
        claim("lower", name="no", metric="nmi"),
        claim("equal", 0.02, "same", "map@r"),
    ]
    stated += [claim(name="unclear", metric="density"), claim(name="few", metric="spectral_decay")]
    found: claims.Lines = []
    for each, shift in zip(stated, (0.02, 0.02, 0.001, 0.0, 0.02), strict=True):
        found += lines(each, [*(shift + noise - noise.mean())][: 5 if each.name == "few" else 8])
    merged: dict[tuple[str, str, str], dict[str, str]] = {}
    for line in found:
        known = merged.setdefault((line["study"], line["row"], line["seed"]), line)
        known |= {key: value for key, value in line.items() if value}
    entries = claims.ledger(stated, list(merged.values()), "cub")
    assert [entry.verdict for entry in entries] == [
        "supported",
        "refuted",
        "supported",
        "undecided",
        "undecided",
    ]
    assert [bool(entry.reason) for entry in entries] == [False, False, False, True, True]
    assert entries[4].reason == "5 of 8 seeds"
    assert entries[0].p == pytest.approx(4 * claims.test(stated[0], entries[0].found.differences).p)
    assert claims.cells(entries[0])[3].startswith("+2.00 [")
    assert entries[0].seconds == 16 * 30
    wanted = [
        claims.cells(replace(entry, claim=claim(expects, margin)))[2]
        for entry in entries[:1]
        for expects, margin in (
            ("higher", 0.005),
            ("lower", 0.0),
            ("lower", 0.005),
            ("equal", 0.01),
        )
    ]
    assert wanted == ["> 0.5 points", "< 0 points", "< −0.5 points", "within ±1 points"]
    strict = claim(margin=0.03)
    assert claims.ledger([strict], lines(strict, 0.02 + noise), "cub")[0].verdict == "refuted"


@pytest.mark.parametrize(
    ("key", "message"), [("data", "data, d, x"), ("code", "versions of the code, c, x")]
)
def test_rows_that_cannot_be_compared(key: str, message: str) -> None:
    with pytest.raises(
        ConfigError, match=f"claim a: its rows were run with different {message}; run them again"
    ):
        claims.ledger([claim()], lines(claim(), [0.1] * 8, **{key: "x"}), "cub")


def test_equal_rows_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever studies they are from; what others read is where they expect it."""
    monkeypatch.chdir(ROOT)
    owners = claims.planned(["mpn"], "omniglot", Settings(tmp_path, seeds=(0, 1)))
    trials = claims.distinct(owners)
    both = owners["mpn:layers_heads", "layers=1 heads=2", 1]
    assert owners["mpn:group_loss", "MPN", 1] is both or both.directory.is_relative_to(tmp_path)
    assert len({trial.directory for trial in trials}) == len(trials) < len(owners)
    student = owners["mpn:students", "distillation", 1]
    assert Path(student.config.method.teacher) in [trial.directory for trial in trials]
    ensemble = owners["mpn:ensembles", "2 networks", 0]
    assert {trial.directory for trial in trials} >= set(ensemble.members)
    order = [trial.name for trial in trials]
    assert all(
        order.index(need) < order.index(trial.name) for trial in trials for need in trial.needs
    )


def test_missing_rows_and_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "load", lambda paper: ("T", (claim(),)))
    with pytest.raises(ConfigError, match="claim a: mpn:losses-cub has no row 'first'"):
        claims.planned(["x"], "cub", Settings(tmp_path))
    with pytest.raises(ConfigError, match="--on=moon: no claim has a study on this data set"):
        claims.planned(["x"], "moon", Settings(tmp_path))
    for arguments, message in (
        (["--claims=hist"], "--on: missing"),
        (["--claims=hits", "--on=cub"], "--claims=hits: did you mean hist"),
    ):
        with pytest.raises(ConfigError, match=message):
            command.execute(arguments)


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lists claims, trains what is missing, writes measurements, which are kept, and verdicts."""
    monkeypatch.chdir(ROOT)
    arguments = [
        "--claims=crt",
        "--on=omniglot",
        f"--root={tmp_path / 'root'}",
        f"--output={tmp_path}",
    ]
    command.execute([*arguments, "--list"])
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(claims.load("crt")[1]) + 1
    assert listed[0].startswith("crt  density: CRT has a significantly higher")

    def trained(root: Path, trials: list[claims.Trial], *_: object) -> None:
        for trial in trials:
            value = 0.5 + 0.1 * ("CRT" in trial.row) + 0.001 * trial.seed
            (trial.directory).mkdir(parents=True)
            results = f'{{"recall@1": {value}, "protocol": "clean", "timing": {{"seconds": 2.0}}}}'
            (trial.directory / "results.json").write_text(results)

    monkeypatch.setattr(runner, "run_all", trained)
    command.execute(arguments)
    with (tmp_path / "omniglot.csv").open() as file:
        found = list(csv.DictReader(file))
    assert {line["seed"] for line in found} == set("01234567")
    text = (tmp_path / "report.md").read_text()
    assert (
        "| crt | recall@1 | > 0 points | +10.00 [+10.00, +10.00] | 8 | <0.001 | supported |" in text
    )
    assert "undecided (0 of 8 seeds)" in text
