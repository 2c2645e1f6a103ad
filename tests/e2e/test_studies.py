"""Studies with real training: killed again and again, and on a Ray cluster; the shrunk study of every paper's table."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.inference import test_ray_engine
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
def test_a_study_on_ray(tmp_path: Path) -> None:
    """On two machines with a core each, one of whose workers is killed; the table is that of one machine."""
    pytest.importorskip("ray")
    whole, killed, folder = tmp_path / "whole", tmp_path / "killed", tmp_path / "cluster"
    done = command("study", *arguments(whole, 200), module="dml_jax")
    assert done.returncode == 0, done.stdout + done.stderr
    folder.mkdir()
    with test_ray_engine.cluster(folder, str(ROOT)) as address:
        process = start(*arguments(killed, 200), "--engine=ray", f"--address={address}")
        while not any(killed.glob("*/checkpoints/latest/*")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.2)
        os.kill(test_ray_engine.workers(folder, b"ray::_run")[0], signal.SIGKILL)
        printed = process.communicate(timeout=900)[0]
    assert process.returncode == 0, printed
    assert printed.count("its process was killed or lost (1 of 3)") == 1
    assert rows(killed) == rows(whole)
    for run in whole.glob("*-seed*"):
        logs = [(root / run.name / "metrics.jsonl").read_text() for root in (whole, killed)]
        assert logs[0] == logs[1]


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
