"""Two processes of two devices each agree with one device; an error or Ctrl-C in one ends all, each
with a message."""

import fcntl
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.test_main import CONFIG, ROOT, TINY, command, environment


def start(
    *arguments: str, port: int, number: int, program: Sequence[str] = ("-m", "dml_jax.main")
) -> subprocess.Popen[str]:
    group = [f"--coordinator=localhost:{port}", "--processes=2", f"--process={number}"]
    return subprocess.Popen(
        [sys.executable, *program, CONFIG, *TINY, *arguments, *group],
        cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("failing", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_processes_end_together(tmp_path: Path, failing: int) -> None:
    """Process 0 fails early, as the work directory is locked; process 1 later, as it cannot write
    its log."""
    port = free_port()
    (tmp_path / "run" / "logs").mkdir(parents=True)
    if failing == 1:
        (tmp_path / "run" / "logs" / "host-1.log").mkdir()
    with open(tmp_path / "run" / ".config.json.lock", "w") as lock:
        if failing == 0:
            fcntl.flock(lock, fcntl.LOCK_EX)
        processes = [
            start(f"--workdir={tmp_path / 'run'}", port=port, number=number) for number in range(2)
        ]
        errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2], errors
    lines = [[line for line in text.splitlines() if line.startswith("error: ")] for text in errors]
    assert len(lines[0]) == len(lines[1]) == 1, errors
    assert f"error: process {failing} has stopped: " in lines[1 - failing][0]
    for number in range(2):
        assert str(tmp_path / "run") in lines[number][0]


@pytest.mark.slow
def test_ctrl_c_in_one_process_outside_training() -> None:
    """Process 1 gets the signal while both are busy (here: sleeping)."""
    port = free_port()
    program = (
        "import os, signal, sys, time\n"
        "from dml_jax import main, run\n"
        "def busy(*_):\n"
        "    if '--process=1' in sys.argv: os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(120)\n"
        "run.check = busy\n"
        "sys.exit(main.main())\n"
    )
    processes = [
        start("--mode=check", port=port, number=number, program=["-c", program])
        for number in range(2)
    ]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [130, 130], errors
    assert "error: process 1 has stopped: SIGINT" in errors[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_process_that_waits_for_the_others(number: signal.Signals) -> None:
    program = (
        "import os, threading\n"
        "from dml_jax.train.distributed import process_group\n"
        f"threading.Timer(1.0, os.kill, (os.getpid(), {int(number)})).start()\n"
        f"process_group.connect('localhost:{free_port()}', 2, 1)\n"
    )
    done = command(program=("-c", program))
    assert done.returncode == -number, done.stderr


@pytest.mark.slow
def test_different_configurations_do_not_train_together(tmp_path: Path) -> None:
    port = free_port()
    more = ["--config.data.batch_size=32", "--config.seed=1", "--config.data.threads=1"]
    processes = [
        start(f"--workdir={tmp_path / 'run'}", *(more if number else []), port=port, number=number)
        for number in range(2)
    ]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2], errors
    for text in errors:
        (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
        assert (
            "the processes differ in data.batch_size, seed; start all with the same options" in line
        )
        assert "Traceback" not in text
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hanging"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_process_ends_the_other_with_a_message(
    lost: int, how: signal.Signals, tmp_path: Path
) -> None:
    port = free_port()
    endless = [
        f"--workdir={tmp_path / 'run'}",
        "--config.train.steps=100000",
        "--config.train.log_every=5",
    ]
    program = (
        "import sys\n"
        "from dml_jax import main\n"
        "from dml_jax.train.distributed import process_group\n"
        "process_group.SILENCE = 15.0\n"
        "sys.exit(main.main())\n"
    )
    processes = [
        start(*endless, port=port, number=number, program=["-c", program]) for number in range(2)
    ]
    deadline = time.monotonic() + 300
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.5)
    processes[lost].send_signal(how)
    error = processes[1 - lost].communicate(timeout=300)[1]
    processes[lost].kill()
    processes[lost].communicate()
    assert processes[1 - lost].returncode == 75, error
    problem = (
        "was killed or its machine failed"
        if how == signal.SIGKILL
        else "has given no sign of life for 15 s"
    )
    assert f"error: process {lost} {problem}; start all processes again to continue" in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_a_signal_during_an_evaluation(tmp_path: Path) -> None:
    """Process 1 gets it early in an evaluation of more than a minute; both leave it for later."""
    port = free_port()
    program = (
        "import pathlib, sys, time\n"
        "from dml_jax import main\n"
        "from dml_jax.train.embedding import Embedder\n"
        "embed = Embedder.embed_split\n"
        "def slow(*args):\n"
        "    def wait(done):\n"
        f"        pathlib.Path({str(tmp_path / 'evaluating')!r}).touch()\n"
        "        time.sleep(0.2)\n"
        "        args[-1](done)\n"
        "    return embed(*args[:-1], wait)\n"
        "Embedder.embed_split = slow\n"
        "sys.exit(main.main())\n"
    )
    options = [
        f"--workdir={tmp_path / 'run'}",
        "--config.train.evaluate_every=1",
        "--config.evaluation.batch_size=2",
    ]
    processes = [
        start(*options, port=port, number=number, program=["-c", program]) for number in range(2)
    ]
    deadline = time.monotonic() + 300
    while not (tmp_path / "evaluating").exists():
        assert time.monotonic() < deadline
        time.sleep(0.5)
    processes[1].terminate()
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [143, 143], errors
    assert [path.name for path in (tmp_path / "run" / "checkpoints" / "latest").iterdir()] == ["1"]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    arguments = [
        CONFIG,
        *TINY,
        "--config.train.steps=30",
        "--config.train.evaluate_every=15",
        "--config.train.checkpoint_every=10",
        "--config.evaluation.cluster=true",
        "--config.evaluation.controls=false",
    ]
    single = command(*arguments, f"--workdir={tmp_path / 'one'}")
    assert single.returncode == 0, single.stderr
    group = [
        f"--workdir={tmp_path / 'two'}",
        f"--coordinator=localhost:{free_port()}",
        "--processes=2",
    ]
    devices = {**environment(), "JAX_NUM_CPU_DEVICES": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "dml_jax.main", *arguments, *group, f"--process={number}"],
            cwd=ROOT, env=devices, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for number in range(2)
    ]  # fmt: skip
    printed = [process.communicate(timeout=900)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    assert "R@1" in printed[0]
    assert "R@1" not in printed[1]

    one, two = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert [line["step"] for line in one] == [line["step"] for line in two]
    for a, b in zip(one, two, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
    embeddings = [
        np.load(tmp_path / name / "embeddings" / "test" / "embeddings.npy")
        for name in ("one", "two")
    ]
    np.testing.assert_allclose(*embeddings, atol=1e-4)
    assert sorted(p.name for p in (tmp_path / "two" / "checkpoints" / "latest").iterdir()) == [
        "10",
        "20",
        "30",
    ]


@pytest.mark.slow
def test_a_second_start_where_one_process_compiles_for_longer(tmp_path: Path) -> None:
    """Process 0 has its programs in the cache; process 1 takes longer than the 30 s in which Gloo
    connects devices."""
    program = (
        "import sys, time\n"
        "from dml_jax import main\n"
        "from dml_jax.train.experiment import Experiment\n"
        "jitted_step = Experiment.jitted_step\n"
        "delays = [35] if {'--process=1', '--config.train.steps=4'} <= {*sys.argv} else []\n"
        "def slow(*run):\n"
        "    update = jitted_step(*run)\n"
        "    def call(*arguments):\n"
        "        time.sleep(delays.pop() if delays else 0)\n"
        "        return update(*arguments)\n"
        "    return call\n"
        "Experiment.jitted_step = slow\n"
        "sys.exit(main.main())\n"
    )
    variables = {
        **environment(),
        "JAX_NUM_CPU_DEVICES": "2",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
    }
    for steps in (2, 4):
        options = [
            CONFIG,
            *TINY,
            f"--workdir={tmp_path / 'run'}",
            f"--config.train.steps={steps}",
            "--config.train.schedule=constant",
            "--config.evaluation.controls=false",
        ]
        group = [f"--coordinator=localhost:{free_port()}", "--processes=2"]
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", program, *options, *group, f"--process={number}"],
                cwd=ROOT,
                env=variables,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        errors = [process.communicate(timeout=300)[1] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], errors
    (line,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert line["step"] == 4  # the line of the shorter run's end is removed
