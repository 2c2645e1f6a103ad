"""Searches with a short script in place of training, whose validation result is a known function of
the parameters."""

import csv
import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dml_jax.commands import study as command
from dml_jax.errors import ConfigError
from dml_jax.lab import plan, runner, search
from dml_jax.lab.definition import Search, Uniform
from dml_jax.lab.plan import Settings, Trial
from tests.lab import script
from tests.lab.test_runner import use

optuna = pytest.importorskip("optuna")

ROOT = Path(__file__).parents[2]
DIGITS = str(ROOT / "configs" / "digits_baseline.py:proxy_anchor")
ALPHA = "method.proxy_anchor.alpha"
SPACE = {ALPHA: Uniform(1.0, 40.0), "method.embedding_dim": Uniform(4, 8), "data.flip": (0.0, 0.5)}
FILE = f"""
from dml_jax.lab.definition import *
def get_study():
    space = {{{ALPHA!r}: Uniform(1.0, 40.0), "method.embedding_dim": Uniform(4, 8), "data.flip": (0.0, 0.5)}}
    return Study("A search", search=Search({DIGITS!r}, space, trials=6))
"""  # noqa: E501


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(runner.Slot, "start", lambda slot, *given: script.finished(*given))
    use(monkeypatch)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return str(path)


def trials(root: Path) -> list[Any]:
    return list(search.open_storage(f"sqlite:///{root / 'search.db'}", "mine").trials)


def test_a_search(tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Compares trials on validation classes only; reports the best with its result on the test
    classes."""
    root = tmp_path / "root"
    command.execute([f"--study={file}", f"--root={root}"])
    printed = capsys.readouterr().out
    made = trials(root)
    assert len(made) == 6
    finished = [trial for trial in made if trial.value is not None]
    for trial in finished:
        assert trial.value == pytest.approx(1 - abs(trial.params[ALPHA] - 20) / 100)
        assert (
            f"trial-{trial.number:04d}: recall@1 {trial.value:.4f} on the validation classes"
            in printed
        )
    best = max(finished, key=lambda trial: trial.value)
    assert f"trial-{best.number:04d} on the test classes: R@1 {best.params[ALPHA]:.1f}" in printed
    assert (
        f"--config={root}/trial-{best.number:04d}/config.json --config.data.validation_share=0"
        in printed
    )
    assert "20% of the training classes, held out" in printed
    assert all((trial.state.name == "FAIL") == (trial.params[ALPHA] > 38) for trial in made)
    with (root / "report.csv").open() as lines:
        values = [float(row[ALPHA]) for row in csv.DictReader(lines)]
    assert values == [trial.params[ALPHA] for trial in made]
    capsys.readouterr()
    command.execute(["--runs", str(root)])
    assert f"trial-{best.number:04d} on the test classes" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"--metric: .* holds a search; leave it out"):
        command.execute(["--runs", str(root), "--metric=map@r"])
    command.execute([f"--study={file}", f"--root={root}", "--trials=7"])
    assert len(trials(root)) == 7
    assert sorted((root / "starts.txt").read_text().split()) == [f"trial-{i:04d}" for i in range(7)]


def test_an_interrupted_trial_is_continued(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same values in the same directory; each trial counts once."""
    root = tmp_path / "root"
    arguments = [f"--study={file}", f"--root={root}"]
    command.execute([*arguments, "--trials=1"])

    def interrupted(root: Path, trial: Trial, slot: runner.Slot, stop: threading.Event) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        stop.wait()
        return False

    with monkeypatch.context() as patch:
        patch.setattr(runner, "execute", interrupted)
        with pytest.raises(SystemExit):
            command.execute([*arguments, "--trials=3"])
    values = [trial.params for trial in trials(root)]
    assert len(values) == 2
    command.execute([*arguments, "--trials=3"])
    assert (root / "starts.txt").read_text().split() == [f"trial-{i:04d}" for i in range(3)]
    assert [trial.params for trial in trials(root)][:2] == values


def test_several_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No trial runs twice, and none is lost; commands with directories of their own share a
    storage."""
    use(monkeypatch, 0.02)
    monkeypatch.setattr(runner, "slots", lambda jobs: [runner.Slot(frozenset(), {})] * jobs)
    storage = f"sqlite:///{tmp_path / 'search.db'}"
    for name, trials in (("a", 4), ("b", 6)):
        settings, wanted = Settings(tmp_path / name), Search(DIGITS, SPACE, trials=trials)
        plan.begin("n", plan.Study("T", search=wanted), settings)
        search.run("n", wanted, settings, "recall@1", 2, storage)
    starts = [(tmp_path / name / "starts.txt").read_text().split() for name in "ab"]
    assert sorted(starts[0] + starts[1]) == [f"trial-{i:04d}" for i in range(6)]
    assert len(starts[0]) == 4
    states = [trial.state.name for trial in search.open_storage(storage, "n").trials]
    assert len(states) == 6
    assert "RUNNING" not in states


def test_another_seed_or_protocol(
    tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Is another search; the table says that trials are compared on the test classes."""
    arguments = [f"--study={file}", f"--root={tmp_path / 'root'}"]
    command.execute([*arguments, "--seeds=3", "--trials=1", "--protocol=paper"])
    assert "compared on THE TEST CLASSES, as the authors did" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="this search with other options"):
        command.execute(arguments)


def test_equal_values_are_trained_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, path = tmp_path / "root", tmp_path / "mine.py"
    space = f'space = {{"{ALPHA}": (10.0, 20.0)}}'
    path.write_text(
        re.sub("space = .*", space, FILE).replace("trials=6", 'trials=6, sampler="random"')
    )
    command.execute([f"--study={path}", f"--root={root}"])
    values = {(trial.params[ALPHA], trial.value) for trial in trials(root)}
    assert values == {(10.0, 0.9), (20.0, 1.0)}
    assert len((root / "starts.txt").read_text().split()) == 2
    best = min(trial.number for trial in trials(root) if trial.value == 1.0)
    printed = capsys.readouterr().out
    assert "has the values and so the result of another trial" in printed
    assert f"trial-{best:04d} on the test classes: R@1 20.0" in printed


def test_impossible_values_fail_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = Search(DIGITS, {"data.batch_size": (63, 64)}, trials=6, sampler="random")
    settings = Settings(tmp_path)
    plan.begin("n", plan.Study("T", search=wanted), settings)
    storage = f"sqlite:///{tmp_path / 'search.db'}"
    search.run("n", wanted, settings, "recall@1", 1, storage)
    states = {
        t.params["data.batch_size"]: t.state.name for t in search.open_storage(storage, "n").trials
    }
    assert states == {63: "FAIL", 64: "COMPLETE"}
    message = "not possible: data.images_per_class=4: must divide data.batch_size=63"
    assert message in capsys.readouterr().out


def test_a_metric_that_no_evaluation_has(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE.replace("trials=6)", 'trials=1), metric="recall@3"'))
    with pytest.raises(ConfigError, match=r"metric=.recall@3. of the study: no evaluation"):
        command.execute([f"--study={path}", f"--root={tmp_path / 'root'}"])


def test_invalid_searches(tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for option, message in (
        ("--storage=nosuch://x", "--storage: cannot be used"),
        (f"--config.{ALPHA}=3", rf"--config\.{ALPHA}: the search sets it; leave it out"),
        (
            "--config.data.validation_share=0.3",
            r"--config\.data\.validation_share: the search sets it",
        ),
        ("--list", "--list: the trials of a search depend on each other"),
        ("--columns=R@1", "--columns: a search has one table"),
        ("--seeds=0,1", "--seeds=0,1: a search trains every trial with one seed"),
    ):
        with pytest.raises(ConfigError, match=message):
            command.execute([f"--study={file}", f"--root={tmp_path / 'root'}", option])
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match="a search needs optuna: pip install optuna"):
        command.execute([f"--study={file}", f"--root={tmp_path / 'root'}"])
