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
    return Claim(
        name, "says", "where", "study:losses", ("first", "second"), expects, margin, metric
    )  # type: ignore[arg-type]


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
    assert [entry.first.verdict for entry in entries] == [
        "supported",
        "refuted",
        "supported",
        "undecided",
        "undecided",
    ]
    assert [bool(entry.first.reason) for entry in entries] == [False, False, False, True, True]
    assert entries[4].first.reason == "5 of 8 seeds"
    assert entries[0].first.p == pytest.approx(
        4 * claims.test(stated[0], entries[0].first.found.differences).p
    )
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
    assert claims.ledger([strict], lines(strict, 0.02 + noise), "cub")[0].first.verdict == "refuted"


def test_the_other_metric_of_retrieval() -> None:
    """It is decided with its own correction, and shown; the verdict stays with the claim's."""
    noise = np.random.default_rng(0).normal(0, 0.002, 8)
    stated = [claim(name="a"), claim(name="b", metric="map@r")]
    found = lines(stated[0], 0.02 + noise)
    for line, other in zip(found, lines(stated[1], noise - 0.03), strict=True):
        line["map@r"] = other["map@r"]
    first, second = claims.ledger(stated, found, "cub")
    assert (first.first.verdict, first.second.verdict) == ("supported", "refuted")
    assert (second.first.verdict, second.second.verdict) == ("refuted", "supported")
    higher, lower = (
        stats.ttest_1samp(values, 0, alternative=side).pvalue
        for values, side in ((0.02 + noise, "greater"), (noise - 0.03, "less"))
    )
    assert lower < higher  # Holm: of two tests, the smaller p-value counts twice
    assert first.first.p == pytest.approx(2 * higher, rel=1e-9, abs=0)
    assert first.second.p == pytest.approx(2 * 2 * lower, rel=1e-9, abs=0)
    shown = claims.cells(first)[claims.HEAD.index("also")]
    assert shown.startswith(f"map@r {100 * np.mean(noise - 0.03):+.2f} [")
    assert shown.endswith("**refuted**")


def test_some_claims(tmp_path: Path) -> None:
    """By name, from a user's file; the others still count in the correction."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from dml_jax.lab.definition import Claim\nTITLE = 'Mine'\n"
        "CLAIMS = tuple(Claim(n, 's', 'w', 'study:losses', ('first', 'second')) for n in 'ab')\n"
    )
    chosen = claims.selected([str(path)], ["b"])
    assert [each.name for each in chosen[str(path)]] == ["b"]
    found = lines(claim(), 0.02 + np.random.default_rng(0).normal(0, 0.02, 8))
    one = claims.table(str(path), found, "cub", chosen[str(path)])
    both = claims.table(str(path), found, "cub", claims.load(str(path))[1])
    assert one.columns == {key: cells[1:] for key, cells in both.columns.items()}
    with pytest.raises(ConfigError, match=r"--claim=z: .*a, b"):
        claims.selected([str(path)], ["z"])
    with pytest.raises(ConfigError, match="--claims=mine: there is no such file"):
        claims.selected(["mine"], [])
    path.write_text("TITLE = 'Mine'")
    with pytest.raises(ConfigError, match=r"--claims=.*mine\.py.*no attribute 'CLAIMS'"):
        claims.load(str(path))


@pytest.mark.parametrize(
    ("key", "message"), [("data", "data, d, x"), ("code", "versions of the code, c, x")]
)
def test_rows_that_cannot_be_compared(key: str, message: str) -> None:
    with pytest.raises(
        ConfigError, match=f"claim a: its rows were run with different {message}; run them again"
    ):
        claims.ledger([claim()], lines(claim(), [0.1] * 8, **{key: "x"}), "cub")


STUDY = """
from dml_jax.lab.definition import Row, Study

SOFTMAX, ANCHOR = "configs/digits_baseline.py", "configs/digits_baseline.py:proxy_anchor"
ROWS = {
    "losses-digits": (Row("softmax", SOFTMAX), Row("Proxy-Anchor", ANCHOR)),
    "starts-digits": (
        Row("the start", SOFTMAX),
        Row("continued", ANCHOR, {"init_from": "@the start"}),
        Row("from the beginning", ANCHOR),
    ),
    "ensembles-digits": (
        Row("network 1", ANCHOR),
        Row("network 2", ANCHOR, {"seed": 1000}),
        Row("2 networks", members=("network 1", "network 2")),
    ),
}
VARIANTS = tuple(ROWS)


def get_study(variant):
    return Study(variant, rows=ROWS[variant])
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Studies on digits, and three claims on them by every paper."""
    monkeypatch.chdir(ROOT)
    path = tmp_path / "study.py"
    path.write_text(STUDY)
    stated = (
        replace(claim(), study=f"{path}:losses", rows=("softmax", "Proxy-Anchor")),
        replace(claim(), study=f"{path}:starts", rows=("from the beginning", "continued")),
        replace(claim(), study=f"{path}:ensembles", rows=("network 1", "2 networks")),
    )
    named = [replace(each, name=name) for each, name in zip(stated, "abc", strict=True)]
    monkeypatch.setattr(claims, "load", lambda paper: ("T", tuple(named)))
    return path


def test_equal_rows_are_trained_once(tmp_path: Path, file: Path) -> None:
    """Whichever studies they are from; what others read is where they expect it."""
    owners = claims.planned(claims.load("x")[1], "digits", Settings(tmp_path, seeds=(0, 1)))
    trials = claims.distinct(owners)
    found = owners[f"{file}:losses", "Proxy-Anchor", 1]
    assert owners[f"{file}:starts", "from the beginning", 1] is found
    start, ensemble = (
        owners[f"{file}:starts", "the start", 1],
        owners[f"{file}:ensembles", "2 networks", 0],
    )
    assert owners[f"{file}:losses", "softmax", 1] is not start
    assert len({trial.directory for trial in trials}) == len(trials) == len(owners) - 2
    assert Path(owners[f"{file}:starts", "continued", 1].config.init_from) == start.directory
    assert {trial.directory for trial in trials} >= {start.directory, *ensemble.members}
    order = [trial.name for trial in trials]
    assert all(
        order.index(need) < order.index(trial.name) for trial in trials for need in trial.needs
    )


def test_missing_rows_and_studies(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(claim(), study=f"{file}:losses")
    monkeypatch.setattr(claims, "load", lambda paper: ("T", (wrong,)))
    with pytest.raises(ConfigError, match=f"claim a: {file}:losses-digits has no row 'first'"):
        claims.planned(claims.load("x")[1], "digits", Settings(tmp_path))
    with pytest.raises(ConfigError, match="--on=moon: no claim has a study on this data set"):
        claims.planned(claims.load("x")[1], "moon", Settings(tmp_path))
    paper = claims.papers()[0]
    with pytest.raises(ConfigError, match="--on: missing"):
        command.execute([f"--claims={paper}"])


def test_the_command(
    tmp_path: Path,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Lists claims, trains what is missing, writes measurements, which are kept, and verdicts."""
    paper = claims.papers()[0]
    arguments = [
        f"--claims={paper}",
        "--on=digits",
        f"--root={tmp_path / 'root'}",
        f"--output={tmp_path}",
    ]
    command.execute([*arguments, "--list"])
    listed = capsys.readouterr().out.splitlines()
    assert listed[:-1] == [
        f"{paper}  a: says [where; {file}:losses-digits: Proxy-Anchor against softmax]",
        f"{paper}  b: says [where; {file}:starts-digits: continued against from the beginning]",
        f"{paper}  c: says [where; {file}:ensembles-digits: 2 networks against network 1]",
    ]

    def trained(root: Path, trials: list[claims.Trial], *_: object) -> None:
        for trial in trials:
            if trial.row == "2 networks":
                continue
            value = 0.5 + 0.1 * (trial.row == "Proxy-Anchor") + 0.001 * trial.seed
            (trial.directory).mkdir(parents=True)
            results = f'{{"recall@1": {value}, "protocol": "clean", "timing": {{"seconds": 2.0}}}}'
            (trial.directory / "results.json").write_text(results)

    monkeypatch.setattr(runner, "run_all", trained)
    command.execute(arguments)
    with (tmp_path / "digits.csv").open() as file:
        found = list(csv.DictReader(file))
    assert {line["seed"] for line in found} == set("01234567")
    text = (tmp_path / "report.md").read_text()
    supported = "| > 0 points | +10.00 [+10.00, +10.00] | 8 | <0.001 | supported |"
    assert f"| a | recall@1 {supported}" in text
    assert "undecided (0 of 8 seeds)" in text
