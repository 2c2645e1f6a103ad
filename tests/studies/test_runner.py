"""The runner with a short script in place of training: claims, failures, takeover, signals."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dml_jax import cli
from dml_jax import study as command
from dml_jax.errors import ConfigError
from dml_jax.studies import outcomes, plan, runner
from dml_jax.studies.definition import Row, Study
from dml_jax.studies.plan import Settings, Trial

ROOT = Path(__file__).parents[2]
REAL_COMMAND = runner.command
DIGITS = str(ROOT / "configs" / "digits_hist.py")
# Notes that it has started, waits, and leaves the results of a run; its arguments: work directory, seconds, tau.
TRAIN = """
import json, pathlib, sys, time
directory, seconds, tau = pathlib.Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
with open(directory.parent / "starts.txt", "a") as starts:
    starts.write(directory.name + "\\n")
directory.mkdir(exist_ok=True)
time.sleep(seconds)
if tau == 13:
    sys.exit("error: training diverged at step 3: loss=nan; lower the learning rates and start again")
results = {"recall@1": tau / 100, "protocol": "clean", "length": {"steps": 1200, "epochs": 0}}
(directory / "results.json").write_text(json.dumps(results))
"""


def fake(seconds: float) -> Callable[[Path, Trial], list[str]]:
    def made(root: Path, trial: Trial) -> list[str]:
        tau = str(trial.config["method"]["tau"])
        return [sys.executable, "-S", "-c", TRAIN, str(trial.directory), str(seconds), tau]

    return made


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(runner, "POLL", 0.02)
    monkeypatch.setattr(runner, "command", fake(0.0))


def rows(*taus: int) -> tuple[Row, ...]:
    return tuple(Row(f"tau={tau}", DIGITS, {"method.tau": tau}) for tau in taus)


def prepared(root: Path, *taus: int) -> list[Trial]:
    study = Study("A study", rows=rows(*taus))
    plan.write_facts(root, "name", study, Settings(root), {"trials": []})
    return plan.trials(study, Settings(root))


def starts(root: Path) -> list[str]:
    return sorted((root / "starts.txt").read_text().split())


def run(root: Path, trials: list[Trial], jobs: int = 1, *, wait: bool = True) -> list[str]:
    lines: list[str] = []
    assert runner.run_all(root, trials, runner.slots(jobs), lines.append, wait=wait) == 0
    return lines


def work(root: str) -> None:
    """What another worker does, in a process of its own."""
    runner.command = fake(1.0)
    run(Path(root), prepared(Path(root), 1))


def test_each_trial_runs_once(tmp_path: Path) -> None:
    trials = prepared(tmp_path, 1, 2, 3, 4, 5)
    cores = os.sched_getaffinity(0)
    jobs = min(2, len(cores))
    lines = run(tmp_path, trials, jobs)
    assert starts(tmp_path) == sorted(trial.name for trial in trials)
    assert all(outcomes.is_finished(trial) for trial in trials)
    assert sum("finished, Recall@1 0.0" in line for line in lines) == 5
    run(tmp_path, trials, jobs)
    assert len(starts(tmp_path)) == 5
    assert os.sched_getaffinity(0) == cores


def test_a_longer_trial_is_not_finished(tmp_path: Path) -> None:
    trial = prepared(tmp_path, 1)[0]
    run(tmp_path, [trial])
    longer = Trial(**{**vars(trial), "config": trial.config | {"train": trial.config["train"] | {"steps": 2400}}})
    assert outcomes.is_finished(trial)
    assert not outcomes.is_finished(longer)


def test_a_trial_that_diverges_is_noted(tmp_path: Path) -> None:
    """The others go on; what needs it is not run; the next command tries it again."""
    trials = prepared(tmp_path, 12, 13, 14)
    needing = Trial(**{**vars(trials[2]), "name": "needing", "directory": tmp_path / "n", "needs": (trials[1].name,)})
    lines = run(tmp_path, [*trials, needing])
    assert [outcomes.is_finished(trial) for trial in [*trials, needing]] == [True, False, True, False]
    assert "tau-13-seed0: failed: training diverged at step 3" in " ".join(lines)
    assert runner.problem(tmp_path, trials[1]).startswith("training diverged")
    assert runner.problem(tmp_path, needing) == "needs tau-13-seed0, which failed"
    run(tmp_path, trials)
    assert starts(tmp_path).count("tau-13-seed0") == 1
    runner.forget_problems(tmp_path, trials)
    run(tmp_path, trials)
    assert starts(tmp_path).count("tau-13-seed0") == 2


def test_trials_of_other_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claimed trial is left alone; a worker ends, a command waits until it is free and takes it over."""
    trials = prepared(tmp_path, 1, 2)
    lock = runner.claim(tmp_path, trials[0].name)
    assert lock is not None
    assert runner.claim(tmp_path, trials[0].name) is None
    run(tmp_path, trials, wait=False)
    assert [outcomes.is_finished(trial) for trial in trials] == [False, True]
    timer = threading.Timer(0.3, lock.close)
    timer.start()
    run(tmp_path, trials)
    assert starts(tmp_path) == sorted(trial.name for trial in trials)


def test_a_dead_workers_trial_waits_for_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a trial holds the claim after its worker was killed, so that no two train in one directory."""
    trials = prepared(tmp_path, 1)
    script = f"from tests.studies import test_runner; test_runner.work({str(tmp_path)!r})"
    worker = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    while not (tmp_path / "starts.txt").exists():
        time.sleep(0.01)
    worker.kill()
    worker.wait()
    assert runner.claim(tmp_path, trials[0].name) is None
    run(tmp_path, trials)
    assert starts(tmp_path) == [trials[0].name]


def test_a_signal_stops_all_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "command", fake(60.0))
    trials = prepared(tmp_path, 1, 2, 3)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    began = time.monotonic()
    assert runner.run_all(tmp_path, trials, runner.slots(1), lambda line: None, wait=True) == 143
    assert time.monotonic() - began < 30
    assert not any(outcomes.is_finished(trial) or runner.problem(tmp_path, trial) for trial in trials)
    lock = runner.claim(tmp_path, trials[0].name)
    assert lock is not None
    lock.close()


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


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trains, prints the table, lists; a failed trial makes the exit code 2."""
    file = tmp_path / "mine.py"
    text = "from dml_jax.studies.definition import *\ndef get_study():\n    return Study('T', rows=({},))\n"
    row = f"Row('tau={{0}}', {DIGITS!r}, {{{{'method.tau': {{0}}}}}})"
    file.write_text(text.format(", ".join(row.format(tau) for tau in (11, 12))))
    root = tmp_path / "root"
    arguments = [f"--study={file}", f"--root={root}", "--seeds=0,1", "--config.data.threads=3"]
    command.execute([*arguments, "--list"])
    listed = capsys.readouterr().out
    assert listed.count("to be trained") == 4
    assert f"--wrap='python -m dml_jax.study --study={file} --root={root} --seeds=0,1" in listed
    assert not root.exists()
    command.execute(arguments)
    printed = capsys.readouterr().out
    assert re.search(r"tau=12 │ +2 │ +12\.0 ± 0\.0", printed), printed
    assert {path.name for path in root.glob("report.*")} == {"report.md", "report.tex", "report.csv", "report.html"}
    command.execute([*arguments, "--list"])
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="belongs to the study mine"):
        command.execute([f"--study={ROOT / 'configs' / 'studies' / 'hist_layers.py'}", "--smoke", f"--root={root}"])
    file.write_text(text.format(", ".join(row.format(tau) for tau in (12, 13))))
    with pytest.raises(Exception, match=r"2 of 4 trials failed, e\.g\. tau-13-seed0"):
        command.execute(arguments)
    assert "without results: tau-13-seed1: training diverged" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--study: give a study file, or --compare"),
        (["--compare", DIGITS], "--compare: give two or more different"),
        (["--study=no.py"], r"--study=no\.py: there is no such file"),
        (["--study=configs/studies/hist_layers.py", "--seeds=a"], "--seeds=a: must be whole numbers"),
        (["--study=configs/studies/hist_layers.py", "--seeds=1,1"], "--seeds=1,1: give different seeds"),
        (["--study=configs/studies/hist_layers.py", "--protocol=x"], "--protocol=x: must be clean or paper"),
        (["--study=configs/studies/hist_layers.py", "--trials=3"], "--trials=3: hist_layers is not a search"),
        (["--study=configs/studies/hist_layers.py", "--config.method.tua=3"], r"method\.tua: there is no such key"),
        (["--study=configs/studies/hist_layers.py"], r"data\.path=data/cars: does not exist"),
    ],
)
def test_invalid_command_lines(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        command.execute(arguments)
    assert not Path("runs/studies/hist_layers").exists()


def test_comparison_without_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = str(ROOT / "configs" / "omniglot_hist.py")
    command.execute(["--compare", DIGITS, other, f"--root={tmp_path / 'r'}", "--smoke", "--list"])
    assert re.findall(r"^(\S+)", capsys.readouterr().out, re.MULTILINE)[:2] == [
        "digits_hist-seed0",
        "omniglot_hist-seed0",
    ]


def test_the_processes_of_trials(tmp_path: Path) -> None:
    """A run of the main command with a stored configuration; an ensemble."""
    plain = prepared(tmp_path, 3)[0]
    arguments = REAL_COMMAND(tmp_path, plain)
    config = tmp_path / "trials" / "tau-3-seed0.json"
    assert arguments[1:] == ["-m", "dml_jax.main", f"--config={config}", f"--workdir={plain.directory}", "--quiet"]
    assert cli.load_config(str(config), {"seed": "4"})["method"]["tau"] == 3.0
    assert cli.load_config(str(config), {"seed": "4"})["seed"] == 4
    ensemble = Trial("e", "e", 0, Path("r/e"), {}, members=(Path("r/b"), Path("r/c")), weights=(1.0, 2.0))
    assert REAL_COMMAND(tmp_path, ensemble)[2:] == [
        "dml_jax.ensemble",
        "r/b",
        "r/c",
        "--output=r/e",
        "--weights=1.0,2.0",
    ]
