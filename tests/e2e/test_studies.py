"""Studies with real training: killed again and again, and by two workers; the shrunk study of every paper's table."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.test_main import CONFIG, ROOT, TINY, command, environment


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "dml_jax", "study", *arguments],
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def kill(process: "subprocess.Popen[str]") -> None:
    """Kills a command and the trials that it has started."""
    tasks = Path(f"/proc/{process.pid}/task")
    children = [int(pid) for file in tasks.glob("*/children") for pid in file.read_text().split()]
    for pid in (process.pid, *children):
        os.kill(pid, signal.SIGKILL)
    process.communicate()


def arguments(root: Path, steps: int) -> list[str]:
    """A comparison of two small configurations with two seeds."""
    overrides = {"train.steps": steps, "train.checkpoint_every": 20, "evaluation.controls": "false"}
    options = [f"--config.{key}={value}" for key, value in overrides.items()]
    configs = [CONFIG.removeprefix("--config="), "configs/digits_baseline.py"]
    return ["--compare", *configs, f"--root={root}", "--seeds=0,1", *options, *TINY[:3]]


def rows(root: Path) -> list[str]:
    """The table without the columns that depend on the clock."""
    head, *lines = (root / "report.csv").read_text().splitlines()
    kept = [i for i, name in enumerate(head.split(",")) if not name.startswith(("time", "images/s", "memory"))]
    return [",".join(line.split(",")[i] for i in kept) for line in (head, *lines)]


@pytest.mark.slow
def test_a_killed_study_ends_with_the_same_table(tmp_path: Path) -> None:
    """Ten times at random moments; every step of every trial is logged once."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = command("study", *arguments(whole, 300), module="dml_jax")
    assert done.returncode == 0, done.stdout + done.stderr
    moments = random.Random(0)
    for _ in range(10):
        process = start(*arguments(killed, 300))
        time.sleep(moments.uniform(1, 25))
        if process.poll() is None:
            kill(process)
    done = command("study", *arguments(killed, 300), module="dml_jax")
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows(killed) == rows(whole)
    for run in whole.glob("*-seed*"):
        logs = [(root / run.name / "metrics.jsonl").read_text() for root in (whole, killed)]
        assert logs[0] == logs[1]


@pytest.mark.slow
def test_two_workers_and_a_dead_one(tmp_path: Path) -> None:
    """Two workers share four trials; one is killed; no trial is lost or trained twice."""
    root = tmp_path / "root"
    workers = [start(*arguments(root, 200), "--worker") for _ in range(2)]
    while not any(root.glob("*/checkpoints/latest/*")):
        time.sleep(0.2)
    kill(workers[0])
    printed = workers[1].communicate(timeout=600)[0]
    assert workers[1].returncode == 0, printed
    done = command("study", *arguments(root, 200), module="dml_jax")
    assert done.returncode == 0, done.stdout + done.stderr
    for run in root.glob("*-seed*"):
        steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert steps == list(range(20, 201, 20))
    assert len(list(root.glob("*-seed*"))) == 4


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted((ROOT / "configs" / "studies").glob("*.py")), ids=lambda file: file.stem)
def test_every_study_in_small(file: Path, tmp_path: Path) -> None:
    """`--smoke` trains two trials and writes the table with its figures."""
    jobs = min(2, len(os.sched_getaffinity(0)))
    done = command(
        "study", f"--study={file}", "--smoke", f"--root={tmp_path / 'root'}", f"--jobs={jobs}", module="dml_jax"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "root" / "report.html").read_text().count("<img") >= 2
