"""What a method recomputes from all training images: when, from what, and bit-exact across every interruption."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from dml_jax import config as configs
from dml_jax.config import Group
from dml_jax.methods import diva
from dml_jax.methods.diva import self_supervision
from dml_jax.train import experiment as experiments
from dml_jax.train import loop
from dml_jax.train.distributed.stop_signals import Interrupted, Stop
from dml_jax.train.experiment import Experiment
from tests.train import test_loop
from tests.train.experiments import values
from tests.train.test_loop import StopAt, compiled_once  # noqa: F401 (a fixture: every restart compiles the same)


class DuringRefresh(StopAt):
    """SIGTERM after a number of steps that the loop does not notice between steps, only during a refresh."""

    def agreed(self) -> int:
        super().agreed()
        return 0


@pytest.fixture(scope="module")
def experiment() -> Iterator[Experiment]:
    """DeepCluster on four classes of the digits: epochs of 11 steps of 64 images, with a clustering in each."""
    given: dict[str, Any] = values(steps=24, log_every=4, checkpoint_every=5)
    given["data"] |= {"batch_size": 64, "images_per_class": 16, "validation_share": 0.9}
    given["method"] = asdict(
        diva.Config(
            tasks=("discriminative", "selfsimilarity"), selfsimilarity="deepcluster", embedding_dim=3,
            directions=(),
        )
    )  # fmt: skip
    given["train"]["groups"] = {name: asdict(Group(1e-2)) for name in (*diva.GROUPS, "classifier")}
    with mock.patch.multiple(self_supervision, CLUSTERS=6, CLUSTER_EPOCHS=1):
        yield experiments.build(configs.resolve(given))


def train(experiment: Experiment, directory: Path, stop: Stop | None = None) -> tuple[list[bytes], str]:
    """The bytes of the final state and the lines of metrics."""
    state = test_loop.train(experiment, directory, stop)
    return test_loop.bits(state), (directory / "metrics.jsonl").read_text()


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
    """Stopped right before, after and during a clustering; killed after one."""
    seen: list[np.ndarray] = []

    def watched(params: Any, state: Any, features: np.ndarray, key: jax.Array) -> Any:
        assert features.shape == (len(experiment.splits["train"].labels), 4)
        updated = experiment.method.hooks.refresh.update(params, state, features, key)
        assert not np.array_equal(updated[0]["classifier"]["kernel"], params["classifier"]["kernel"])
        seen.append(np.asarray(updated[1]["clusters"]))
        return updated

    hooks = experiment.method.hooks
    watched_hooks = hooks._replace(refresh=hooks.refresh._replace(update=watched))
    watching = experiment._replace(method=experiment.method._replace(hooks=watched_hooks))
    whole = train(watching, tmp_path / "whole")
    assert len(seen) == len(loop.refresh_steps(hooks.refresh, experiment.sampler, experiment.steps))
    assert all(len(np.unique(labels)) > 2 for labels in seen)
    assert not np.array_equal(seen[0], seen[1])

    second = experiment.sampler.first_step(1)
    for k in (second, second + 1):
        with pytest.raises(Interrupted):
            train(experiment, tmp_path / f"{k}", StopAt(k))
        assert train(experiment, tmp_path / f"{k}") == whole, k

    with pytest.raises(Interrupted):
        train(experiment, tmp_path / "during", DuringRefresh(second))
    assert (tmp_path / "during" / "checkpoints" / "latest" / str(second)).exists()
    assert train(experiment, tmp_path / "during") == whole

    train(experiment, tmp_path / "killed")
    for kept in (tmp_path / "killed" / "checkpoints" / "latest").iterdir():
        if int(kept.name) > 20:  # the second of two clusterings came after the checkpoint of step 20
            kept.rename(tmp_path / kept.name)
    assert train(experiment, tmp_path / "killed") == whole
