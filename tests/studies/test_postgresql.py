"""A search by two commands at once, whose storage is a real PostgreSQL on this machine."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dml_jax.commands import study as command
from dml_jax.studies import runner, search
from tests.e2e.test_process_group import free_port
from tests.studies import test_search
from tests.test_main import ROOT, environment

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
TRIALS = 8
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PROGRAMS or os.geteuid() != 0, reason="needs Debian's postgresql and root"),
]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Of an empty database of a server, which trusts all users."""
    pytest.importorskip("psycopg")
    data, port = Path("/tmp", f"dml_jax-postgresql-{os.getpid()}"), free_port()  # where the user postgres may write
    data.mkdir()
    shutil.chown(data, "postgres")
    user: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": [], "cwd": "/"}
    subprocess.run([PROGRAMS[-1] / "initdb", "--no-sync", "-D", data], check=True, capture_output=True, **user)
    with open(tmp_path / "log", "wb") as log:
        options = ["-D", data, "-p", str(port), "-k", data, "-h", "127.0.0.1"]
        server = subprocess.Popen([PROGRAMS[-1] / "postgres", *options], stdout=log, stderr=log, **user)
        try:
            while b"ready to accept connections" not in (tmp_path / "log").read_bytes():
                assert server.poll() is None
                time.sleep(0.1)
            yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # which disconnects clients
            server.wait(60)
            shutil.rmtree(data)


def work(*arguments: str) -> None:
    """A command with a short script in place of training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "POLL", 0.1)
        patch.setattr(search, "LOST", 20.0)
        patch.setattr(search, "RENEW", 1.0)
        waiting = "while not (directory.parent / 'killed').exists():\n    time.sleep(0.05)\ndirectory.mkdir"
        patch.setattr(test_search, "TRAIN", test_search.TRAIN.replace("directory.mkdir", waiting))
        test_search.use(patch)
        command.execute(list(arguments))


def start(arguments: list[str]) -> "subprocess.Popen[str]":
    code = "import sys; from tests.studies import test_postgresql; test_postgresql.work(*sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    )


def test_two_commands_at_once(url: str, tmp_path: Path) -> None:
    """No trial runs twice but the one whose command is killed, which the other command takes over."""
    root, file = tmp_path / "root", tmp_path / "mine.py"
    file.write_text(test_search.FILE.replace("trials=8", 'trials=8, sampler="random"'))
    arguments = [f"--study={file}", f"--root={root}", f"--trials={TRIALS}", f"--storage={url}"]
    commands = [start(arguments) for _ in range(2)]
    starts, seen = root / "starts.txt", commands[0].stdout
    assert seen
    begun = next(line for line in seen if "starts" in line).partition(":")[0]
    while not starts.exists() or begun not in starts.read_text():
        assert [process.poll() for process in commands] == [None, None]
        time.sleep(0.05)
    commands[0].kill()
    commands[0].communicate()
    while subprocess.run(["pgrep", "-f", str(root / begun)], stdout=subprocess.DEVNULL, check=False).returncode == 0:
        time.sleep(0.05)  # its trial ends with it
    (root / "killed").touch()  # for which all other trials wait
    printed = commands[1].communicate(timeout=500)[0]
    assert commands[1].returncode == 0, printed
    made = test_search.trials(root)
    assert len(made) == TRIALS
    assert {trial.state.name for trial in made} <= {"COMPLETE", "FAIL", "PRUNED"}
    assert len({tuple(trial.params.values()) for trial in made}) == TRIALS  # commands that begin at once choose others
    names = starts.read_text().split()
    assert sorted(names) == sorted([f"trial-{i:04d}" for i in range(TRIALS)] + [begun])
    assert f"{begun}: starts" in printed
