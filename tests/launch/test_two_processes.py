"""The launch script of a TPU pod, with a stand-in for gcloud that starts two processes on this
machine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dml_jax import files
from tests.e2e.test_process_group import free_port
from tests.test_main import ROOT, TINY, environment

pytestmark = pytest.mark.slow
CONFIG = "configs/digits_baseline.py:proxy_anchor"
SHORT = (*TINY, "--config.evaluation.controls=false", "--config.train.evaluate_every=0")

# Runs "$@" as two tasks with the variables that srun sets; its code is the largest, as that of
# srun.
TWO_TASKS = """
export SLURM_JOB_ID=77 SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_LOCALID=0
pids=()
for task in 0 1; do
  (export SLURM_PROCID=$task; {start}) &
  pids+=($!); echo $! > "$STUB/pid-$task"
done
code=0
for pid in "${{pids[@]}}"; do
  one=0; wait "$pid" || one=$?
  [ "$one" -gt "$code" ] && code=$one
done
exit "$code"
"""  # noqa: E501
GCLOUD = "for last; do :; done; command=${last#--command=}\n" + TWO_TASKS.format(
    start='export HOME=$STUB/host-$task; exec bash -c "$command"'
)


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def checkout(path: Path) -> None:
    """The project with a .venv whose Python is that of the tests."""
    executable(path / ".venv/bin/python", f'exec {sys.executable} "$@"')
    for name in ("configs", "dml_jax", "launch"):
        (path / name).symlink_to(ROOT / name)


def variables(tmp_path: Path) -> dict[str, str]:
    executable(tmp_path / "bin/gcloud", GCLOUD)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    port = {
        "JAX_COORDINATOR_PORT": str(free_port()),
        "XDG_CACHE_HOME": str(files.cache_dir().parent),
    }
    return environment() | port | {"PATH": path, "STUB": str(tmp_path)}


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 400
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    """Kills what a failed test has left."""
    yield
    for file in tmp_path.rglob("pid*"):
        command = Path("/proc", file.read_text().strip(), "cmdline")
        if command.exists() and str(tmp_path) in command.read_text():
            os.kill(int(file.read_text()), signal.SIGKILL)


def steps(run: Path) -> list[int]:
    lines = (
        (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
    )
    return [json.loads(line)["step"] for line in lines]


def test_tpu_pod(tmp_path: Path) -> None:
    """The connection is lost, another one follows the run to its end; --stop ends it."""
    for task in range(2):
        checkout(tmp_path / f"host-{task}" / "dml_jax")
    run = tmp_path / "run"
    script = ["bash", str(ROOT / "launch/tpu_pod.sh")]
    options = {"env": variables(tmp_path) | {"TPU": "pod", "ZONE": "zone"}, "text": True}
    start = [
        *script,
        CONFIG,
        *SHORT,
        f"--workdir={run}",
        "--config.name=with 'quotes' and $HOME",
        "--config.train.log_every=1",
    ]
    first = subprocess.Popen(
        [*start, "--config.train.steps=100000"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        **options,
    )
    wait_until(lambda: steps(run))
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = len(steps(run))
    wait_until(lambda: len(steps(run)) > before)
    second = subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    printed = ""
    while printed.count("following the run that is in progress") < 2 and (
        line := second.stdout.readline()
    ):
        printed += line
    stopped = subprocess.run([*script, "--stop"], capture_output=True, timeout=300, **options)
    rest, errors = second.communicate(timeout=300)
    printed += rest
    assert (second.returncode, stopped.returncode) == (143, 143), errors
    assert printed.count("following the run that is in progress") == 2
    assert "with 'quotes' and $HOME: baseline on digits, 100000 steps" in printed
    again = subprocess.run([*script, "--stop"], capture_output=True, timeout=300, **options)
    assert (again.returncode, again.stdout.count("nothing is running")) == (0, 2)
