"""Trains the trials of a study, several at a time, each in its own process.

A process never outlives this command, so that no two processes train the same trial. Running the
command again continues an interrupted trial from its checkpoint.
"""

import os
import runpy
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from dml_jax import files
from dml_jax.errors import ConfigError, counted
from dml_jax.lab import outcomes
from dml_jax.lab.plan import Trial

POLL = 0.5  # seconds between checks of a process
ERROR = "error: "  # prefix of the last line of a failed trial's log
say = partial(print, flush=True)


class Slot(NamedTuple):
    """A share of this machine: cores, and environment variables that select an accelerator."""

    cores: frozenset[int]
    environment: dict[str, str]

    def start(self, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Starts `python -m ARGUMENTS` with its output in a file; it ends when its input is closed.

        Also binds this thread to the cores, which the process inherits (not on macOS).
        """
        if self.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)
        with open(log, "wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "dml_jax.lab.runner", *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )


def slots(jobs: int) -> list[Slot]:
    """Divides the cores and the NVIDIA devices of this machine among jobs."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = sorted(os.sched_getaffinity(0)) if has_affinity else list(range(os.cpu_count() or 1))
    if not 1 <= jobs <= len(cores):
        raise ConfigError(f"--jobs={jobs}: must be one of 1 to {len(cores)}, the number of cores")
    gpus = map(str, range(len(list(Path("/proc/driver/nvidia/gpus").glob("*")))))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(gpus))
    devices = list(filter(None, visible.split(",")))
    result = []
    for job in range(jobs):
        environment: dict[str, str] = {}
        if devices:
            assigned = devices[job::jobs] or [devices[job % len(devices)]]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(assigned)
            if (sharing := -(-jobs // len(devices))) > 1:
                environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / sharing:.2f}"
        result.append(Slot(frozenset(cores[job::jobs]), environment))
    return result


def trial_file(root: Path, name: str, kind: str) -> Path:
    """A trial's file: its configuration ("json"), or its output and failure ("log")."""
    return root / "trials" / f"{name.replace('/', '-')}.{kind}"


def failure(root: Path, name: str) -> str:
    """The reason why a trial's last training failed; empty if it did not."""
    line = last_line(trial_file(root, name, "log"))
    return line.removeprefix(ERROR) if line.startswith(ERROR) else ""


def run_all(root: Path, trials: Sequence[Trial], jobs: int) -> None:
    """Trains all unfinished trials, each after the trials that it needs."""
    free, busy, failed = slots(jobs), dict[Future[bool], tuple[str, Slot]](), set[str]()
    with ThreadPoolExecutor(jobs) as pool, stoppable() as stop:
        while not stop.is_set():
            done = outcomes.finished(trials)
            unavailable = {*done, *failed, *(name for name, _ in busy.values())}
            waiting = [trial for trial in trials if trial.name not in unavailable]
            ready = [trial for trial in waiting if done.issuperset(trial.needs)]
            for trial in ready[: len(free)]:
                slot = free.pop(0)
                busy[pool.submit(execute, root, trial, slot, stop)] = trial.name, slot
            if not busy:
                break
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                name, slot = busy.pop(future)
                free.append(slot)
                if not future.result():
                    failed.add(name)


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """Context with an event that SIGTERM, Ctrl-C and errors set, to stop the processes of trials.

    After a signal, raises SystemExit with 128 + its number at the end.
    """
    stop, received = threading.Event(), list[int]()

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        stop.set()

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        stop.set()
        for number, handler in previous.items():
            signal.signal(number, handler)
    if received:
        say("stopped; run the same command again to continue")
        sys.exit(128 + received[0])


def wait_for(process: subprocess.Popen[bytes], stop: threading.Event) -> int:
    """The exit code of a process; terminates it when `stop` is set."""
    while (code := process.poll()) is None:
        if stop.wait(POLL):
            process.terminate()
            return process.wait()
    return code


def execute(root: Path, trial: Trial, slot: Slot, stop: threading.Event) -> bool:
    """Starts or continues a trial; returns whether it finished.

    If it failed, the last line of its log gives the reason.
    """
    log = trial_file(root, trial.name, "log")
    if trial.members:  # the results belong to old embeddings
        (trial.directory / "results.json").unlink(missing_ok=True)
    began = time.monotonic()
    say(f"{trial.name}: {'continues' if (trial.directory / 'checkpoints').exists() else 'starts'}")
    with slot.start(command(root, trial), log) as process:
        code = wait_for(process, stop)
    if not outcomes.why_unfinished(trial):
        say(f"{trial.name}: finished ({time.monotonic() - began:.0f} s)")
        return True
    if stop.is_set():
        return False
    reason = last_line(log).removeprefix(ERROR) or f"exit code {code}"
    if code < 0:
        reason = f"the process was killed by signal {-code}; see {log}"
    if failure(root, trial.name) != reason:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{ERROR}{reason}\n")
    say(f"{trial.name}: failed: {reason}")
    return False


def command(root: Path, trial: Trial) -> list[str]:
    """Writes the configuration of a trial; returns the module to run and its arguments."""
    if trial.members:
        weights = [f"--weights={','.join(map(str, trial.weights))}"] if trial.weights else []
        members = f"--model={','.join(map(str, trial.members))}"
        return ["dml_jax", "evaluate", members, f"--export={trial.directory}", *weights]
    config = trial_file(root, trial.name, "json")
    files.write_json(config, {"config": trial.config and asdict(trial.config)})
    directory = f"--workdir={trial.directory}"
    # The code is trusted, because the study has already imported it.
    return ["dml_jax.main", f"--config={config}", directory, "--quiet", "--trust_code"]


def print_commands(root: Path, trials: Sequence[Trial]) -> None:
    """Prints a shell command for each unfinished trial and the trials that it needs."""
    done = outcomes.finished(trials)
    for trial in trials:
        if trial.name not in done:
            line = shlex.join(["python", "-m", *command(root, trial)])
            print(f"{line}  # after {', '.join(trial.needs)}" if trial.needs else line)
    count = f"{counted(len(trials), 'trial')}, {len(done)} finished"
    print(f"{count}; then: dml-jax study --runs {root}", file=sys.stderr)


def last_line(log: Path) -> str:
    """The last non-empty line of a log; empty if there is none."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return next((line for line in reversed(lines) if line.strip()), "")


def _end_with_parent() -> None:
    """Ends this process when its standard input, a pipe from its parent, is closed."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)  # also the workers that read images


if __name__ == "__main__":  # runs a module like `python -m`
    threading.Thread(target=_end_with_parent, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
