"""The connections of processes, and what they compare and decide."""

import signal
import subprocess
import sys
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from typing import Any

import numpy as np
import pytest

from dml_jax.train.distributed import process_group


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
