"""A study with real training, killed again and again."""

import csv
import random
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
    """Kills a command, which ends the trials that it has started."""
    process.kill()
    process.communicate()


def arguments(root: Path, steps: int) -> list[str]:
    """A comparison of two small configurations with two seeds."""
    overrides = {"train.steps": steps, "train.checkpoint_every": 20, "evaluation.controls": "false"}
    options = [f"--config.{key}={value}" for key, value in overrides.items()]
    configs = [CONFIG.removeprefix("--config="), "configs/digits_baseline.py"]
    return ["--compare", *configs, f"--root={root}", "--seeds=0,1", *options, *TINY[:3]]


def rows(root: Path) -> list[dict[str, str]]:
    """The table without the columns that depend on the clock."""
    clock = ("directory", "seconds", "images_per_second", "peak_memory")
    with (root / "report.csv").open(encoding="utf-8") as file:
        return [{key: value for key, value in row.items() if key not in clock} for row in csv.DictReader(file)]


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
