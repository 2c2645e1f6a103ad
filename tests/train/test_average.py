"""The moving average of the model: its values, across interruptions, on several devices."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh

from dml_jax.methods import baseline
from dml_jax.train import loop, step
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.distributed.stop_signals import Interrupted
from dml_jax.train.embedding import Embedder
from dml_jax.train.experiment import Experiment
from dml_jax.train.step import TrainState, inference_state
from tests import toys
from tests.train.experiments import linear, on_patches
from tests.train.test_loop import StopAt, bits, checkpoints, compiled_once, train  # noqa: F401

RECALLS = {4: 0.5, 8: 0.6, 12: 0.6, 16: 0.5}  # validation Recall@1 by step


def floats(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]


def test_average_on_one_and_on_eight_devices() -> None:
    """Of parameters and batch statistics; whole numbers are the newest. With a memory, whose buffers are donated."""
    config = baseline.make_config("contrastive", embedding_dim=6, memory=32)
    method, optimizer = baseline.build(config, toys.backbone(), toys.training_set(4)), optax.sgd(0.1)
    mesh = Mesh(np.asarray(jax.devices()), (meshes.AXIS,), axis_types=(AxisType.Auto,))
    state = step.initial(method, optimizer, jax.random.key(0), toys.batch(1), 0.2)
    spread = meshes.replicate(mesh, jax.tree.map(jnp.copy, state))
    update = jax.jit(step.build(method, optimizer, ema=0.2), donate_argnums=0)
    expected: list[np.ndarray] = []
    for t in range(5):
        batch = toys.batch(1, seed=t)
        state, _ = update(state, batch, jax.random.key(1))
        rows = meshes.shard_batch(mesh, *(np.asarray(field) for field in batch[:3]))
        spread, _ = update(spread, rows, jax.random.key(1))
        newest = floats((state.params, state.model_state))
        kept = min(0.2, t / (t + 10))
        expected = [kept * a + (1 - kept) * x for a, x in zip(expected, newest, strict=True)] if t else newest
        if t == 0:
            assert [leaf.tobytes() for leaf in floats(state.average)] == [leaf.tobytes() for leaf in newest]
    model = inference_state(state)
    integers = [jnp.issubdtype(leaf.dtype, jnp.integer) for leaf in jax.tree.leaves(state.average)]
    for found, other, wanted, now, whole in zip(
        floats((model.params, model.model_state)), floats(spread.average), expected, newest, integers, strict=True
    ):
        np.testing.assert_allclose(found, now if whole else wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(other, found, rtol=1e-5, atol=1e-6)
    assert sum(integers) == 2  # labels of the memory, and how many it has seen


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    config = linear(
        steps=16, log_every=5, evaluate_every=4, checkpoint_every=7, select="validation", ema=0.5,
        clip_norm=1.0, linear_warmup=6, optimizer="sgd", data={"validation_share": 0.4},
    )  # fmt: skip
    return on_patches(config)


def test_the_average_is_evaluated_and_resumed_exactly(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, TrainState] = {}

    def embed(embedder: Any, state: TrainState, split: Any, on_progress: Any) -> Any:
        seen[int(state.step)] = jax.tree.map(np.asarray, state)
        return np.asarray(state.step)

    def metrics(options: Any, distance: str, split: Any, rows: Any, **_: bool) -> dict[str, float]:
        return {"recall@1": RECALLS[int(next(iter(rows.values())))], "map@r": 0.0}

    monkeypatch.setattr(Embedder, "embed_split", embed)
    monkeypatch.setattr(loop.evaluations, "metrics", metrics)
    monkeypatch.setattr(loop.evaluations, "of_training_classes", lambda *_: {})
    whole = bits(train(experiment, tmp_path / "whole"))
    lines = (tmp_path / "whole" / "metrics.jsonl").read_text()
    assert max(seen) == 16
    for state in seen.values():
        assert bits(state.params) == bits(state.average[0])
    store = checkpoints(experiment, tmp_path / "whole")
    assert (store.steps("latest")[-1], store.steps("best")[-1]) == (16, 8)
    assert bits(store.select("reported", "validation").params) == bits(seen[8].params)
    found = store.restore("best")
    store.close()
    assert found is not None
    assert bits(found[0].params) != bits(seen[8].params)

    with pytest.raises(Interrupted):
        train(experiment, tmp_path / "stopped", StopAt(13))
    assert bits(train(experiment, tmp_path / "stopped")) == whole
    assert (tmp_path / "stopped" / "metrics.jsonl").read_text() == lines
