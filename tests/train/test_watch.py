"""Hangs: slow steps and who is late, a line per minute, and the stacks of all threads on a signal."""

import faulthandler
import json
import os
import signal
from pathlib import Path

import pytest

from dml_jax.train.distributed import process_group
from dml_jax.train.distributed.process_group import Watch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def started(file: Path) -> tuple[Watch, Clock, list[str]]:
    """A watch after six steps, a second each."""
    clock, said = Clock(), list[str]()
    watched = Watch(file, said.append, clock)
    for step in range(1, 7):
        watched.stepped(step)
        clock.now += 1
    return watched, clock, said


def test_a_slow_step_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "peers", lambda: [(1, 6, 0.5), (2, 4, 0.1)])
    watched, clock, said = started(tmp_path / "host-0.jsonl")
    clock.now += 18.5  # 19.5 s since the last step
    watched.check()
    assert not said
    clock.now += 1
    watched.check()
    watched.check()
    (text,) = said
    assert text.startswith("step 7 has taken 20 s so far, the median is 1 s; late: process 2 (at step 4); kill -USR1 ")
    watched.stepped(7)
    clock.now += 500
    watched.pause()
    watched.check()
    assert len(said) == 1


@pytest.mark.parametrize(
    ("peers", "text"),
    [
        ([], ""),
        ([(1, 5, 0.9), (2, 5, 0.2)], ""),
        ([(1, 5, 12.0), (2, 4, 0.2)], "; late: process 1 (silent for 12 s)"),
        ([(0, 6, 0.5)], "; late: this process (at step 5)"),
    ],
)
def test_who_is_late(peers: list[tuple[int, int, float]], text: str) -> None:
    assert process_group.late(5, peers) == text


def test_a_line_per_minute(tmp_path: Path) -> None:
    watched, clock, _ = started(tmp_path / "host-0.jsonl")
    for _ in range(130):
        clock.now += 1
        watched.check()
    first, second = map(json.loads, (tmp_path / "host-0.jsonl").read_text().splitlines())
    assert first["step"] == second["step"] == 6
    assert first["step_seconds"] == 1
    assert first["peers"] == {}


def test_a_signal_writes_the_stacks_of_all_threads(tmp_path: Path) -> None:
    process_group.keep_stacks(tmp_path / "host-0.stacks")
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        process_group.write_stacks("no sign of life")
    finally:
        faulthandler.unregister(signal.SIGUSR1)
    text = (tmp_path / "host-0.stacks").read_text()
    assert text.count("in test_a_signal_writes_the_stacks_of_all_threads") == 2
    assert " no sign of life\nCurrent thread" in text or " no sign of life\nThread" in text
