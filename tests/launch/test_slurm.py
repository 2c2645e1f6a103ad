"""The Slurm script on a real Slurm with two nodes on this machine."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.launch.checkouts import CONFIG, SHORT, checkout, steps
from tests.processes import environment, free_port, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("slurmctld") or os.geteuid() != 0, reason="needs slurm-wlm and root"),
]
# Two nodes on this machine, without munge. The first, in alphabetical order, has the name of the
# machine, which must resolve.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/pid-controller
SlurmdPidFile={place}/pid-%n
SlurmctldLogFile={place}/controller.log
SlurmdLogFile={place}/%n.log
JobRequeue=1
MinJobAge=3600
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName={host}-2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=FORCE:4
"""
HOST = socket.gethostname().partition(".")[0]
SIZE = ("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=0", "--cpus-per-task=1", "--mem=0")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Starts the daemons; yields a function that runs a command of Slurm in a checkout and returns what it prints."""
    project, place = tmp_path / "project", tmp_path / "slurm"
    checkout(project)
    (place / "state").mkdir(parents=True)
    file, ports = place / "slurm.conf", [free_port() for _ in range(3)]
    file.write_text(CONFIGURATION.format(host=HOST, place=place, ports=ports))
    variables = environment(SLURM_CONF=str(file))
    nodes = [["slurmd", "-D", "-N", node] for node in (HOST, f"{HOST}-2")]
    running = [
        subprocess.Popen(daemon, env=variables, stderr=subprocess.DEVNULL)
        for daemon in (["slurmctld", "-D", "-c"], *nodes)
    ]

    def run(*command: str) -> str:
        return subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True, check=True).stdout

    try:
        wait_until(lambda: run("bash", "-c", "sinfo -h -o '%D %t' || true").strip() == "2 idle")
        yield run
        run("scancel", "--user=root")
        wait_until(lambda: not run("squeue", "-h"))
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(60)


def submit(slurm: Callable[..., str], run: Path, *options: str) -> str:
    """The number of a new job."""
    script = ("launch/slurm.sbatch", CONFIG, *SHORT, f"--workdir={run}", *options)
    return slurm("sbatch", "--parsable", *SIZE, f"--output={run}.out", *script).strip()


def state(slurm: Callable[..., str], job: str) -> tuple[str, str, str]:
    """State, exit code and number of restarts of a job."""
    words = slurm("scontrol", "show", "--oneliner", "job", job).split()
    values = dict(word.split("=", 1) for word in words if "=" in word)
    return values["JobState"], values["ExitCode"], values["Restarts"]


def task(run: Path, index: int) -> int:
    """The process of a task of the job with this work directory."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            variables = (process / "environ").read_bytes().split(b"\0")
            trains = arguments[0] != b"srun" and {b"dml_jax.main", f"--workdir={run}".encode()} <= {*arguments}
            if trains and f"SLURM_PROCID={index}".encode() in variables:
                return int(process.name)
    raise AssertionError(f"{run}: no task {index}")


def test_only_a_lost_task_is_requeued(slurm: Callable[..., str], tmp_path: Path) -> None:
    """Not invalid input and not a cancelled job, which ends with a checkpoint; the other script is accepted."""
    slurm("sbatch", "--test-only", *SIZE, "launch/slurm_ray.sbatch", "any")
    wrong = submit(slurm, tmp_path / "wrong", "--config.train.stepz=3")
    wait_until(lambda: state(slurm, wrong)[0] == "FAILED")
    assert state(slurm, wrong)[1:] == ("2:0", "0")
    run = tmp_path / "run"
    job = submit(slurm, run, "--config.train.steps=100000", "--config.train.checkpoint_every=50")
    wait_until(lambda: len(steps(run)) > 20)  # after a checkpoint
    os.kill(task(run, 1), signal.SIGKILL)
    wait_until(lambda: state(slurm, job)[2] == "1")
    printed = (tmp_path / "run.out").read_text()
    assert "error: process 1 was killed or its machine failed; start all" in printed
    assert "Exited with exit code 75" in printed
    slurm("scontrol", "update", f"jobid={job}", "StartTime=now+5")  # not in two minutes
    wait_until(lambda: "resuming from step" in (tmp_path / "run.out").read_text())
    before = len(steps(run))
    wait_until(lambda: len(steps(run)) > before)
    slurm("scancel", job)
    wait_until(lambda: not slurm("squeue", "-h"))
    assert state(slurm, job)[::2] == ("CANCELLED", "1")
    assert "stopped by SIGTERM" in (tmp_path / "run.out").read_text()
    assert any((run / "checkpoints/latest").iterdir())
