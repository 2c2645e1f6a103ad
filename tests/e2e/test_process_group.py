"""Two processes of two devices each agree with one device; an error or Ctrl-C in one ends all, each with a message."""

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests import processes
from tests.processes import CONFIG, TINY, command, free_port, wait_until

MAIN = ("-m", "dml_jax.main")
CODE = """
import os, pathlib, signal, sys, time
from dml_jax import main, run
from dml_jax.train.distributed import process_group
from dml_jax.train.embedding import Embedder
from dml_jax.train.experiment import Experiment
{}
sys.exit(main.main())
"""


def started(
    *arguments: str, of_second: Sequence[str] = (), code: str = "", **variables: str
) -> list[subprocess.Popen[str]]:
    """Two processes of the main command, before which they execute code."""
    group = [f"--coordinator=localhost:{free_port()}", "--processes=2"]
    program = ("-c", CODE.format(code)) if code else MAIN
    return [
        processes.start(
            CONFIG, *TINY, *arguments, *group, f"--process={number}", *more,
            program=program, **variables,
        )
        for number, more in enumerate(((), of_second))
    ]  # fmt: skip


def ended(group: list[subprocess.Popen[str]], code: int) -> list[str]:
    """What both have written to standard error."""
    printed = [process.communicate(timeout=900) for process in group]
    assert [process.returncode for process in group] == [code, code], printed
    return [errors for _, errors in printed]


def lines(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("failing", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_processes_end_together(tmp_path: Path, failing: int) -> None:
    """Process 0 fails early, as the work directory is locked; process 1 later, as it cannot write its log."""
    (tmp_path / "logs").mkdir()
    if failing == 1:
        (tmp_path / "logs" / "host-1.log").mkdir()
    with open(tmp_path / ".config.json.lock", "w") as lock:
        if failing == 0:
            fcntl.flock(lock, fcntl.LOCK_EX)
        errors = ended(started(f"--workdir={tmp_path}"), 2)
    found = [[line for line in text.splitlines() if line.startswith("error: ")] for text in errors]
    assert [len(each) for each in found] == [1, 1], errors
    assert f"error: process {failing} has stopped: " in found[1 - failing][0]
    assert all(str(tmp_path) in each[0] for each in found)


@pytest.mark.slow
def test_ctrl_c_in_one_process_outside_training() -> None:
    """Process 1 gets the signal while both are busy (here: sleeping)."""
    code = (
        "def busy(*_):\n"
        "    if '--process=1' in sys.argv: os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(120)\n"
        "run.check = busy\n"
    )
    errors = ended(started("--mode=check", code=code), 130)
    assert "error: process 1 has stopped: SIGINT" in errors[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_process_that_waits_for_the_others(number: signal.Signals) -> None:
    code = (
        "import os, threading\n"
        "from dml_jax.train.distributed import process_group\n"
        f"threading.Timer(1.0, os.kill, (os.getpid(), {int(number)})).start()\n"
        f"process_group.connect('localhost:{free_port()}', 2, 1)\n"
    )
    done = command(program=("-c", code))
    assert done.returncode == -number, done.stderr


@pytest.mark.slow
def test_different_configurations_do_not_train_together(tmp_path: Path) -> None:
    more = ["--config.data.batch_size=32", "--config.seed=1", "--config.data.threads=1"]
    for text in ended(started(f"--workdir={tmp_path / 'run'}", of_second=more), 2):
        (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
        assert "the processes differ in data.batch_size, seed; start all with the same" in line
        assert "Traceback" not in text
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hanging"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_process_ends_the_other_with_a_message(lost: int, how: signal.Signals, tmp_path: Path) -> None:
    endless = ["--config.train.steps=100000", "--config.train.log_every=5"]
    code = "process_group.SILENCE = 15.0"
    group = started(f"--workdir={tmp_path}", *endless, code=code)
    wait_until((tmp_path / "metrics.jsonl").exists)
    group[lost].send_signal(how)
    error = group[1 - lost].communicate(timeout=300)[1]
    group[lost].kill()
    group[lost].communicate()
    assert group[1 - lost].returncode == 75, error
    killed = how == signal.SIGKILL
    problem = "was killed or its machine failed" if killed else "has not responded for 15 s"
    assert f"error: process {lost} {problem}; start all processes again to continue" in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_a_signal_during_an_evaluation(tmp_path: Path) -> None:
    """Process 1 gets it early in an evaluation of more than a minute; both leave it for later."""
    code = (
        "embed = Embedder.embed_split\n"
        "def slow(*args):\n"
        "    def wait(done):\n"
        f"        pathlib.Path({str(tmp_path / 'evaluating')!r}).touch()\n"
        "        time.sleep(0.2)\n"
        "        args[-1](done)\n"
        "    return embed(*args[:-1], wait)\n"
        "Embedder.embed_split = slow\n"
    )
    options = ["--config.train.evaluate_every=1", "--config.evaluation.batch_size=2"]
    group = started(f"--workdir={tmp_path / 'run'}", *options, code=code)
    wait_until((tmp_path / "evaluating").exists)
    group[1].terminate()
    ended(group, 143)
    assert os.listdir(tmp_path / "run" / "checkpoints" / "latest") == ["1"]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    arguments = ["--config.train.steps=30", "--config.train.evaluate_every=15", "--config.train.checkpoint_every=10"]
    arguments += ["--config.evaluation.cluster=true", "--config.evaluation.controls=false"]
    single = command(CONFIG, *TINY, *arguments, f"--workdir={tmp_path / 'one'}")
    assert single.returncode == 0, single.stderr
    group = started(*arguments, f"--workdir={tmp_path / 'two'}", JAX_NUM_CPU_DEVICES="2")
    printed = [process.communicate(timeout=900) for process in group]
    assert [process.returncode for process in group] == [0, 0], printed
    assert ["R@1" in out for out, _ in printed] == [True, False]

    one, two = (lines(tmp_path / name) for name in ("one", "two"))
    assert [line["step"] for line in one] == [line["step"] for line in two]
    losses = ([line["loss"] for line in each] for each in (one, two))
    np.testing.assert_allclose(*losses, rtol=1e-5)
    file = "embeddings/test/embeddings.npy"
    np.testing.assert_allclose(*(np.load(tmp_path / n / file) for n in ("one", "two")), atol=1e-4)
    assert {*os.listdir(tmp_path / "two" / "checkpoints" / "latest")} == {"10", "20", "30"}


@pytest.mark.slow
def test_a_second_start_where_one_process_compiles_for_longer(tmp_path: Path) -> None:
    """Process 0 has its programs in the cache; process 1 takes longer than the 30 s in which Gloo connects devices."""
    code = (
        "jitted_step = Experiment.jitted_step\n"
        "delays = [35] if {'--process=1', '--config.train.steps=4'} <= {*sys.argv} else []\n"
        "def slow(*run):\n"
        "    update = jitted_step(*run)\n"
        "    def call(*arguments):\n"
        "        time.sleep(delays.pop() if delays else 0)\n"
        "        return update(*arguments)\n"
        "    return call\n"
        "Experiment.jitted_step = slow\n"
    )
    cache, run = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}, tmp_path / "run"
    same = ["--config.train.schedule=constant", "--config.evaluation.controls=false"]
    for steps in (2, 4):
        options = [f"--workdir={run}", f"--config.train.steps={steps}", *same]
        ended(started(*options, code=code, JAX_NUM_CPU_DEVICES="2", **cache), 0)
    assert [line["step"] for line in lines(run)] == [4]  # not that of the shorter run's end
