"""Where the processes of trials run: on cores and devices of this machine, or on the machines of a Ray cluster."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dml_jax.errors import ConfigError
from dml_jax.remote import ray_cluster


class Process(Protocol):
    """A process that has been started."""

    def poll(self) -> int | None:
        """The exit code, or minus the number of the signal that ended it; None while it runs."""

    def terminate(self) -> None:
        """Sends SIGTERM."""


class Slot(Protocol):
    """Room for one process at a time."""

    def start(self, arguments: Sequence[str], log: Path) -> Process:
        """Starts `python -m ARGUMENTS`, whose output is appended to a file."""


class Child(subprocess.Popen[bytes]):
    """A process of this machine, which ends when its standard input is closed."""

    def poll(self) -> int | None:
        """See `Process`."""
        code = super().poll()
        if code is not None and self.stdin:
            self.stdin.close()
        return code


class Local(NamedTuple):
    """Numbers of processor cores of this machine, and the environment variables that select its accelerator."""

    cores: frozenset[int]
    environment: dict[str, str]

    def start(self, arguments: Sequence[str], log: Path) -> "Child":
        """See `Slot`; also binds this thread to the cores, because the process inherits them."""
        if self.cores and hasattr(os, "sched_setaffinity"):  # macOS does not bind processes to cores
            os.sched_setaffinity(0, self.cores)
        with open(log, "ab") as output:
            return Child(
                [sys.executable, "-m", "dml_jax.studies.child", *arguments], stdin=subprocess.PIPE, stdout=output,
                stderr=subprocess.STDOUT, env={**os.environ, **self.environment}, start_new_session=True,
            )  # fmt: skip


def local(jobs: int, environment: dict[str, str]) -> list[Local]:
    """Divides the cores and the NVIDIA devices of this machine among jobs, whose processes share an environment.

    Raises ConfigError if there are fewer cores than jobs.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    if not 1 <= jobs <= len(cores):
        raise ConfigError(f"--jobs={jobs}: must be one of 1 to {len(cores)}, the number of cores")
    devices = _devices()
    made = []
    for job in range(jobs):
        own: dict[str, str] = {}
        if devices:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(devices[job::jobs] or [devices[job % len(devices)]])
            own |= _shared(-(-jobs // len(devices)))
        made.append(Local(frozenset(cores[job::jobs]), environment | own))
    return made


def _devices() -> list[str]:
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    return [str(number) for number, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]


def _shared(processes: int) -> dict[str, str]:
    """Variables that divide the memory of a device among processes."""
    return {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / processes:.2f}"} if processes > 1 else {}


def share(machines: Sequence[tuple[int, int]], jobs: int) -> tuple[dict[str, float], int]:
    """What each of the jobs of a machine gets, and how many jobs share a GPU.

    It is a part of the smallest of `ray_cluster.machines`, and all of what a trial needs, so trials cannot wait for
    each other. Raises ConfigError if a machine has fewer cores and GPUs than jobs.
    """
    cores, gpus = (min(machine[i] for machine in machines) for i in range(2))
    if not 1 <= jobs <= max(cores, gpus):
        raise ConfigError(f"--jobs={jobs}: must be one of 1 to {max(cores, gpus)}, as many as the smallest machine has")
    per_gpu = -(-jobs // gpus) if gpus else 1
    return {"num_cpus": cores // jobs, "num_gpus": gpus // jobs or 1 / per_gpu if gpus else 0}, per_gpu


def on_ray(ray: Any, jobs: int, environment: dict[str, str]) -> list["Remote"]:
    """Divides the cores and GPUs of each machine of a cluster among jobs, see `share`."""
    machines = ray_cluster.machines(ray.nodes())
    needs, per_gpu = share(machines, jobs)
    task = ray.remote(max_retries=0, **needs)(_run)
    return [Remote(ray, task, environment | _shared(per_gpu))] * (jobs * len(machines))


def _run(arguments: Sequence[str], environment: dict[str, str], directory: str, log: Path) -> int:
    """A task: see `Slot.start`; ends with the exit code of the process."""
    os.chdir(directory)
    process = Local(frozenset(), environment).start(arguments, log)
    try:
        while (code := process.poll()) is None:
            time.sleep(0.5)  # which a cancellation interrupts, unlike `wait`
    except KeyboardInterrupt:
        process.terminate()
        return process.wait()
    return code


@dataclass(frozen=True)
class Remote:
    """A share of a machine of a Ray cluster."""

    ray: Any
    task: Any
    environment: dict[str, str]

    def start(self, arguments: Sequence[str], log: Path) -> "Task":
        """See `Slot`; the machine must see the current directory and that of the file under the same paths."""
        return Task(self.ray, self.task.remote(arguments, self.environment, os.getcwd(), log.absolute()))


class Task:
    """A task that runs a process."""

    def __init__(self, ray: Any, result: Any):
        self._ray, self._result = ray, result

    def poll(self) -> int | None:
        """See `Process`; the loss of the worker or machine counts as SIGKILL."""
        if not self._ray.wait([self._result], timeout=0)[0]:
            return None
        errors = self._ray.exceptions
        try:
            return int(self._ray.get(self._result))
        except errors.TaskCancelledError:
            return -signal.SIGTERM
        except errors.RayTaskError as error:
            if not isinstance(error.cause, OSError):
                raise
            raise ConfigError(
                f"{error.cause.filename}: cannot be used on a machine of the cluster ({error.cause.strerror}); start "
                "the command in a directory that all of them share, and give such a --root"
            ) from None
        except errors.RayError:
            return -signal.SIGKILL

    def terminate(self) -> None:
        """See `Process`."""
        self._ray.cancel(self._result)
