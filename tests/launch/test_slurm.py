"""The Slurm script on a real Slurm with two nodes on this machine."""

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.test_process_group import free_port
from tests.launch.test_two_processes import CONFIG, SHORT, checkout, steps, wait_until
from tests.test_main import ROOT, environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("slurmctld") or os.geteuid() != 0, reason="needs slurm-wlm and root"
    ),
]
# Without munge. The first node, in alphabetical order, has the name of the machine, as its name
# must resolve.
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldLogFile={place}/controller.log
SlurmdLogFile={place}/%n.log
SlurmctldPidFile={place}/pid-controller
SlurmdPidFile={place}/pid-%n
JobRequeue=1
KillWait=120
MinJobAge=3600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName={host}-2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4 PriorityTier=1 GraceTime=120
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""  # noqa: E501

# The controller of nodes that are switched off: it tells whether and where a job could run.
NODES = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
StateSaveLocation={place}/state
SlurmdSpoolDir={place}
SlurmctldPidFile={place}/pid
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendTime=60
NodeName=gpu[1-2] CPUs=96 RealMemory=500000 Gres=gpu:8 State=CLOUD
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
"""


@pytest.mark.parametrize("script", ["slurm.sbatch", "slurm_ray.sbatch"])
def test_a_scheduler_accepts_the_script(script: str, tmp_path: Path) -> None:
    """On two nodes with 96 cores and eight GPUs, which it fills; and not with a core more."""
    (tmp_path / "state").mkdir()
    host = socket.gethostname().partition(".")[0]
    conf = tmp_path / "slurm.conf"
    conf.write_text(NODES.format(host=host, place=tmp_path, port=free_port()))
    variables = os.environ | {"SLURM_CONF": str(conf)}

    def ask(*more: str) -> str:
        command = ["sbatch", "--test-only", *more, f"launch/{script}", "any"]
        return subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
        ).stderr

    controller = subprocess.Popen(
        ["slurmctld", "-D", "-c"], env=variables, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: "contact" not in ask() and "connect" not in ask())
        assert "using 192 processors on nodes gpu[1-2]" in ask()
        assert "configuration is not available" in ask("--cpus-per-task=97")
        assert "configuration is not available" in ask("--gpus-per-node=9")
    finally:
        controller.terminate()
        controller.wait(60)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Starts the daemons; yields a function that runs a command of Slurm in a checkout and returns
    what it prints."""
    host, place, project = (
        socket.gethostname().partition(".")[0],
        tmp_path / "slurm",
        tmp_path / "project",
    )
    (place / "state").mkdir(parents=True)
    conf = place / "slurm.conf"
    conf.write_text(CONF.format(host=host, place=place, ports=[free_port() for _ in range(3)]))
    checkout(project)
    variables = environment() | {"SLURM_CONF": str(conf)}
    daemons = [
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-N", host],
        ["slurmd", "-D", "-N", f"{host}-2"],
    ]
    running = [
        subprocess.Popen(daemon, env=variables, stderr=subprocess.DEVNULL) for daemon in daemons
    ]

    def run(*command: str) -> str:
        return subprocess.run(
            command, cwd=project, env=variables, capture_output=True, text=True, check=True
        ).stdout

    def ready() -> bool:
        done = subprocess.run(
            ["sinfo", "-h", "-o", "%D %t"], env=variables, capture_output=True, text=True
        )
        return done.stdout.strip() == "2 idle"

    try:
        wait_until(ready)
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
    size = (
        "--parsable",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gpus-per-node=0",
        "--cpus-per-task=1",
        "--mem=0",
        f"--output={run}.out",
    )
    job = slurm(
        "sbatch", *size, "launch/slurm.sbatch", CONFIG, *SHORT, f"--workdir={run}", *options
    )
    return job.strip()


def state(slurm: Callable[..., str], job: str) -> tuple[str, str, str]:
    """State, exit code and number of restarts of a job."""
    words = slurm("scontrol", "show", "--oneliner", "job", job).split()
    values = dict(word.split("=", 1) for word in words if "=" in word)
    return values["JobState"], values["ExitCode"], values["Restarts"]


def task(run: Path, index: int) -> int:
    """The process of a task of the job with this work directory."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        command = arguments[0] != b"srun" and {b"dml_jax.main", f"--workdir={run}".encode()} <= set(
            arguments
        )
        if command and f"SLURM_PROCID={index}".encode() in variables:
            return int(process.name)
    raise AssertionError(f"{run}: no task {index}")


def test_a_lost_task_is_requeued_and_invalid_input_is_not(
    slurm: Callable[..., str], tmp_path: Path
) -> None:
    """Each of the two tasks is killed once; the metrics are those of an uninterrupted run."""
    wrong = submit(slurm, tmp_path / "wrong", "--config.train.stepz=3")
    wait_until(lambda: state(slurm, wrong)[0] == "FAILED")
    assert state(slurm, wrong)[1:] == ("2:0", "0")
    options = (
        "--config.train.steps=300",
        "--config.train.checkpoint_every=50",
        "--config.train.log_every=10",
    )
    whole, killed = (
        submit(slurm, tmp_path / "whole", *options),
        submit(slurm, tmp_path / "killed", *options),
    )
    for index in (1, 0):
        before = len(steps(tmp_path / "killed"))
        wait_until(
            lambda before=before: len(steps(tmp_path / "killed")) > before + 6
        )  # after another checkpoint
        os.kill(task(tmp_path / "killed", index), signal.SIGKILL)
        restarts = str(2 - index)
        wait_until(lambda restarts=restarts: state(slurm, killed)[2] == restarts)
        printed = (tmp_path / "killed.out").read_text()
        assert (
            f"error: process {index} was killed or its machine failed; start all processes again"
            in printed
        )
        assert printed.count("Exited with exit code 75") == 2 - index
        slurm(
            "scontrol", "update", f"jobid={killed}", "StartTime=now+5"
        )  # it would wait for two minutes
    wait_until(lambda: {state(slurm, job)[0] for job in (whole, killed)} == {"COMPLETED"})
    assert (state(slurm, whole)[2], state(slurm, killed)[2]) == ("0", "2")
    assert (tmp_path / "killed.out").read_text().count("resuming from step") == 2
    lines = [
        (tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "killed")
    ]
    assert len(lines[0]) == 30
    assert [json.loads(line) for line in lines[0]] == [json.loads(line) for line in lines[1]]


def test_a_cancelled_job_is_not_requeued(slurm: Callable[..., str], tmp_path: Path) -> None:
    job = submit(
        slurm, tmp_path / "run", "--config.train.steps=100000", "--config.train.log_every=5"
    )
    wait_until(lambda: steps(tmp_path / "run"))
    slurm("scancel", job)
    wait_until(lambda: not slurm("squeue", "-h"))
    assert state(slurm, job)[::2] == ("CANCELLED", "0")
    assert "stopped by SIGTERM" in (tmp_path / "run.out").read_text()
    assert any((tmp_path / "run" / "checkpoints" / "latest").iterdir())


def test_the_time_limit_and_preemption_queue_a_job_again(
    slurm: Callable[..., str], tmp_path: Path
) -> None:
    """The signal comes five minutes before the limit of six; a job of higher priority takes the
    nodes."""
    run = tmp_path / "run"
    job = submit(slurm, run, "--config.train.steps=1000000", "--config.train.log_every=5")
    slurm("scontrol", "update", f"jobid={job}", "TimeLimit=6")
    wait_until(lambda: state(slurm, job)[2] == "1")
    assert (run.parent / "run.out").read_text().count("stopped by SIGTERM") == 1
    slurm("scontrol", "update", f"jobid={job}", "StartTime=now+5")
    before = len(steps(run))
    wait_until(lambda: len(steps(run)) > before)
    urgent = slurm(
        "sbatch",
        "--parsable",
        "--partition=urgent",
        "--nodes=2",
        "--output=/dev/null",
        "--wrap=true",
    ).strip()
    wait_until(lambda: state(slurm, job)[2] == "2")
    wait_until(lambda: state(slurm, urgent)[0] == "COMPLETED")
    printed = (run.parent / "run.out").read_text()
    assert printed.count("stopped by SIGTERM") == 2
    assert printed.count("resuming from step") == 1
