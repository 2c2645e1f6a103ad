"""Models kept for analyses: exact round trip, damage."""

from dataclasses import asdict, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.errors import CheckpointError
from dml_jax.train.records import kept_models
from dml_jax.train.step import TrainState
from tests.train.experiments import small

RUN = {"config": asdict(small(steps=5)), "data_hash": "x"}


def state(step: int) -> TrainState:
    rng = np.random.default_rng(step)
    return TrainState(
        jnp.asarray(step, jnp.int32),
        {"w": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32), "empty": jnp.zeros((0, 4))},
        {"seen": jnp.asarray(step, jnp.int32), "neck": {}},
        {"moments": jnp.ones(100)},
    )


def test_round_trip(tmp_path: Path) -> None:
    for step in (20, 3):
        kept_models.write(tmp_path / "kept", state(step), RUN)
    (tmp_path / "kept" / f"{2**31}.safetensors").touch()  # a step is an int32
    assert kept_models.steps(tmp_path / "kept") == [3, 20]
    found, original = kept_models.read(tmp_path / "kept", 20, state(0), RUN), state(20)
    assert int(found.step) == 20
    assert found.opt_state == ()
    both = (found.params, found.model_state), (original.params, original.model_state)
    assert jax.tree.structure(both[0]) == jax.tree.structure(both[1])
    for a, b in zip(*(jax.tree.leaves(tree) for tree in both), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    kept_models.drop_newer(tmp_path / "kept", 3)
    assert kept_models.steps(tmp_path / "kept") == [3]
    assert kept_models.steps(tmp_path / "nothing") == []


def test_damage_and_other_models_are_named(tmp_path: Path) -> None:
    kept_models.write(tmp_path, state(5), RUN)
    with pytest.raises(
        CheckpointError, match=r"5.safetensors: belongs to a run of another .*: seed \(0 there, 7 here\)"
    ):
        kept_models.read(tmp_path, 5, state(0), {"config": asdict(replace(small(steps=5), seed=7))})
    file = tmp_path / "5.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 0x10
    file.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=r"5.safetensors: has changed since it was written"):
        kept_models.read(tmp_path, 5, state(0), RUN)
    file.write_bytes(content[:-30])
    with pytest.raises(CheckpointError, match=r"5.safetensors: is truncated or damaged"):
        kept_models.read(tmp_path, 5, state(0), RUN)
