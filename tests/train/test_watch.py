"""Hangs: slow steps and who is late, and the stacks of all threads on a signal."""

import faulthandler
import json
import os
import signal
import socket
import struct
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dml_jax.errors import PeerError
from dml_jax.train.distributed import process_group


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    peers = [
        SimpleNamespace(index=i, step=step, heard=time.monotonic() + 60)
        for i, step in ((1, 6), (2, 4))
    ]
    monkeypatch.setattr(process_group, "_group", SimpleNamespace(peers=peers))
    return peers


def test_a_slow_step_is_reported_once_and_the_state_every_minute(
    peers: list[SimpleNamespace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "SHORTEST", 0.1)
    monkeypatch.setattr(process_group, "MINUTE", 0.1)
    said: list[str] = []
    with process_group.watched(said.append, tmp_path / "host-0.jsonl") as stepped:
        for step in range(1, 7):
            stepped(step)
        assert process_group._group.step == 6
        while not said:
            time.sleep(0.01)
        stepped(7)
        stepped(0)  # for an evaluation
        time.sleep(0.3)
    (text,) = said
    assert text.startswith("step 7 has taken 0 s so far, the median is ")
    assert " s; late: process 2 (at step 4); kill -USR1 " in text
    line = json.loads((tmp_path / "host-0.jsonl").read_text().splitlines()[-1])
    assert line["step"] == 7
    assert line["step_seconds"] > 0
    assert line["host_memory"] > 2**20
    assert line["peers"]["2"]["step"] == 4


def test_who_is_late(peers: list[SimpleNamespace]) -> None:
    assert [process_group._late(step) for step in (4, 5)] == [
        "; late: process 0, this one",
        "; late: process 2 (at step 4)",
    ]
    peers[0].heard -= 72
    assert process_group._late(5) == "; late: process 1 (silent for 12 s)"
    peers.clear()
    assert not process_group._late(5)


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


def test_strangers_do_not_keep_the_processes_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """One connects and says nothing, one has another key; the third connection is of process 1."""
    monkeypatch.setattr(process_group.jax, "process_count", lambda: 2)
    monkeypatch.setattr(process_group, "STRANGER", struct.pack("ll", 0, 100_000))
    others: list[Any] = []

    def told(sent: np.ndarray) -> np.ndarray:
        _, port, key = json.loads(sent.tobytes())
        others.append(socket.create_connection(("localhost", port)))

        def arrive() -> None:
            with pytest.raises(AuthenticationError):
                Client(("localhost", port), authkey=b"guessed")
            others.append(connection := Client(("localhost", port), authkey=key.encode()))
            connection.send_bytes(b"1")

        threading.Thread(target=arrive, daemon=True).start()
        return sent

    monkeypatch.setattr(process_group.multihost_utils, "broadcast_one_to_all", told)
    (peer,) = process_group._connected()
    assert peer.index == 1
    assert len(others) == 2
    for connection in (*others, peer.connection):
        connection.close()
    monkeypatch.setattr(process_group.multihost_utils, "broadcast_one_to_all", lambda sent: sent)
    monkeypatch.setattr(process_group, "SILENCE", 0.1)
    with pytest.raises(PeerError, match=r"1 of 2 processes have not reached .* within 0\.1 s"):
        process_group._connected()
