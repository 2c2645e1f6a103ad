"""Interrupts training runs by SIGKILL and SIGTERM at random moments; see `faults.py`.

Each configuration first runs without interruption. Then runs are interrupted, up to five times
each, and continued by the same command until they finish. Half of the moments are before the first
line of metrics, half after it. Parameters, optimizer state, metrics and exported embeddings must be
those of the uninterrupted run, bit for bit.
"""

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.papers import modules
from tests.reliability.sandbox import ROOT, Outcome

INTERRUPTIONS = 5  # at most, of one run
PATIENCE = 600.0  # seconds for a run that takes ten, because the machine may be busy
SMALL = (
    "data.name=digits",
    "data.path=",
    "data.crop=none",
    "data.batch_size=16",
    "data.threads=1",
    "backbone.stem=small",
    "backbone.depths=(1,)",
    "backbone.widths=(4,)",
    "evaluation.controls=false",
    "evaluation.cluster=false",
    "train.steps=160",
    "train.log_every=5",
    "train.checkpoint_every=10",
    "train.evaluate_every=40",
)
LOADING = threading.Lock()


@cache
def runs() -> dict[str, tuple[str, ...]]:
    """By name: a configuration and overrides, of baselines and of the papers that are there.

    The first is the teacher of students.
    """
    return {
        "baseline": (
            "digits_baseline:proxy_anchor",
            "data.sampler=shuffled",
            "method.embedding_dim=8",
        ),
        "baseline, memory": (
            "digits_baseline:triplet-memory",
            "method.embedding_dim=8",
            "method.memory_after=20",
        ),
        **{
            name: run
            for paper in modules(ROOT / "tests" / "contract")
            for name, run in paper.INTERRUPTED.items()
        },
    }


class Row(NamedTuple):
    """The outcomes of one attack; `failures` counts equal ones together."""

    attack: str
    cases: int
    successes: int
    errors: int
    failures: Counter[str]
    seconds: float

    def line(self) -> str:
        """The row in Markdown."""
        values = (
            self.cases,
            self.successes,
            self.errors,
            self.failures.total(),
            round(self.seconds),
        )
        return f"| {self.attack} | {' | '.join(f'{value:,}' for value in values)} |"


class Whole(NamedTuple):
    """An uninterrupted run: what it left, and the seconds that it took until its first line of
    metrics and after it."""

    result: dict[str, str]
    before: float
    after: float


def run(kills: int, terms: int, seed: int, jobs: int) -> Iterator[Row]:
    """Interrupts runs of all configurations, about as often each; yields the rows of the table."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as pool:
        folder = Path(name)
        first, *others = runs()  # the first is the teacher of others
        wholes = {first: whole(first, folder)}
        wholes |= zip(others, pool.map(lambda name: whole(name, folder), others), strict=True)
        for number, total in ((signal.SIGKILL, kills), (signal.SIGTERM, terms)):
            wanted = [total // len(runs()) + (i < total % len(runs())) for i in range(len(runs()))]
            tasks = [
                pool.submit(interrupted, name, folder, wholes[name], number, count, seed)
                for name, count in zip(runs(), wanted, strict=True)
                if count
            ]
            yield from (task.result() for task in tasks)


def whole(name: str, folder: Path) -> Whole:
    """Runs a configuration without interruption.

    Raises:
      RuntimeError: it fails.
    """
    directory, began = folder / f"{name}-whole", time.monotonic()
    process = start(name, folder, directory)
    wait_for_metrics(process, directory)
    first = time.monotonic()
    code = wait(process, PATIENCE)
    if code != 0:
        raise RuntimeError(f"{name}: exit code {code}: {printed(directory)[-1500:]}")
    after = time.monotonic() - first
    return Whole(result(directory), first - began, after)


def interrupted(
    name: str, folder: Path, expected: Whole, number: signal.Signals, count: int, seed: int
) -> Row:
    """Interrupts runs of a configuration `count` times in all."""
    began, rng, outcomes, resumed = (
        time.monotonic(),
        random.Random(f"{seed} {name} {number}"),
        list[Outcome](),
        0,
    )
    while len(outcomes) < count:
        directory = folder / f"{name}-{number.name}-{len(outcomes)}"
        most = min(INTERRUPTIONS, count - len(outcomes))
        done, problem = one_run(name, folder, directory, expected, number, most, rng)
        resumed += printed(directory).count("resuming from step")
        outcomes += [Outcome("failure", problem) if problem else Outcome("success")] * done
    failures = [outcome.text for outcome in outcomes if outcome.kind == "failure"]
    return Row(
        f"{number.name}, {name} ({resumed} resumed from a checkpoint)",
        len(outcomes),
        len(outcomes) - len(failures),
        0,
        Counter(failures),
        time.monotonic() - began,
    )


def one_run(
    name: str,
    folder: Path,
    directory: Path,
    expected: Whole,
    number: signal.Signals,
    most: int,
    rng: random.Random,
) -> tuple[int, str]:
    """One run, interrupted up to `most` times; returns how often it was, and what went wrong."""
    done, code = 0, None
    while code != 0:
        process = start(name, folder, directory)
        late = rng.random() < 0.5
        if done < most and late:
            wait_for_metrics(process, directory)
        if (
            done < most
            and wait(process, rng.uniform(0, expected.after if late else expected.before)) is None
        ):
            process.send_signal(number)
            done += 1
        code = wait(process, PATIENCE)
        # SIGTERM ends a process that has not set its handlers yet by the signal itself.
        if code not in (0, -number, 128 + number):
            process.send_signal(signal.SIGABRT)  # if it hangs, faulthandler prints where
            process.wait()
            return max(done, 1), f"exit code {code}: {printed(directory)[-500:]}"
        if "Traceback" in printed(directory) or (code == 0 and "error:" in printed(directory)):
            return max(done, 1), printed(directory)[-500:]
    return done, differences(expected.result, result(directory))


def start(name: str, folder: Path, directory: Path) -> subprocess.Popen[bytes]:
    """Starts the main command on a configuration; its output goes to a file."""
    config, *own = runs()[name]
    file, colon, variant = config.partition(":")
    overrides = [f"--config.{text.format(folder=folder)}" for text in (*SMALL, *own)]
    environment = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
    with open(f"{directory}.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "dml_jax.main",
             f"--config=configs/{file}.py{colon}{variant}", *overrides, f"--workdir={directory}"],
            cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip


def wait_for_metrics(process: subprocess.Popen[bytes], directory: Path) -> None:
    """Waits until a run writes a line of metrics, or ends."""
    file = directory / "metrics.jsonl"
    size = file.stat().st_size if file.exists() else 0
    while process.poll() is None and (not file.exists() or file.stat().st_size <= size):
        time.sleep(0.02)


def wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code of a process; None if it still runs after some seconds."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode


def printed(directory: Path) -> str:
    """What the runs in a directory have printed."""
    return Path(f"{directory}.log").read_text(encoding="utf-8", errors="replace")


def result(directory: Path) -> dict[str, str]:
    """Digests of what a finished run left: the whole state, the metrics and the embeddings."""
    from dml_jax.train import model, step

    files = [directory / "metrics.jsonl", *sorted(directory.glob("embeddings/*/*.npy"))]
    found = {
        str(file.relative_to(directory)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }
    with LOADING:
        found["state"] = step.digest(model.load(directory, "latest")[2:4])
    names = sorted(path.name for path in directory.iterdir())
    return found | {"names of files": " ".join(names)}


def differences(expected: dict[str, str], found: dict[str, str]) -> str:
    """The names of the entries that differ."""
    return ", ".join(name for name in expected | found if expected.get(name) != found.get(name))
