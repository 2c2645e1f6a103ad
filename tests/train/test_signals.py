"""Signals: the first is remembered, the second acts; once everything is saved the first acts."""

import os
import signal
import subprocess
import sys

import pytest

from dml_jax.train.signals import Interrupted, Stop


def test_the_second_signal_acts_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.agreed() == signal.SIGTERM
        with pytest.raises(Interrupted) as interrupted:
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.value.code == 130
    assert signal.getsignal(signal.SIGTERM) is before


def test_nothing_is_waited_for_once_all_is_saved() -> None:
    with Stop() as stop:
        stop.at_once()
        with pytest.raises(Interrupted) as interrupted:
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupted.value.code == 143
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            stop.at_once()


def test_a_signal_whose_exception_is_swallowed_ends_the_process_all_the_same() -> None:
    code = """
import os, signal, time
from dml_jax.train import signals
signals.GRACE = 0.1
class Swallowing:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
with signals.Stop() as stop:
    stop.at_once()
    Swallowing()
    time.sleep(60)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=50).returncode == 143
