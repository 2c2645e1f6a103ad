"""For the tests of training: two devices, and runs write no report, whose figures take longer than such a run."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from dml_jax.analysis import run_report
from dml_jax.backbones import resnet
from dml_jax.data.formats import digits
from dml_jax.train.distributed import device_mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.step import TrainState
from tests import toys


@pytest.fixture(scope="module", autouse=True)
def fewer_devices(request: pytest.FixtureRequest) -> Iterator[None]:
    """Programs for two devices compile and start faster than for eight, which a module asks for by `DEVICES`."""
    devices = np.asarray(jax.devices()[: getattr(request.module, "DEVICES", 2)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_mesh, "make", lambda: Mesh(devices, (device_mesh.AXIS,), axis_types=(AxisType.Auto,)))
        yield


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_report, "write", lambda run, results: None)


@pytest.fixture(scope="module")
def few_images() -> Iterator[None]:
    """Every eighth digit, so that twenty per class remain."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "load", toys.few_digits(8))
        yield


@pytest.fixture(scope="module")
def patches() -> Iterator[None]:
    """`toys.backbone` in place of every ResNet, which takes longer to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resnet, "build", lambda config: toys.backbone(4))
        yield


@pytest.fixture(scope="module")
def compiled_once() -> Iterator[None]:
    """Restarts of an experiment share the training step."""
    made: dict[Any, Any] = {}
    build = Experiment.jitted_step

    def shared(experiment: Experiment, like: TrainState) -> Any:
        parts = experiment.method, experiment.optimizer, experiment.augment, experiment.mesh
        if parts not in made:
            made[parts] = build(experiment, like)
        return made[parts]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Experiment, "jitted_step", shared)
        yield
