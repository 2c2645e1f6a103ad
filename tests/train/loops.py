"""Runs of the training loop that are stopped after a number of steps, and what they leave."""

import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from dml_jax.console import Console
from dml_jax.train import loop
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import workdir
from dml_jax.train.step import TrainState


class StopAt(Stop):
    """SIGTERM after a number of steps."""

    def __init__(self, step: int):
        super().__init__()
        self.left = step

    def agreed(self) -> int:
        self.left -= 1
        if self.left == -1:
            self.signal = signal.SIGTERM
        return self.signal


def checkpoints(experiment: Experiment, directory: Path) -> Checkpoints:
    return Checkpoints(directory / "checkpoints", lambda: experiment.template(), pytest.fail, run={})


class Strict(Console):
    """A console without progress, on which a warning is a failure."""

    def __init__(self) -> None:
        super().__init__(quiet=True)

    def warn(self, message: str) -> None:
        pytest.fail(message)


def train(experiment: Experiment, directory: Path, stop: Stop | None = None) -> TrainState:
    directory.mkdir(exist_ok=True)
    return loop.train(experiment, directory, {}, Strict(), stop or Stop())


def saved(directory: Path, kind: str = "latest") -> list[int]:
    """The steps of the complete checkpoints of a run."""
    return [int(path.name) for path in workdir.complete_checkpoints(directory / "checkpoints" / kind)]


def bits(state: TrainState) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]
