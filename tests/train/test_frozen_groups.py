"""Frozen groups: parameters and batch statistics stay as they are, bit for bit."""

from dataclasses import asdict, replace
from typing import Any

import jax
import numpy as np
import pytest

from dml_jax import config as configs
from dml_jax import run
from dml_jax.config import Config, Group
from dml_jax.console import Console
from dml_jax.errors import ConfigError
from dml_jax.methods import diva, hist, mpn
from dml_jax.methods.contract import TrainingSet
from dml_jax.train import optimizers, step
from dml_jax.train.model import build_method
from tests import toys
from tests.train.experiments import small, values

METHODS = {
    "hist": hist.Config(embedding_dim=8, hidden_dim=8),
    "mpn": mpn.Config(embedding_dim=8, heads=2),
    "diva": diva.Config(embedding_dim=8, queue_batches=2, psi_dim=8),
}


def config_of(name: str, frozen: tuple[str, ...]) -> Config:
    groups = {group: Group(0.05, 0.1, freeze=group in frozen) for group in configs.module("method", name).GROUPS}
    given = values(steps=4) | {"method": asdict(METHODS[name])}
    made = configs.resolve(given | {"train": given["train"] | {"groups": {n: asdict(g) for n, g in groups.items()}}})
    return replace(made, backbone=replace(made.backbone, freeze_bn=False))


@pytest.mark.parametrize(
    ("name", "frozen"),
    [("hist", ("backbone",)), ("hist", ("hgnn", "embedding")), ("mpn", ("backbone", "mpn")), ("diva", ("model",))],
)
def test_nothing_of_a_frozen_group_changes(name: str, frozen: tuple[str, ...]) -> None:
    config = config_of(name, frozen)
    method = build_method(config, TrainingSet(8, 64))
    optimizer = optimizers.build(config.train, method, lambda count: 1.0)
    batches = [toys.batch(method.hooks.views, seed=seed) for seed in range(3)]
    state = step.initial(method, optimizer, jax.random.key(0), batches[0])
    if method.hooks.fill:
        filled = method.hooks.fill(state.params, state.model_state, iter(batches[:2]))
        state = state._replace(model_state=filled)
    update = jax.jit(step.build(method, optimizer))
    after = state
    for batch in batches:
        after, _ = update(after, batch, jax.random.key(1))
    moved: dict[str, bool] = {}
    for part in ("params", "model_state"):
        old = jax.tree_util.tree_leaves_with_path(getattr(state, part))
        for (path, before), now in zip(old, jax.tree.leaves(getattr(after, part)), strict=True):
            keys = tuple(entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey))
            if keys[0] in method.hooks.history:
                continue
            # Of the states, MPN names its batch statistics by the network's part.
            group = "mpn" if keys[0] == "neck" else method.group(keys)
            moved[group] = moved.get(group, False) or not np.array_equal(before, now)
    assert {group for group, changed in moved.items() if not changed} == set(frozen), moved


def test_a_frozen_backbone_gives_the_features_of_evaluations() -> None:
    method = build_method(config_of("hist", ("backbone",)), TrainingSet(8, 64))
    batch = toys.batch(method.hooks.views)
    params, state = jax.jit(method.init)(jax.random.key(0), batch)
    state["backbone"] = jax.tree.map(lambda leaf: leaf + 0.5, state["backbone"])
    training, _ = method.encode(params, state, batch.images, train=True, key=jax.random.key(1))
    evaluated, _ = method.encode(params, state, batch.images, train=False)
    np.testing.assert_allclose(training, evaluated, rtol=1e-5)


@pytest.mark.parametrize("how", [{"freeze": True}, {"learning_rate": 0.0}])
def test_nothing_to_train_is_an_error(how: dict[str, Any]) -> None:
    config = small(steps=2)
    groups = {name: replace(group, **how) for name, group in config.train.groups.items()}
    nothing = replace(config, train=replace(config.train, groups=groups))
    with pytest.raises(ConfigError, match=r"train\.groups: .*nothing is trained; "):
        run.check(nothing, Console(active=False))
