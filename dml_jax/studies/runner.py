"""Runs trials as processes, several side by side, here and on other machines that share the directory of the study.

A trial is claimed by locking a file, whose lock its process inherits: the operating system releases it when the worker
and the process have ended, for whatever reason, and another worker continues the run from its checkpoint.
"""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple

from dml_jax import files
from dml_jax.errors import ConfigError
from dml_jax.studies import outcomes
from dml_jax.studies.plan import Trial

POLL = 0.5  # seconds between two looks at a process, or for a free trial
# Exit codes of a process that a signal has stopped: after it has saved its state, and at once.
STOPPED = (128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGTERM, -signal.SIGINT)


class Slot(NamedTuple):
    """Numbers of the processor cores of one job, and the environment variables that select its accelerator."""

    cores: frozenset[int]
    environment: dict[str, str]


@dataclass
class Progress:
    """State that the jobs of this command share: when `stop` is set, it ends with the exit code `code`."""

    print: Callable[[str], None]
    stop: threading.Event
    code: int = 0


def slots(jobs: int) -> list[Slot]:
    """Divides the cores and the NVIDIA devices of this machine among jobs."""
    # macOS does not bind processes to cores.
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    if not 1 <= jobs <= len(cores):
        raise ConfigError(f"--jobs={jobs}: must be one of 1 to {len(cores)}, the number of cores")
    devices = _devices()
    made = []
    for job in range(jobs):
        environment = {}
        if devices:
            own = devices[job::jobs] or [devices[job % len(devices)]]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
            if jobs > len(devices):  # several jobs on one device
                environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / -(-jobs // len(devices)):.2f}"
        made.append(Slot(frozenset(cores[job::jobs]), environment))
    return made


def _devices() -> list[str]:
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    return [str(number) for number, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]


def claim(root: Path, name: str) -> IO[str] | None:
    """The locked file that claims a trial; None if another worker has it."""
    lock = open(root / "trials" / f"{name}.lock", "w")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def is_running(root: Path, name: str) -> bool:
    """Whether a worker has claimed a trial."""
    try:
        with open(root / "trials" / f"{name}.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file
        pass
    return False


def problem_file(root: Path, name: str) -> Path:
    """Where the reason is noted why a trial failed."""
    return root / "trials" / f"{name}.problem"


def forget_problems(root: Path, trials: Sequence[Trial]) -> None:
    """Lets trials that failed run again."""
    for trial in trials:
        problem_file(root, trial.name).unlink(missing_ok=True)


def problems(root: Path, trials: Sequence[Trial], done: Collection[str]) -> dict[str, str]:
    """Why trials failed or cannot be run, by name; each follows those that it needs, and `done` are finished."""
    found: dict[str, str] = {}
    for trial in trials:
        if trial.name in done:
            continue
        with suppress(OSError):
            found[trial.name] = problem_file(root, trial.name).read_text(encoding="utf-8")
            continue
        if blocked := next((name for name in trial.needs if name in found), None):
            failed = problem_file(root, blocked).exists()
            found[trial.name] = f"needs {blocked}, which failed" if failed else found[blocked]
    return found


def run_all(
    root: Path, trials: Sequence[Trial], jobs: Sequence[Slot], print_line: Callable[[str], None], *, wait: bool
) -> int:
    """Trains all trials that are neither finished nor failed, each after those that it needs.

    Waits for trials of other workers if `wait`. Returns 0, or 128 + the number of the signal that stopped the command.
    """

    def job(slot: Slot, progress: Progress) -> None:
        while (claimed := _next(root, trials, progress, wait=wait)) is not None:
            trial, lock = claimed
            with lock:
                execute(root, trial, lock, slot, progress)

    return in_parallel(jobs, job, print_line)


def in_parallel(jobs: Sequence[Slot], job: Callable[[Slot, Progress], None], print_line: Callable[[str], None]) -> int:
    """Runs a function once per slot, each on its cores; on SIGTERM or Ctrl-C, stops them and returns 143 or 130."""
    progress = Progress(print_line, threading.Event())

    def stop(number: int, frame: FrameType | None) -> None:
        progress.code = 128 + number
        progress.stop.set()

    def pinned(slot: Slot) -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, slot.cores)  # of this thread, and of the processes that it starts
        try:
            job(slot, progress)
        except BaseException:
            progress.stop.set()
            raise

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with ThreadPoolExecutor(len(jobs)) as pool:
            for future in [pool.submit(pinned, slot) for slot in jobs]:
                future.result()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return progress.code


def _next(root: Path, trials: Sequence[Trial], progress: Progress, *, wait: bool) -> tuple[Trial, IO[str]] | None:
    """The next free trial with its claim; None if there is none left."""
    while not progress.stop.is_set():
        done = outcomes.finished(trials)
        against = problems(root, trials, done)
        remaining = [trial for trial in trials if trial.name not in done and trial.name not in against]
        for trial in remaining:
            if not done.issuperset(trial.needs):
                continue
            lock = claim(root, trial.name)
            if lock is None:
                continue
            # Another worker may have ended it.
            if not outcomes.is_finished(trial) and not problem_file(root, trial.name).exists():
                return trial, lock
            lock.close()
        if not remaining or not wait:
            return None
        progress.stop.wait(POLL)
    return None


def execute(
    root: Path,
    trial: Trial,
    lock: IO[str],
    slot: Slot,
    progress: Progress,
    watch: Callable[[], bool] = lambda: False,
    result: Callable[[], str] | None = None,
) -> bool:
    """Runs a claimed trial to its end, continuing it if it was interrupted.

    Args:
      watch: called repeatedly; the process is stopped once it returns True.
      result: what to print of a finished trial; by default its Recall@1 on the test classes.

    Returns:
      Whether it finished. If it failed, the reason is noted in `problem_file`.
    """
    log = root / "trials" / f"{trial.name}.log"
    progress.print(f"{trial.name}: {'continues' if (trial.directory / 'checkpoints').exists() else 'starts'}")
    began, stopped = time.monotonic(), False
    if trial.members:  # written after the embeddings, by which `outcomes` tells whose results they are
        (trial.directory / "results.json").unlink(missing_ok=True)
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command(root, trial), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, **slot.environment}, pass_fds=(lock.fileno(),), start_new_session=True,
        )  # fmt: skip
        while process.poll() is None:
            if not stopped and (progress.stop.is_set() or watch()):
                process.terminate()
                stopped = True
            time.sleep(POLL / 10 if stopped else POLL)
    if outcomes.is_finished(trial):
        recall = outcomes.read_results(trial.directory).get("recall@1", float("nan"))
        shown = result() if result else f"Recall@1 {recall:.4f}"
        progress.print(f"{trial.name}: finished, {shown} ({time.monotonic() - began:.0f} s)")
        return True
    # A scheduler may signal the process itself, before this command or instead of it.
    if stopped or progress.stop.is_set() or process.returncode in STOPPED:
        return False
    reason = last_line(log) or f"exit code {process.returncode}"
    with files.atomic_write(problem_file(root, trial.name)) as draft:
        draft.write_text(reason, encoding="utf-8")
    progress.print(f"{trial.name}: failed: {reason}")
    return False


def command(root: Path, trial: Trial) -> list[str]:
    """The command of a trial, after writing its configuration to a file."""
    if trial.members:
        weights = [f"--weights={','.join(map(str, trial.weights))}"] if trial.weights else []
        members = map(str, trial.members)
        return [sys.executable, "-m", "dml_jax", "ensemble", *members, f"--output={trial.directory}", *weights]
    config = root / "trials" / f"{trial.name}.json"  # written here, so its code is that of the user's own study
    files.write_json(config, {"config": trial.config and asdict(trial.config), "given": trial.given})
    return [
        sys.executable,
        "-m",
        "dml_jax.main",
        f"--config={config}",
        f"--workdir={trial.directory}",
        "--quiet",
        "--trust_code",
    ]


def last_line(log: Path) -> str:
    """The last line of a log that is not empty."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return next((line.removeprefix("error: ") for line in reversed(lines) if line.strip()), "")
