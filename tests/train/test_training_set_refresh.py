"""What a method recomputes from all training images: when, from what, and bit-exact across every interruption."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.methods.contract import Batch, Method, Refresh
from dml_jax.train import loop
from dml_jax.train.distributed.stop_signals import Interrupted, Stop
from dml_jax.train.experiment import Experiment
from tests.train import loops
from tests.train.experiments import on_patches, small
from tests.train.loops import StopAt

pytestmark = pytest.mark.usefixtures("compiled_once")


class DuringRefresh(StopAt):
    """SIGTERM after a number of steps that the loop does not notice between steps, only during a refresh."""

    def agreed(self) -> int:
        super().agreed()
        return 0


# Epochs of 11 steps of 64 images of four classes of the digits, with a refresh in each.
DATA = {"batch_size": 64, "images_per_class": 16, "validation_share": 0.9}
TRAIN = {"steps": 24, "log_every": 4, "checkpoint_every": 5}


def refreshed(method: Method, images: int) -> Method:
    """A baseline that draws its proxies again around the mean embedding, and notes the order of the training images."""

    def init(key: jax.Array, batch: Batch) -> Any:
        params, model_state = method.init(key, batch)
        return params, model_state | {"clusters": jnp.zeros(images, jnp.int32)}

    def update(params: Any, model_state: Any, features: np.ndarray, key: jax.Array) -> Any:
        noise = jax.random.normal(key, params["loss"]["proxies"].shape)
        clusters = np.argsort(features[:, 0]).astype(np.int32)
        return params | {"loss": {"proxies": features.mean(axis=0)[None] + noise}}, model_state | {"clusters": clusters}

    return method._replace(init=init, hooks=method.hooks._replace(refresh=Refresh(1, method.embed, update)))


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    made = on_patches(small(data=DATA, **TRAIN))
    return made._replace(method=refreshed(made.method, len(made.splits["train"].labels)))


def train(experiment: Experiment, directory: Path, stop: Stop | None = None) -> tuple[list[bytes], str]:
    """The bytes of the final state and the lines of metrics."""
    state = loops.train(experiment, directory, stop)
    return loops.bits(state), (directory / "metrics.jsonl").read_text()


def test_due_at_epochs(experiment: Experiment) -> None:
    starts = [experiment.sampler.first_step(epoch) for epoch in range(4)]
    due = partial(loop.refresh_steps, sampler=experiment.sampler, steps=24)
    refresh = experiment.method.hooks.refresh
    assert due(refresh) == {start for start in starts if start < 24}
    assert 0 < starts[1] < starts[2] < 24
    assert due(refresh._replace(epochs=2)) == {0, starts[2]}
    assert due(None) == frozenset()


@pytest.mark.slow
def test_resume_is_exact(experiment: Experiment, tmp_path: Path) -> None:
    """Stopped right before, after and during a refresh; killed after one."""
    seen: list[np.ndarray] = []
    hooks = experiment.method.hooks

    def watched(params: Any, state: Any, features: np.ndarray, key: jax.Array) -> Any:
        assert features.shape == (len(experiment.splits["train"].labels), 8)
        updated = hooks.refresh.update(params, state, features, key)
        assert not np.array_equal(updated[0]["loss"]["proxies"], params["loss"]["proxies"])
        seen.append(np.asarray(updated[1]["clusters"]))
        return updated

    watching = hooks._replace(refresh=hooks.refresh._replace(update=watched))
    whole = train(experiment._replace(method=experiment.method._replace(hooks=watching)), tmp_path / "whole")
    assert len(seen) == len(loop.refresh_steps(hooks.refresh, experiment.sampler, experiment.steps))
    assert not np.array_equal(seen[0], seen[1])

    second = experiment.sampler.first_step(1)
    stops = {"before": StopAt(second), "after": StopAt(second + 1), "during": DuringRefresh(second)}
    for name, stop in stops.items():
        with pytest.raises(Interrupted):
            train(experiment, tmp_path / name, stop)
        assert (tmp_path / name / "checkpoints" / "latest" / str(second + (name == "after"))).exists()
        assert train(experiment, tmp_path / name) == whole, name

    train(experiment, tmp_path / "killed")
    for kept in (tmp_path / "killed" / "checkpoints" / "latest").iterdir():
        if int(kept.name) > 20:  # the second of two refreshes came after the checkpoint of step 20
            kept.rename(tmp_path / kept.name)
    assert train(experiment, tmp_path / "killed") == whole
