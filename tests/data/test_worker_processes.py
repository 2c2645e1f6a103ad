"""Worker processes read the same batches as threads, and leave nothing behind when killed."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_jax.config import Data
from dml_jax.data import pipeline
from dml_jax.data.worker_processes import WorkerReader
from dml_jax.errors import ConfigError, DataError, PeerError
from tests.data.batches import assert_same, options, read_batches, small_split
from tests.processes import ROOT, environment

FAILING = 6  # step
# Prints the processes that read, and waits to be killed.
PARENT = """
import json, os, time
from tests.data.test_worker_processes import numbers, objects, WorkerReader
if __name__ == "__main__":
    before = objects()
    with WorkerReader(numbers, 0, 1000, 2, 1) as reader:
        pids = [int(next(reader)[0][0]) for _ in range(2)]
        print(json.dumps([pids, sorted(objects() - before)]), flush=True)
        time.sleep(600)
"""


def numbers(step: int) -> tuple[np.ndarray]:
    """The process that reads and the step."""
    if step == FAILING:
        raise DataError(f"image {step}: damaged")
    return (np.array([os.getpid(), step]),)


def objects() -> set[str]:
    """The shared memory and semaphores of all processes."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "sem.mp-"))}


def running(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("workers", "start"), [(1, 4), pytest.param(3, 0, marks=pytest.mark.slow)])
def test_batches_do_not_depend_on_processes(tmp_path: Path, workers: int, start: int) -> None:
    """Also after a resume, and beyond the first batches, which threads read."""
    split, stop = small_split(tmp_path), start + pipeline.PREFETCHED + 5
    expected = read_batches(split, options(workers=0), start=start, stop=stop)
    batches = read_batches(split, options(workers=workers), start=start, stop=stop)
    assert_same(batches, expected)
    assert {type(array) for batch in batches for array in batch} == {np.ndarray}


@pytest.mark.slow
def test_killed_worker_and_invalid_image_are_named() -> None:
    """Batches come from the processes in turn; signals to all processes of a run end no worker."""
    with WorkerReader(numbers, 0, FAILING + 1, 2, 1) as reader:
        batches = [next(reader)[0] for _ in range(FAILING)]
        first, second = int(batches[0][0]), int(batches[1][0])
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(first, number)
        with pytest.raises(DataError, match=r"^image 6: damaged"):
            next(reader)
    assert [batch.tolist() for batch in batches] == [[(first, second)[step % 2], step] for step in range(FAILING)]
    assert len({first, second, os.getpid()}) == 3
    del batches
    with WorkerReader(numbers, FAILING + 1, 1000, 2, 1) as reader:
        next(reader)
        os.kill(int(next(reader)[0][0]), signal.SIGKILL)
        with pytest.raises(PeerError, match=r"^worker 2 of data\.workers=2, .* SIGKILL: "):
            list(islice(reader, 20))


@pytest.mark.slow
def test_killed_parent_leaves_nothing_behind() -> None:
    variables = environment() | {"PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], env=variables, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as printed:
        workers, shared = json.loads(printed.readline())
    assert len(set(workers)) == 2
    assert shared
    parent.kill()
    parent.wait()
    until = time.monotonic() + 60
    while any(map(running, workers)) or objects() & set(shared):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_what_cannot_be_sent_to_processes() -> None:
    source: Any = (np.array([step]) for step in range(10))
    with (
        pytest.raises(ConfigError, match=r"^data\.workers=1: .* cannot be sent .*; set it to 0$"),
        WorkerReader(lambda step: (next(source),), 0, 10, 1, 1) as reader,
    ):
        next(reader)


@pytest.mark.parametrize(
    ("asked", "accelerators", "cores", "mebibytes", "workers"),
    [
        (-1, 1, 12, 4096, 11),  # a process for each GPU
        (-1, 8, 96, 4096, 95),
        (-1, 1, 208, 4096, 16),
        (-1, 8, 24, 4096, 0),
        (-1, 1, 12, 64, 0),  # Docker's default
        (-1, 0, 12, 4096, 0),  # cores also compute
        (5, 0, 2, 64, 5),
        (0, 1, 12, 4096, 0),
    ],
)
def test_number_of_workers(
    asked: int, accelerators: int, cores: int, mebibytes: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "usable_cores", lambda: cores)
    monkeypatch.setattr(pipeline.shutil, "disk_usage", lambda path: (0, 0, mebibytes * 2**20))
    monkeypatch.setattr(pipeline, "SHARED_MEMORY", Path("/"))
    assert pipeline.worker_processes(Data(workers=asked), accelerators) == workers
