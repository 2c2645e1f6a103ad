"""An error that one process of several finds ends the others too, each with a sentence."""

import fcntl
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_main import CONFIG, ROOT, TINY, environment


def start(*arguments: str, port: int, number: int) -> subprocess.Popen[str]:
    together = [f"--coordinator=localhost:{port}", "--processes=2", f"--process={number}"]
    return subprocess.Popen(
        [sys.executable, "-m", "dml_jax.main", CONFIG, *TINY, *arguments, *together],
        cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("culprit", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_they_end_together(tmp_path: Path, culprit: int) -> None:
    """The work directory of process 0 is locked; or process 1 finds no weights to start from, when they are at work."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    more = [["--config.init_from=nowhere"] if culprit == 1 and number == 1 else [] for number in range(2)]
    (tmp_path / "run").mkdir()
    with open(tmp_path / "run" / ".lock", "w") as lock:
        if culprit == 0:
            fcntl.flock(lock, fcntl.LOCK_EX)
        processes = [
            start(f"--workdir={tmp_path / 'run'}", *more[number], port=port, number=number) for number in range(2)
        ]
        said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2], said
    lines = [[line for line in text.splitlines() if line.startswith("error: ")] for text in said]
    assert len(lines[0]) == len(lines[1]) == 1, said
    assert f"error: process {culprit} has stopped: " in lines[1 - culprit][0]
    assert lines[1 - culprit][0].endswith(lines[culprit][0].removeprefix("error: "))
