"""The commands of the project in processes of their own, programs that stand in for others, and killed copies."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess

ROOT = Path(__file__).parents[1]
CONFIG = "--config=configs/digits_baseline.py:proxy_anchor"
TINY = (
    "--config.backbone.depths=(1,)", "--config.backbone.widths=(4,)", "--config.data.batch_size=16",
    "--config.method.embedding_dim=8", "--config.evaluation.cluster=false",
)  # fmt: skip


def environment(**variables: str) -> dict[str, str]:
    """One device; otherwise as the tests themselves run."""
    return {**os.environ, "JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(ROOT), **variables}


def start(*arguments: str, program: Sequence[str] = ("-m", "dml_jax.main"), **variables: str) -> subprocess.Popen[str]:
    """Starts the main command, or another program of Python, with its output in pipes."""
    line, pipe = [sys.executable, *program, *arguments], subprocess.PIPE
    return subprocess.Popen(line, cwd=ROOT, env=environment(**variables), stdout=pipe, stderr=pipe, text=True)


def command(*arguments: str, program: Sequence[str] = ("-m", "dml_jax.main")) -> CompletedProcess[str]:
    process = start(*arguments, program=program)
    printed = process.communicate(timeout=300)
    return CompletedProcess(arguments, process.returncode, *printed)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], object], pause: float = 0.2) -> None:
    deadline = time.monotonic() + 400
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(pause)


def executable(path: Path, text: str) -> Path:
    """Writes a program for bash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)
    return path


OPERATIONS = ("open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "shutil.rmtree")
KILLED = 9


def forked(body: Callable[[], object], killed_at: int = 0) -> int:
    """The number of a copy of this process that executes the body, and is killed at an operation on files."""
    if process := os.fork():
        return process
    done = 0

    def count(event: str, arguments: object) -> None:
        nonlocal done
        if event in OPERATIONS:
            done += 1
            if done == killed_at:
                os._exit(KILLED)

    sys.addaudithook(count)
    try:
        body()
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(1)
    os._exit(0)


def ended(process: int) -> int:
    """The exit code of a copy."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
