"""The self-supervised tasks of Figure 4: losses compared with NumPy, and tiny runs."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.papers import diva as tasks
from dml_jax import run as runs
from dml_jax.config import Group, Train, resolve
from dml_jax.console import Console
from dml_jax.errors import ConfigError
from dml_jax.evaluation import kmeans
from dml_jax.methods import diva
from dml_jax.methods.contract import TrainingSet
from dml_jax.train import step
from dml_jax.train.distributed.stop_signals import Stop
from tests import toys
from tests.train.experiments import values

T = 0.1


def units(seed: int, *shape: int) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.usefixtures("x64")
def test_instance_discrimination() -> None:
    x, memory, index = units(0, 5, 4), units(1, 9, 4), np.array([3, 0, 8, 3, 5])
    logits = np.exp(x @ memory.T / T)
    expected = -np.log(logits[np.arange(5), index] / logits.sum(axis=1))
    found = jax.jit(tasks.instance_discrimination)(x, memory, index, T)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.usefixtures("x64")
def test_the_memory_keeps_the_last_sample_of_an_image() -> None:
    x, memory, index = units(0, 5, 4), units(1, 9, 4), np.array([3, 0, 8, 3, 5])
    expected = memory.copy()
    for row, i in zip(x, index, strict=True):
        moved = 0.3 * memory[i] + 0.7 * row
        expected[i] = moved / np.linalg.norm(moved)
    found = jax.jit(tasks.update_memory)(memory, x, index, 0.3)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def spread_by_hand(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Losses of 2B views; the columns are a separate argument because gradients flow through the rows only."""
    count = len(rows)
    losses = np.zeros(count)
    for i in range(count):
        others = [j for j in range(count) if j != i]
        e = {j: np.exp(rows[i] @ columns[j] / T) for j in others}
        p = {j: e[j] / sum(e.values()) for j in others}
        positive = (i + count // 2) % count
        losses[i] = -np.log(p[positive]) - sum(np.log(1 - p[j]) for j in others if j != positive)
    return losses


@pytest.mark.usefixtures("x64")
def test_spread() -> None:
    views = units(0, 10, 4)
    found = jax.jit(tasks.spread)(views[:5], views[5:], T)
    np.testing.assert_allclose(found, spread_by_hand(views, views), rtol=1e-10)
    gradient = jax.jit(jax.grad(lambda x: tasks.spread(x[:5], x[5:], T).mean()))(views)
    direction, h = np.random.default_rng(9).normal(size=views.shape), 1e-5
    ahead, behind = (spread_by_hand(views + shift * direction, views).mean() for shift in (h, -h))
    np.testing.assert_allclose(np.sum(gradient * direction), (ahead - behind) / (2 * h), rtol=1e-6)


def test_rotate() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 3, 3)).astype(np.uint8)
    turns = np.array([2, 0, 3, 1, 1])
    found = tasks.rotate(jnp.asarray(images), jnp.asarray(turns))
    np.testing.assert_array_equal(found, [np.rot90(x, k) for x, k in zip(images, turns, strict=True)])


def test_clusters_of_principal_components(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clouds separated in two of seven dimensions are found, in any order."""
    rng = np.random.default_rng(0)
    centres = np.zeros((3, 7))
    centres[:, 2], centres[:, 5] = (0, 9, 0), (0, 0, 7)
    truth = np.arange(60) % 3
    features = (centres[truth] + rng.normal(size=(60, 7))).astype(np.float32)
    expected = np.linalg.svd(features - features.mean(axis=0), full_matrices=False)
    points = tasks.principal_components(features, 2)
    np.testing.assert_allclose(np.abs(points), np.abs(expected[0] * expected[1])[:, :2], rtol=1e-3, atol=1e-4)

    monkeypatch.setattr(tasks, "CLUSTERS", 3)
    config = tasks.Config(tasks=("discriminative", "deepcluster"), embedding_dim=2)
    before = ({"backbone": 1, "classifier": {"kernel": jnp.zeros((7, 3))}}, {"clusters": jnp.zeros(60, jnp.int32)})
    results = [tasks.recluster(*before, features, jax.random.key(seed), config) for seed in (0, 0, 1)]
    for params, state in results:
        assert state["clusters"].dtype == jnp.int32
        assert len({(a, b) for a, b in zip(truth, np.asarray(state["clusters"]), strict=True)}) == 3
        assert params["backbone"] == 1
    kernels = [np.asarray(params["classifier"]["kernel"]) for params, _ in results]
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert not np.array_equal(kernels[0], kernels[2])
    drawn = tasks.normal_inverse_fan_in(jax.random.key(0), (50, 400))
    np.testing.assert_allclose([drawn.mean(), drawn.std()], [0, 1 / 50], atol=5e-4)
    assert kmeans.fit(points, 3, init="random").assignments.shape == (60,)


def config(task: Any) -> tasks.Config:
    return tasks.Config(tasks=("discriminative", task), embedding_dim=6)


DATA = TrainingSet(classes=4, images=16)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["instance", "spread", "rotnet", "deepcluster"])
def test_a_tiny_run(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The term of the task is logged, and its head or classifier is trained."""
    monkeypatch.setattr(tasks, "CLUSTERS", 4)
    groups = (*diva.GROUPS, *(["classifier"] if task in tasks.CLASSIFIERS else []))
    train = Train(groups={group: Group(1e-2) for group in groups}, steps=3, log_every=1)
    given = {"name": "tiny", "method": asdict(config(task)), "train": asdict(train)}
    made = resolve(values(steps=3) | given)
    with Stop() as stop:
        runs.train(made, tmp_path, Console(quiet=True), stop)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(line["selfsimilarity"] > 0 for line in lines)
    dim = 6 if task in tasks.CLASSIFIERS else 12
    assert np.load(tmp_path / "embeddings" / "test" / "embeddings.npy").shape[1] == dim


def test_rotated_images_are_classified() -> None:
    """A classifier that finds the bright corner of rotated images has no loss; it would have on upright images."""
    corners = slice(None, None, toys.SIDE - 1)
    backbone = toys.backbone(4)._replace(
        init=lambda key, shape: ({}, {}),
        apply=lambda params, stats, inputs, **_: (inputs[:, corners, corners, 0].reshape(-1, 1, 1, 4), stats),
    )
    method = tasks.build(config("rotnet"), backbone, DATA)
    batch = toys.batch(1)
    corner = jnp.zeros_like(batch.images).at[:, :, 0, 0].set(255)  # top left; turned: bottom left, bottom right, …
    params, model_state = jax.jit(method.init)(jax.random.key(0), batch)
    kernel = 50.0 * jnp.eye(4)[jnp.array([0, 3, 1, 2])]  # corners top left, top right, bottom left, bottom right
    params["classifier"]["kernel"] = kernel
    loss = jax.jit(partial(step.loss, method))
    _, aux = loss(params, model_state, batch._replace(images=corner), jnp.zeros(()), jax.random.key(0))
    assert float(aux.metrics["selfsimilarity"]) < 1e-6


def test_requirements_on_the_data() -> None:
    method = tasks.build(config("rotnet"), toys.backbone(), DATA)
    batch = toys.batch(1)
    with pytest.raises(ConfigError, match=r"needs square images, but these are 6x8; set data\.crop"):
        method.init(jax.random.key(0), batch._replace(images=batch.images[:, :, :, :6]))
