"""The launch script of a TPU pod, with a stand-in for gcloud that starts two processes on this machine."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dml_jax import files
from tests.launch.checkouts import CONFIG, SHORT, checkout, steps
from tests.processes import ROOT, environment, executable, free_port, wait_until

pytestmark = pytest.mark.slow
# Runs the command on two hosts with the variables that srun sets; its code is the largest.
GCLOUD = """
for last; do :; done; command=${last#--command=}
export SLURM_JOB_ID=77 SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_STEP_NUM_NODES=2
export SLURM_LOCALID=0
pids=()
for task in 0 1; do
  (export SLURM_PROCID=$task HOME=$STUB/host-$task; exec bash -c "$command") &
  pids+=($!); echo $! > "$STUB/pid-$task"
done
code=0
for pid in "${pids[@]}"; do
  one=0; wait "$pid" || one=$?
  [ "$one" -gt "$code" ] && code=$one
done
exit "$code"
"""


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Afterwards, nothing is left of a failed test."""
    executable(tmp_path / "bin/gcloud", GCLOUD)
    yield environment(
        PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        STUB=str(tmp_path),
        TPU="pod",
        ZONE="zone",
        JAX_COORDINATOR_PORT=str(free_port()),
        XDG_CACHE_HOME=str(files.cache_dir().parent),
    )
    for file in tmp_path.rglob("pid*"):
        command = Path("/proc", file.read_text().strip(), "cmdline")
        if command.exists() and str(tmp_path) in command.read_text():
            os.kill(int(file.read_text()), signal.SIGKILL)


def test_tpu_pod(variables: dict[str, str], tmp_path: Path) -> None:
    """The connection is lost, another one follows the run to its end; --stop ends it."""
    for task in range(2):
        checkout(tmp_path / f"host-{task}" / "dml_jax")
    run, script = tmp_path / "run", ["bash", str(ROOT / "launch/tpu_pod.sh")]
    name = "--config.name=with 'quotes' and $HOME"
    start = [*script, CONFIG, *SHORT, f"--workdir={run}", name, "--config.train.log_every=1"]
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    long = [*start, "--config.train.steps=100000"]
    first = subprocess.Popen(long, env=variables, stdout=null, start_new_session=True)
    wait_until(lambda: steps(run))
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = len(steps(run))
    wait_until(lambda: len(steps(run)) > before)
    second = subprocess.Popen(start, env=variables, stdout=pipe, stderr=pipe, text=True)
    printed, following = "", "following the run that is in progress"
    while printed.count(following) < 2 and (line := second.stdout.readline()):
        printed += line
    stop = [*script, "--stop"]
    stopped = subprocess.run(stop, env=variables, capture_output=True, timeout=300)
    rest, errors = second.communicate(timeout=300)
    printed += rest
    assert (second.returncode, stopped.returncode) == (143, 143), errors
    assert printed.count(following) == 2
    assert "with 'quotes' and $HOME: baseline on digits, 100000 steps" in printed
    again = subprocess.run(stop, env=variables, capture_output=True, text=True, timeout=300)
    assert (again.returncode, again.stdout.count("nothing is running")) == (0, 2)
