"""The first signal is recorded and the second stops the process; once there is nothing to save, the first does."""

import os
import signal

import jax
import numpy as np
import pytest

from dml_jax.train.distributed import stop_signals
from dml_jax.train.distributed.stop_signals import Interrupted, Stop


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
