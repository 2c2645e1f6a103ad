"""The connections of processes, what they compare and decide. The first signal is recorded and the second stops the
process; once there is nothing to save, the first does."""

import os
import signal
import subprocess
import sys
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from typing import Any

import jax
import numpy as np
import pytest

from dml_jax.train.distributed import process_group, stop_signals
from dml_jax.train.distributed.stop_signals import Interrupted, Stop


def test_strangers_are_not_taken_for_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One has another key, one says nothing and leaves; the third connection is of process 1."""
    monkeypatch.setattr(process_group.jax, "process_count", lambda: 2)
    arrived: list[Any] = []

    def arrive(port: int, key: str) -> None:
        with pytest.raises(AuthenticationError):
            Client(("localhost", port), authkey=b"guessed")
        Client(("localhost", port)).close()
        arrived.append(Client(("localhost", port), authkey=key.encode()))

    def tell(decide: Any) -> None:
        _, port, key = decide()
        threads.append(threading.Thread(target=arrive, args=(port, key), daemon=True))
        threads[0].start()

    threads: list[threading.Thread] = []
    monkeypatch.setattr(process_group, "decided_by_first", tell)
    (connection,) = process_group._connections()
    threads[0].join()
    (other,) = arrived
    other.send_bytes(b"{}")
    assert connection.recv_bytes() == b"{}"
    other.close()
    connection.close()


def test_processes_that_do_not_come_are_not_waited_for_forever() -> None:
    program = (
        "import time\n"
        "from dml_jax.train.distributed import process_group\n"
        "process_group.START_PATIENCE = 0.5\n"
        "with process_group._limited('host:1'): time.sleep(100)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 75
    assert done.stderr.startswith(
        "error: --coordinator=host:1: not all processes have connected within 0 s; start all with"
    )


def test_what_the_first_process_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_group.decided_by_first(lambda: ["é", 1.5, None]) == ["é", 1.5, None]
    monkeypatch.setattr(process_group.jax, "process_count", lambda: 2)
    told: list[np.ndarray] = []

    def broadcast(sent: np.ndarray) -> np.ndarray:
        told.append(sent)
        return told[0]

    monkeypatch.setattr(process_group.multihost_utils, "broadcast_one_to_all", broadcast)
    assert process_group.decided_by_first(lambda: 20) == 20
    monkeypatch.setattr(process_group.jax, "process_index", lambda: 1)
    assert process_group.decided_by_first(lambda: signal.SIGTERM) == 20
    assert told[0].shape == told[1].shape


def test_the_second_signal_stops_immediately() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.agreed() == signal.SIGTERM
        with pytest.raises(Interrupted) as interrupted:
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.value.code == 130
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_stops_immediately_when_there_is_nothing_to_save() -> None:
    with Stop() as stop:
        stop.stop_immediately()
        with pytest.raises(Interrupted) as interrupted:
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupted.value.code == 143
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            stop.stop_immediately()


def test_processes_agree_at_the_next_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other of two processes receives SIGTERM before the second poll."""
    assert int(stop_signals.largest(signal.SIGTERM)) == signal.SIGTERM
    of_other = iter([0, signal.SIGTERM, signal.SIGTERM, signal.SIGTERM])
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(stop_signals, "largest", lambda value: np.int32(max(value, next(of_other))))
    stop = Stop()
    assert [stop.poll() for _ in range(3)] == [0, 0, signal.SIGTERM]
    with pytest.raises(Interrupted):
        stop.raise_if_stopped()
