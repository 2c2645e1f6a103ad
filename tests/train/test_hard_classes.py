"""Classes that the model confuses, drawn together: found by brute force, and bit-exact across interruptions."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from dml_jax.errors import ConfigError
from dml_jax.train import experiment as experiments
from dml_jax.train import on_devices
from dml_jax.train.distributed.stop_signals import Interrupted
from dml_jax.train.experiment import Experiment
from dml_jax.train.variants import hard_classes
from tests.train import test_loop
from tests.train.experiments import linear, on_patches
from tests.train.test_loop import StopAt, compiled_once  # noqa: F401 (a fixture: every restart compiles the same)
from tests.train.test_training_set_refresh import DuringRefresh


def test_nearest_classes_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(7), [1, 2, 3, 4, 5, 6, 9]))
    rows = rng.normal(size=(30, 5)).astype(np.float32)
    means = np.array([rows[labels == c].astype(float).mean(0) for c in range(7)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    cosines = means @ means.T - 9 * np.eye(7)
    np.testing.assert_array_equal(hard_classes.nearest_classes(rows, labels, 4), np.argsort(-cosines, axis=1)[:, :4])


def build(devices: int = 1) -> Experiment:
    """Batches of two of four classes of digits, where a class comes with its nearest; epochs of two steps."""
    data = {"sampler": "hard_classes", "hard_classes": 1, "batch_size": 256, "images_per_class": 128}
    data |= {"validation_share": 0.9}
    experiment = on_patches(linear(data=data, steps=4, log_every=1, checkpoint_every=3))
    mesh = Mesh(np.asarray(jax.devices()[:devices]), ("data",))
    images = experiments.training_set(experiment.splits["train"])
    return experiment._replace(mesh=mesh, method=hard_classes.mined(experiment.method, experiment.config.data, images))


@pytest.mark.slow
def test_resume_is_exact_and_devices_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before, after and during the second refresh, which changes what is drawn."""
    experiment = build()
    second = experiment.sampler.first_step(1)
    assert second == 2
    drawn: list[list[int]] = []
    original = on_devices.device_batch

    def watched(experiment, images, labels, index):  # type: ignore[no-untyped-def]
        drawn.append(index.tolist())
        return original(experiment, images, labels, index)

    monkeypatch.setattr(on_devices, "device_batch", watched)
    state = test_loop.train(experiment, tmp_path / "whole")
    whole, metrics = test_loop.bits(state), (tmp_path / "whole" / "metrics.jsonl").read_text()
    table = np.asarray(state.model_state[hard_classes.NEAREST])
    labels, batches = experiment.splits["train"].labels, list(drawn)
    assert experiment.sampler.mined is not None
    for step in range(second, 4):
        assert batches[step] == experiment.sampler.mined(table)(step).tolist()
        first, other = labels[batches[step]].reshape(2, -1)[:, 0]
        assert other == table[first, 0]

    for k, stop in ((second, StopAt(second)), (second + 1, StopAt(second + 1)), (9, DuringRefresh(second))):
        with pytest.raises(Interrupted):
            test_loop.train(experiment, tmp_path / f"{k}", stop)
        assert test_loop.bits(test_loop.train(experiment, tmp_path / f"{k}")) == whole, k
        assert (tmp_path / f"{k}" / "metrics.jsonl").read_text() == metrics

    drawn.clear()
    many = test_loop.train(build(8), tmp_path / "many")
    assert drawn == batches
    np.testing.assert_array_equal(many.model_state[hard_classes.NEAREST], table)


def test_what_does_not_go_together() -> None:
    experiment = build()
    with pytest.raises(ConfigError, match="the method has a refresh of its own"):
        hard_classes.mined(
            experiment.method, experiment.config.data, experiments.training_set(experiment.splits["train"])
        )
    frozen = replace(experiment.config, train=replace(experiment.config.train, feature_views=1))
    with pytest.raises(ConfigError, match="needs images"):
        experiments.build_method(frozen, experiments.training_set(experiment.splits["train"]))
