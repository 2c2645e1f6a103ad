"""A run that is restarted on fewer devices."""

from pathlib import Path

import jax
import pytest
from jax.sharding import AxisType

from dml_jax.train import experiment as experiments
from dml_jax.train import warm_start
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import device_mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.step import TrainState, digest
from tests.train.experiments import drawn, small


def updated(run: Experiment, state: TrainState) -> TrainState:
    start = int(state.step)
    with run.batches(start, start + 1) as batches:
        batch = run.device_batch(*next(batches))
    leaves, structure = jax.tree.flatten(state)
    return jax.tree.unflatten(structure, run.jitted_step(state)(leaves, batch, run.key)[0])


@pytest.mark.parametrize("training", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_eight_two_and_one_device(training: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: TrainState | None = None
    for count in (8, 2, 1):
        mesh = jax.make_mesh((count,), (device_mesh.AXIS,), (AxisType.Auto,), devices=jax.devices()[:count])
        monkeypatch.setattr(device_mesh, "make", lambda mesh=mesh: mesh)
        run = experiments.build(small(steps=3))
        store = Checkpoints(tmp_path, lambda run=run: run.template(), None, run={})
        found = store.restore()
        if saved is None:
            assert found is None
            random = device_mesh.place(mesh, drawn(run.template()))
            state = warm_start.initial_state(run) if training else random
        else:
            state = found[0]
            assert digest(state) == digest(saved)
        for leaf in jax.tree.leaves(state):
            assert leaf.sharding.device_set == set(mesh.devices.flat)
            assert leaf.is_fully_replicated
        saved = updated(run, state) if training else state._replace(step=state.step + 1)
        store.save("latest", saved, {})
        store.close()
