"""The Slurm script on a real Slurm with two nodes on this machine."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch.checkouts import CONFIG, SHORT, checkout, steps
from tests.processes import ROOT, environment, free_port, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("slurmctld") or os.geteuid() != 0, reason="needs slurm-wlm and root"
    ),
]
# Without munge.
BASE = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/pid-controller
SlurmdPidFile={place}/pid-%n
"""
# Two nodes on this machine. The first, in alphabetical order, has its name, which must resolve.
RUNNING = (
    BASE
    + """
SelectTypeParameters=CR_CPU
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SlurmctldLogFile={place}/controller.log
SlurmdLogFile={place}/%n.log
JobRequeue=1
MinJobAge=3600
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName={host}-2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=FORCE:4
"""
)
# The controller of nodes that are switched off: it tells whether and where a job could run.
OFF = (
    BASE
    + """
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendTime=60
NodeName=gpu[1-2] CPUs=96 RealMemory=500000 Gres=gpu:8 State=CLOUD
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
"""
)
CONTROLLER = ["slurmctld", "-D", "-c"]
HOST = socket.gethostname().partition(".")[0]


def configured(conf: str, place: Path) -> dict[str, str]:
    """The environment of Slurm's programs with a configuration."""
    (place / "state").mkdir(parents=True)
    file, ports = place / "slurm.conf", [free_port() for _ in range(3)]
    file.write_text(conf.format(host=HOST, place=place, ports=ports))
    return environment(SLURM_CONF=str(file))


@pytest.mark.parametrize("script", ["slurm.sbatch", "slurm_ray.sbatch"])
def test_a_scheduler_accepts_the_script(script: str, tmp_path: Path) -> None:
    """On two nodes with 96 cores and eight GPUs, which it fills; and not with a core more."""
    variables = configured(OFF, tmp_path)

    def ask(*more: str) -> str:
        command = ["sbatch", "--test-only", *more, f"launch/{script}", "any"]
        return subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
        ).stderr

    controller = subprocess.Popen(CONTROLLER, env=variables, stderr=subprocess.DEVNULL)
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
    project, variables = tmp_path / "project", configured(RUNNING, tmp_path / "slurm")
    checkout(project)
    nodes = [["slurmd", "-D", "-N", node] for node in (HOST, f"{HOST}-2")]
    running = [
        subprocess.Popen(daemon, env=variables, stderr=subprocess.DEVNULL)
        for daemon in (CONTROLLER, *nodes)
    ]

    def run(*command: str) -> str:
        return subprocess.run(
            command, cwd=project, env=variables, capture_output=True, text=True, check=True
        ).stdout

    def ready() -> bool:
        command = ["sinfo", "-h", "-o", "%D %t"]
        done = subprocess.run(command, env=variables, capture_output=True, text=True)
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
    size = ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=0", "--cpus-per-task=1", "--mem=0"]
    script = ("launch/slurm.sbatch", CONFIG, *SHORT, f"--workdir={run}", *options)
    return slurm("sbatch", "--parsable", *size, f"--output={run}.out", *script).strip()


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
        wanted = {b"dml_jax.main", f"--workdir={run}".encode()}
        command = arguments[0] != b"srun" and wanted <= {*arguments}
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
    train = "--config.train."
    options = (f"{train}steps=300", f"{train}checkpoint_every=50", f"{train}log_every=10")
    whole, killed = (submit(slurm, tmp_path / name, *options) for name in ("whole", "killed"))
    for index in (1, 0):
        before = len(steps(tmp_path / "killed"))
        # After another checkpoint.
        wait_until(lambda before=before: len(steps(tmp_path / "killed")) > before + 6)
        os.kill(task(tmp_path / "killed", index), signal.SIGKILL)
        restarts = str(2 - index)
        wait_until(lambda restarts=restarts: state(slurm, killed)[2] == restarts)
        printed = (tmp_path / "killed.out").read_text()
        assert f"error: process {index} was killed or its machine failed; start all" in printed
        assert printed.count("Exited with exit code 75") == 2 - index
        slurm("scontrol", "update", f"jobid={killed}", "StartTime=now+5")  # not in two minutes
    wait_until(lambda: {state(slurm, job)[0] for job in (whole, killed)} == {"COMPLETED"})
    assert (state(slurm, whole)[2], state(slurm, killed)[2]) == ("0", "2")
    assert (tmp_path / "killed.out").read_text().count("resuming from step") == 2
    texts = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "killed")]
    assert (texts[0].count("\n"), texts[0]) == (30, texts[1])


def test_a_cancelled_job_is_not_requeued(slurm: Callable[..., str], tmp_path: Path) -> None:
    job = submit(slurm, tmp_path / "run", "--config.train.steps=100000")
    wait_until(lambda: steps(tmp_path / "run"))
    slurm("scancel", job)
    wait_until(lambda: not slurm("squeue", "-h"))
    assert state(slurm, job)[::2] == ("CANCELLED", "0")
    assert "stopped by SIGTERM" in (tmp_path / "run.out").read_text()
    assert any((tmp_path / "run" / "checkpoints" / "latest").iterdir())
