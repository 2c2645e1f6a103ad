"""A run that is restarted on fewer devices."""

from pathlib import Path

import jax
import pytest
from jax.sharding import AxisType

from dml_jax.train import experiment as experiments
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import device_mesh
from dml_jax.train.step import TrainState, digest
from tests.train.experiments import drawn, small


def test_eight_two_and_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: TrainState | None = None
    for count in (8, 2, 1):
        mesh = jax.make_mesh((count,), (device_mesh.AXIS,), (AxisType.Auto,), devices=jax.devices()[:count])
        monkeypatch.setattr(device_mesh, "make", lambda mesh=mesh: mesh)
        run = experiments.build(small(steps=3))
        store = Checkpoints(tmp_path, lambda run=run: run.template(), None, run={})
        found = store.restore()
        if saved is None:
            assert found is None
            state = device_mesh.place(mesh, drawn(run.template()))
        else:
            state = found[0]
            assert digest(state) == digest(saved)
        for leaf in jax.tree.leaves(state):
            assert leaf.sharding.device_set == set(mesh.devices.flat)
            assert leaf.is_fully_replicated
        saved = state._replace(step=state.step + 1)
        store.save("latest", saved, {})
        store.close()
