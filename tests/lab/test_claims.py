"""Claims: those of the papers, choices and trials that decide them, and their measurements."""

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dml_jax.commands import study as command
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.lab import claims, plan, runner, studies, verdicts
from dml_jax.lab.claims import Target
from dml_jax.lab.definition import Claim
from dml_jax.lab.plan import Settings

ROOT = Path(__file__).parents[2]
RECIPES = tuple(f"photos:{recipe}" for recipe in ("lite0", "lite0_stages", "lite0_last"))
TARGETS = tuple(map(Target.of, ("omniglot", "cub", "cars", "sop", "inshop", *RECIPES)))
DIGITS = Target("digits")


def claim(name: str = "a", **more: Any) -> Claim:
    return Claim(name, "says", "where", "study:losses", ("first", "second"), **more)


@pytest.mark.parametrize("paper", claims.papers())
def test_claims_of_the_papers(paper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six or more each, whose studies have their rows on every data set."""
    monkeypatch.chdir(ROOT)
    _, stated = claims.load(paper)
    assert len({each.name for each in stated}) == len(stated) >= 6
    for each in stated:
        studies = {where: found for where in TARGETS if (found := claims.study_of(each, where))}
        assert studies, each.name
        for where, found in studies.items():
            names = {row.name for row in found.rows}
            for row in (*claims.rows_of(each, where), *each.placebos):
                assert row in names or row.rpartition(" + ")[0] in names, (each.name, where, row)


@pytest.mark.parametrize("paper", claims.papers())
def test_placebos_differ_in_the_mechanism_only(paper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of the method, or a frozen group: data, network and length are those of the row."""
    monkeypatch.chdir(ROOT)
    for each in claims.load(paper)[1]:
        found = claims.study_of(each, Target.of("cars:lite0"))
        rows = {row.name: row for row in found.rows} if found else {}
        for name in each.placebos if found else ():
            row, imitated = rows[name], rows[each.rows[1].partition(" + ")[0]]
            assert row.config == imitated.config
            keys = {
                key
                for key in row.overrides.keys() | imitated.overrides.keys()
                if row.overrides.get(key) != imitated.overrides.get(key)
            }
            allowed = ("method.", "train.groups.", "evaluation.refine")
            assert keys
            assert all(key.startswith(allowed) for key in keys), (each.name, name, keys)


def test_targets() -> None:
    """A data set by its paper's recipe, or any data by a recipe."""
    assert (Target.of("cub").variant, Target.of("cub").overrides) == ("cub", {})
    cars, mine = Target.of("cars:lite0"), Target.of("mine:lite0")
    assert cars.overrides == {"data.name": "cars", "data.path": "data/cars"}
    assert (mine.overrides, mine.variant, mine.name) == ({}, "lite0", "mine-lite0")


def test_some_claims(tmp_path: Path) -> None:
    """By name, from a user's file; the others still count in the correction."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from dml_jax.lab.definition import Claim\nTITLE = 'Mine'\n"
        "CLAIMS = tuple(Claim(n, 's', 'w', 'study:losses', ('first', 'second')) for n in 'ab')\n"
    )
    chosen = claims.selected([str(path)], ["b"])
    assert [each.name for each in chosen[str(path)]] == ["b"]
    found = [
        dict(zip(claims.KEYS, ("study:losses", row, "0", str(seed)), strict=True))
        | {"recall@1": str(value), "seconds": "1", "look": "1", "data": "d", "code": "c"}
        for seed, noise in enumerate(np.random.default_rng(0).normal(0, 0.002, 8))
        for row, value in (("first", 0.5), ("second", 0.52 + noise))
    ]
    one = verdicts.table(str(path), found, Target("cub"), chosen[str(path)])
    both = verdicts.table(str(path), found, Target("cub"), claims.load(str(path))[1])
    assert one.columns == {key: cells[1:] for key, cells in both.columns.items()}
    with pytest.raises(ConfigError, match=r"--claim=z: .*a, b"):
        claims.selected([str(path)], ["z"])
    with pytest.raises(ConfigError, match="--claims=mine: there is no such file"):
        claims.selected(["mine"], [])
    path.write_text("TITLE = 'Mine'")
    with pytest.raises(ConfigError, match=r"--claims=.*mine\.py.*no attribute 'CLAIMS'"):
        claims.load(str(path))


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
    owners = claims.planned(claims.load("x")[1], DIGITS, Settings(tmp_path, seeds=(0, 1)))
    trials = claims.distinct(owners.values())
    found = owners[f"{file}:losses", "Proxy-Anchor", 0, 1]
    assert owners[f"{file}:starts", "from the beginning", 0, 1] is found
    start, ensemble = (
        owners[f"{file}:starts", "the start", 0, 1],
        owners[f"{file}:ensembles", "2 networks", 0, 0],
    )
    assert owners[f"{file}:losses", "softmax", 0, 1] is not start
    assert len({trial.directory for trial in trials}) == len(trials) == len(owners) - 2
    assert Path(owners[f"{file}:starts", "continued", 0, 1].config.init_from) == start.directory
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
        claims.planned(claims.load("x")[1], DIGITS, Settings(tmp_path))
    with pytest.raises(ConfigError, match="--on=moon: no claim has a study with this data or"):
        claims.planned(claims.load("x")[1], Target("moon"), Settings(tmp_path))
    paper = claims.papers()[0]
    with pytest.raises(ConfigError, match="--on: missing"):
        command.execute([f"--claims={paper}"])


def test_the_command(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    supported = "| > 0 points | +10.00 [+10.00, +10.00] | +10.00 | 8 | <0.001 | supported |"
    assert f"| a | recall@1 {supported}" in text
    assert "undecided (0 of 8 seeds)" in text
    # The ensemble is missing; another row is only where a third one starts.
    looks = {line["row"]: line["look"] for line in found}
    assert {row for row, look in looks.items() if not look} == {
        "network 1",
        "network 2",
        "the start",
    }


CHOICES = """
from dataclasses import replace
from configs import digits_baseline

VARIANTS = ("", "anchor")

def get_config(variant=""):
    return digits_baseline.get_config("proxy_anchor" if variant else "")

def get_choices(variant):
    return tuple({"train.groups.embedding.learning_rate": rate} for rate in (1e-3, 1e-2))
"""


def test_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many for each row, on held-out training classes; placebos take that of their row."""
    (tmp_path / "heads.py").write_text(CHOICES)
    rows = "".join(
        f"Row({name!r}, {str(tmp_path / 'heads.py') + suffix!r}, {overrides}),"
        for name, suffix, overrides in (
            ("first", ":", {}),
            ("second", ":anchor", {}),
            ("p", ":anchor", {"method.embedding_dim": 32}),
        )
    ).replace(":'", "'")
    (tmp_path / "study.py").write_text(
        "from dml_jax.lab.definition import Row, Study\nVARIANTS = ('t-digits',)\n"
        f"def get_study(variant):\n    return Study('S', 's', ({rows}))\n"
    )
    study = f"{tmp_path / 'study.py'}:t"
    stated = [replace(claim(placebos=("p",)), study=study)]
    settings = Settings(tmp_path / "root", seeds=(3, 4), splits=(0, 1))
    placebos = {(study, "p"): "second"}
    tried = claims.choices(stated, DIGITS, settings, placebos)
    assert [choice.row for choice in tried] == ["first", "first", "second", "second"]
    for number, choice in enumerate(tried):
        config = choice.trial.config
        assert (config.train.select, config.data.validation_share) == ("validation", 0.3)
        assert (config.seed, config.data.class_split) == (3, 0)
        choice.trial.directory.mkdir(parents=True)
        value = (0.5, 0.6, 0.8, 0.7)[number]
        (choice.trial.directory / "results.json").write_text(json.dumps({"recall@1": value}))
    best = claims.chosen(tried, placebos)
    other = {"study": study, "row": "other", "chosen": "yes"}
    lines = claims.choice_lines(tried, best, [other, {**other, "row": "first"}])
    found = [(line["row"], line["chosen"]) for line in lines]
    assert found == [
        ("first", ""), ("first", "yes"), ("other", "yes"), ("second", "yes"), ("second", "")
    ]  # fmt: skip
    owners = claims.planned(stated, DIGITS, settings, best)
    rates = {
        (row, split, seed): trial.config.train.groups["embedding"].learning_rate
        for (_, row, split, seed), trial in owners.items()
    }
    expected = {"first": 1e-2, "second": 1e-3, "p": 1e-3}
    assert rates == {
        (row, split, seed): rate
        for row, rate in expected.items()
        for split in (0, 1)
        for seed in (3, 4)
    }
    assert [key[2:] for key in owners][::3] == [(0, 3), (1, 3), (0, 4), (1, 4)]  # seeds last
    assert {trial.config.data.class_split for trial in owners.values()} == {0, 1}
    # Alone in a claim, too, a placebo takes the choice of the row that it imitates.
    alone = [replace(stated[0], rows=("first", "p"), placebos=())]
    tried = claims.choices(alone, DIGITS, settings, placebos)
    assert [choice.row for choice in tried] == ["first", "first", "second", "second"]
    assert claims.chosen(tried, placebos)[study]["p"] == tried[2].overrides


def test_placebos_do_not_depend_on_selected_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on the paper that is selected; refined rows are imitated as they were trained."""
    refined = ("first", "D + S + reciprocal")
    stated = {
        "mine": (replace(claim(), rows=("first", "p")),),
        "paper": (replace(claim(placebos=("p",)), rows=refined),),
    }
    monkeypatch.setattr(claims, "load", lambda paper: ("T", stated[paper]))
    monkeypatch.setattr(claims, "papers", lambda: ("paper",))
    assert claims.imitated(["mine"], DIGITS) == {("study:losses", "p"): "D + S"}


def test_looks() -> None:
    """Lines keep the look at which they were complete; unfinished ones get it later."""
    old = dict(zip(claims.KEYS, "ab00", strict=True)) | {"look": "1", "recall@1": "0.5"}
    partial = {**old, "seed": "1", "look": ""}
    assert claims.next_look([old, partial]) == "2"
    new = [{**line, "look": "2", "recall@1": "0.6"} for line in (old, partial)]
    found = claims.merged([old, partial], new)
    assert [line["look"] for line in found] == ["1", "2"]
    assert claims.columns(found) == ["study", "row", "split", "seed", "recall@1", *claims.END]


def owners(tmp_path: Path, names: list[str], unfinished: str = "") -> Any:
    found: dict[Any, Any] = {}
    for name in names:
        directory = tmp_path / name
        directory.mkdir()
        if name != unfinished:
            (directory / "results.json").write_text("{}")
        found["study:losses", name, 0, 0] = SimpleNamespace(directory=directory)
    return found


def test_directories_with_another_configuration(tmp_path: Path, file: Path) -> None:
    """They are refused, not taken for finished runs."""
    stated = claims.load("x")[1][:1]
    (trial, *_) = claims.planned(stated, DIGITS, Settings(tmp_path)).values()
    trial.directory.mkdir(parents=True)
    (trial.directory / "results.json").write_text("{}")
    changed = replace(trial.config, data=replace(trial.config.data, batch_size=8))
    facts = {"config": asdict(changed), "data_hash": "", "classes": 1, "images": 1, "shape": [8, 8]}
    (trial.directory / "config.json").write_text(json.dumps(facts))
    with pytest.raises(CheckpointError, match=r"data\.batch_size \(8 there.*another --root$"):
        studies.train(tmp_path, [trial], 1)
    output = tmp_path / "measurements"
    with pytest.raises(CheckpointError, match=r"another --root$"):
        studies.run_claims(["x"], DIGITS, Settings(tmp_path), names=["a"], output=output)
    assert not output.exists()


def test_ensembles_of_heads(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made in the process of the heads, also after an interruption, and are kept."""
    made = claims.planned(claims.load("x")[1][2:], DIGITS, Settings(tmp_path))
    on_maps = {"feature_views": 1}
    trials = [
        replace(t, config=t.config and replace(t.config, train=replace(t.config.train, **on_maps)))
        for t in claims.distinct(made.values())
    ]
    started: list[list[str]] = []
    for function in ("run_heads", "run_all"):
        record = lambda root, found, *_: started.append([trial.row for trial in found])  # noqa: E731
        monkeypatch.setattr(runner, function, record)
    monkeypatch.setattr(plan, "check_same", lambda trials: None)
    rows = ["network 1", "network 2", "2 networks"]
    for trial in (*trials, None):
        started.clear()
        studies.train(tmp_path, trials, 1)
        assert started == ([rows, []] if trial else [[]])
        if trial:
            trial.directory.mkdir(parents=True)
            (trial.directory / "results.json").write_text("{}")


def test_complete_with_placebos(tmp_path: Path) -> None:
    """A claim is looked at once all of its rows and placebos are finished."""
    stated = [claim(placebos=("p",))]
    found = owners(tmp_path, ["first", "second", "p"], unfinished="p")
    assert claims.complete(stated, DIGITS, found) == set()
    (tmp_path / "p" / "results.json").write_text("{}")
    rows = {("study:losses", name) for name in ("first", "second", "p")}
    assert claims.complete(stated, DIGITS, found) == rows


def test_complete_with_rows_that_look_refined(tmp_path: Path) -> None:
    """A row "D + S" is a row of its own, "second + reciprocal" is the row "second" refined."""
    stated = [replace(claim(), rows=("D", "D + S"))]
    found = owners(tmp_path, ["D", "D + S", "second"], unfinished="D + S")
    assert claims.unrefined("D + DaNCE + S") == "D + DaNCE + S"
    assert claims.unrefined("D + S + my.refinement") == "D + S"
    assert claims.unrefined("D + 0.5") == "D + 0.5"
    assert claims.complete(stated, DIGITS, found) == set()
    refined = [replace(claim(), rows=("D", "second + reciprocal"))]
    assert claims.complete(refined, DIGITS, found) == {
        ("study:losses", "D"), ("study:losses", "second")
    }  # fmt: skip


def test_the_first_of_equal_choices_and_what_placebos_take(tmp_path: Path) -> None:
    made = []
    for number, (row, value) in enumerate((("second", 0.7), ("second", 0.8), ("second", 0.8))):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "results.json").write_text(json.dumps({"recall@1": value}))
        trial: Any = SimpleNamespace(directory=directory)
        made.append(claims.Choice("study:losses", row, {"rate": number}, trial))
    best = claims.chosen(made, {("study:losses", "p"): "second"})
    assert best == {"study:losses": {"second": {"rate": 1}, "p": {"rate": 1}}}


def test_lines_of_a_run(tmp_path: Path) -> None:
    """Refined rows are lines of their own; geometry and what the method measures are columns."""
    results = {"recall@1": 0.5, "timing": {"seconds": 2}, "geometry": {"density": 0.3}}
    results |= {"mechanism": {"divergence": 0.2}, "refined": {"reciprocal": {"recall@1": 0.6}}}
    found = owners(tmp_path, ["second"])
    (tmp_path / "second" / "results.json").write_text(json.dumps(results))
    plain, refined = claims.measurements(found, {("study:losses", "second")}, "3")
    measured = {"recall@1": "0.500000", "density": "0.300000", "divergence": "0.200000"}
    assert {key: plain[key] for key in measured} == measured
    assert (refined["row"], refined["recall@1"]) == ("second + reciprocal", "0.600000")
    assert "divergence" not in refined
    assert (plain["look"], refined["look"], plain["seconds"]) == ("3", "3", "2.0")
