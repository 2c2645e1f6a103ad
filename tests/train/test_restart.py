"""A run that is restarted on fewer devices continues from the same bits."""

from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from dml_jax.train import experiment
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.experiment import Experiment
from dml_jax.train.step import TrainState, fingerprint
from tests.train.experiments import small


def drawn(run: Experiment) -> TrainState:
    """A state of random numbers, on the devices of the run."""
    rng = np.random.default_rng(0)
    shapes = run.template()
    values = jax.tree.map(lambda x: rng.standard_normal(x.shape).astype(x.dtype), shapes)
    return meshes.place(run.mesh, values, run.method.hooks.class_axis)


def updated(run: Experiment, state: TrainState) -> TrainState:
    start = int(state.step)
    with run.batches(start, start + 1) as batches:
        batch = run.device_batch(*next(batches))
    return run.jitted_step()(state, batch, run.key)[0]


@pytest.mark.parametrize(
    ("shard_classes", "training"),
    [(True, False), *(pytest.param(spread, True, marks=pytest.mark.slow) for spread in (False, True))],
)
def test_eight_two_and_one_device(
    shard_classes: bool, training: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: TrainState | None = None
    for count in (8, 2, 1):
        mesh = jax.make_mesh((count,), (meshes.AXIS,), (AxisType.Auto,), devices=jax.devices()[:count])
        monkeypatch.setattr(meshes, "make", lambda mesh=mesh: mesh)
        run = experiment.build(small(steps=3, shard_classes=shard_classes))
        store = Checkpoints(tmp_path, lambda run=run: run.template(), None, run={})
        found = store.restore()
        if saved is None:
            assert found is None
            state = run.initial_state() if training else drawn(run)
        else:
            assert found is not None
            state = found[0]
            assert fingerprint(state) == fingerprint(saved)
        for leaf in jax.tree.leaves(state):
            assert leaf.sharding.device_set == set(mesh.devices.flat)
        means = state.params["distributions"]["means"]
        assert means.addressable_shards[0].data.size == means.size // (count if shard_classes else 1)
        saved = updated(run, state) if training else state._replace(step=state.step + 1)
        store.save("latest", saved, {})
        store.close()
