"""The runner with a short script in place of training: failures, lost processes, signals."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dml_jax.commands import study as command
from dml_jax.config import files as config_files
from dml_jax.errors import ConfigError
from dml_jax.lab import outcomes, plan, runner, tables
from dml_jax.lab.definition import Row, Study
from dml_jax.lab.plan import Settings, Trial
from tests.lab import script
from tests.lab.script import ALPHA, DIGITS, prepared, rows

ROOT = Path(__file__).parents[2]
REAL_COMMAND = runner.command


def use(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> None:
    """Has trials wait for some seconds in place of training."""
    monkeypatch.setattr(runner, "command", lambda root, trial: script.command(trial, seconds))


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(runner, "POLL", 0.02)
    use(monkeypatch)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials have no process of their own."""
    monkeypatch.setattr(runner.Slot, "start", lambda slot, *given: script.finished(*given))


def starts(root: Path) -> list[str]:
    return sorted((root / "starts.txt").read_text().split())


def run(root: Path, trials: list[Trial], jobs: int = 1) -> None:
    runner.run_all(root, trials, jobs)


def test_each_trial_runs_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In processes; the last one diverges."""
    trials = prepared(tmp_path, 1, 2, 13)
    cores = os.sched_getaffinity(0)
    jobs = min(2, len(cores))
    run(tmp_path, trials, jobs)
    assert starts(tmp_path) == sorted(trial.name for trial in trials)
    assert [not outcomes.why_unfinished(trial) for trial in trials] == [True, True, False]
    printed = capsys.readouterr().out
    assert printed.count("finished (") == 2
    assert f"{trials[2].name}: failed: training diverged at step 3" in printed
    run(tmp_path, trials[:2], jobs)
    assert len(starts(tmp_path)) == 3
    assert os.sched_getaffinity(0) == cores


def test_a_trial_that_diverges_is_noted(tmp_path: Path, in_process: None, capsys: pytest.CaptureFixture[str]) -> None:
    """The others go on; what needs it, at any depth, is not run; the next command tries it again."""
    trials = prepared(tmp_path, 12, 13, 14)
    failed = trials[1].name
    second = replace(trials[2], name="second", directory=tmp_path / "second", needs=(failed,))
    trials += [second, replace(second, name="third", directory=tmp_path / "third", needs=("second",))]
    run(tmp_path, trials)
    assert [not outcomes.why_unfinished(trial) for trial in trials] == [True, False, True, False, False]
    assert f"{failed}: failed: training diverged at step 3" in capsys.readouterr().out
    assert starts(tmp_path).count(failed) == 1
    run(tmp_path, trials)
    assert starts(tmp_path).count(failed) == 2


def test_a_process_ends_with_its_command(tmp_path: Path) -> None:
    """Also if the command is killed, so that no two train in one directory."""
    prepared(tmp_path, 1)
    code = f"from tests.lab import script; script.work({str(tmp_path)!r})"
    killed = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    while not (tmp_path / "starts.txt").exists():
        time.sleep(0.01)
    tasks = Path(f"/proc/{killed.pid}/task")
    (child,) = (Path("/proc", pid) for file in tasks.glob("*/children") for pid in file.read_text().split())
    killed.kill()
    killed.wait()
    deadline = time.monotonic() + 60
    while child.exists() and "State:\tZ" not in (child / "status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_signal_stops_all_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, 600.0)
    trials = prepared(tmp_path, 1, 2, 3)

    def stop_when_started() -> None:
        while not (tmp_path / "starts.txt").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_when_started).start()
    with pytest.raises(SystemExit, match="143"):
        runner.run_all(tmp_path, trials, 1)
    assert not outcomes.finished(trials)
    assert not any(runner.failure(tmp_path, trial.name) for trial in trials)


def test_an_ensemble_waits_for_its_members(
    tmp_path: Path, in_process: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    continued, both = (Row("continued", DIGITS, {"init_from": "@alpha=1"}), Row("both", members=("alpha=1", "alpha=2")))
    study = Study("A study", rows=(both, *rows(1, 2), continued))
    trials = plan.trials(study, Settings(tmp_path))
    facts = plan.create_study("name", study, Settings(tmp_path), trials)
    started: list[str] = []

    def made(root: Path, trial: Trial) -> list[str]:
        started.append(trial.name)
        return script.command(trial)

    monkeypatch.setattr(runner, "command", made)
    runner.print_commands(tmp_path, trials)
    assert "  # after alpha-1-seed0, alpha-2-seed0" in capsys.readouterr().out
    run(tmp_path, trials)
    for name in ("alpha-1-seed0", "alpha-2-seed0"):
        (tmp_path / name / "results.json").unlink()
    assert outcomes.finished(trials) == {"continued-seed0"}
    summary = tables.summarise_study(tmp_path, facts)
    assert "its members are not finished" in [run.problem for run in summary.runs]
    started.clear()
    run(tmp_path, trials)
    assert started == ["alpha-1-seed0", "alpha-2-seed0"]


def test_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [sorted(slot.cores) for slot in runner.slots(3)] == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert runner.slots(1)[0].environment == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert [slot.environment for slot in runner.slots(2)] == [
        {"CUDA_VISIBLE_DEVICES": "4,6"}, {"CUDA_VISIBLE_DEVICES": "5,7"},
    ]  # fmt: skip
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert {tuple(slot.environment.values()) for slot in runner.slots(2)} == {("0", "0.45")}
    for jobs in (0, 9):
        with pytest.raises(ConfigError, match=f"--jobs={jobs}: must be one of 1 to 8"):
            runner.slots(jobs)


def test_the_command(tmp_path: Path, in_process: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Trains, prints the table, lists; a failed trial makes the exit code 2."""
    file = tmp_path / "mine.py"
    text = "from dml_jax.lab.definition import *\ndef get_study():\n    return Study('T', rows=({},))\n"
    row = f"Row('alpha={{0}}', {DIGITS!r}, {{{{{ALPHA!r}: {{0}}}}}})"
    file.write_text(text.format(", ".join(row.format(alpha) for alpha in (11, 12))))
    root = tmp_path / "root"
    arguments = [f"--study={file}", f"--root={root}", "--seeds=0,1", "--config.data.threads=3"]
    command.execute([*arguments, "--list"])
    assert len(re.findall("^python -m ", capsys.readouterr().out, re.MULTILINE)) == 4
    command.execute(arguments)
    printed = capsys.readouterr().out
    assert re.search(r"alpha=12 │ +2 │ +12\.0 ± 0\.0", printed), printed
    assert {path.suffix for path in root.glob("report.*")} == {".md", ".tex", ".csv"}
    command.execute([*arguments, "--list"])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "4 trials, 4 finished; then: dml-jax study --runs" in printed.err
    file.write_text(text.format(", ".join(row.format(alpha) for alpha in (12, 13))))
    with pytest.raises(Exception, match=r"2 of 4 trials failed, e\.g\. alpha-13-seed0"):
        command.execute(arguments)
    printed = " ".join(capsys.readouterr().out.split())
    assert "alpha=13: –, training diverged" in printed


def test_comparison_without_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line of the list is a command that trains in the directory of its trial."""
    root = tmp_path / "one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "command", REAL_COMMAND)
        command.execute(["--compare", DIGITS, "--seeds=0,3", f"--root={root}", "--list"])
    printed = capsys.readouterr()
    names = ["digits_baseline-proxy_anchor-seed0", "digits_baseline-proxy_anchor-seed3"]
    expected = "python -m dml_jax.main --config={0}/trials/{1}.json --workdir={0}/{1} --quiet"
    assert [shlex.split(line) for line in printed.out.splitlines()] == [
        [*expected.format(root, name).split(), "--trust_code"] for name in names
    ]
    assert config_files.load_config(str(root / "trials" / f"{names[1]}.json"), {})["seed"] == 3
    assert f"2 trials, 0 finished; then: dml-jax study --runs {root}" in printed.err


def test_the_process_of_an_ensemble(tmp_path: Path) -> None:
    ensemble = Trial("e", "e", 0, Path("r/e"), None, members=(Path("r/b"), Path("r/c")), weights=(1.0, 2.0))
    expected = "dml_jax evaluate --model=r/b,r/c --export=r/e --weights=1.0,2.0"
    assert REAL_COMMAND(tmp_path, ensemble) == expected.split()
