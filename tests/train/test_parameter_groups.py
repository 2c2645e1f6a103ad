"""Parameter groups: by path, frozen."""

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
import pytest

from dml_jax import run
from dml_jax.config import Config, Group, Train, plugin_module, resolve
from dml_jax.console import Console
from dml_jax.errors import ConfigError
from dml_jax.methods import baseline
from dml_jax.methods.contract import Batch, Method, TrainingSet
from dml_jax.train import optimizers, parameter_groups, step
from dml_jax.train.method_wrappers import build_method
from dml_jax.train.step import TrainState
from tests import toys
from tests.papers import ROOT, modules
from tests.train.experiments import drawn, values

pytestmark = pytest.mark.usefixtures("patches")
PARAMS = {
    "backbone": {
        "conv1": {"kernel": 1.0},
        "layer1_0": {"conv1": {"kernel": 1.0}, "bn1": {"scale": 1.0}},
        "layer1_10": {"conv1": {"kernel": 1.0}},
        "layer2_0": {"conv1": {"kernel": 1.0}},
    },
    "embedding": {"kernel": 1.0},
}
RATES = {"all": 1.0, "backbone/*": 0.5, "backbone/layer1_*": 0.25, "backbone/layer1_0/bn1": 0.125}
FROZEN_PATH = "backbone/layer2_*"


def one_group() -> Method:
    def unused(*_: Any, **__: Any) -> Any:
        raise AssertionError

    return Method(unused, unused, unused, unused, groups=("all",), group=lambda path: "all")


def test_rates_by_path() -> None:
    """One step of SGD on gradients of 1 shows the rate of each parameter; the longest pattern that fits counts."""
    params = jax.tree.map(np.asarray, PARAMS)
    groups = {name: Group(rate) for name, rate in RATES.items()} | {FROZEN_PATH: Group(0.0, freeze=True)}
    made = parameter_groups.by_path(one_group(), groups)
    train = Train(groups=groups, steps=1, optimizer="sgd")
    optimizer = optimizers.build(train, made, lambda step: 1.0)
    updates, _ = jax.jit(lambda grads: optimizer.update(grads, optimizer.init(params), params))(PARAMS)
    expected = {
        "backbone": {
            "conv1": {"kernel": 0.5},
            "layer1_0": {"conv1": {"kernel": 0.25}, "bn1": {"scale": 0.125}},
            "layer1_10": {"conv1": {"kernel": 0.25}},
            "layer2_0": {"conv1": {"kernel": 0.0}},
        },
        "embedding": {"kernel": 1.0},
    }
    jax.tree.map(lambda a, b: np.testing.assert_allclose(-a, b, rtol=1e-6), updates, expected)
    parameter_groups.check(train.groups, made, params)


PROXIES = baseline.make_config("proxy_anchor", embedding_dim=8)


def drawn_state(method: Method, optimizer: optax.GradientTransformation, batch: Batch) -> TrainState:
    """The state before the first step with random parameters, and zeros elsewhere."""
    shapes = jax.eval_shape(partial(step.initial, method, optimizer), jax.random.key(0), batch)
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)._replace(params=drawn(shapes.params))


def encoded_twice(method: Method, state: TrainState, batch: Batch) -> tuple[Any, Any]:
    """Images encoded as in training and as in evaluations."""

    @jax.jit
    def both(params: Any, model_state: Any, images: jax.Array, key: jax.Array) -> tuple[Any, Any]:
        trained, _ = method.encode(params, model_state, images, train=True, key=key)
        return trained, method.encode(params, model_state, images, train=False)[0]

    return both(state.params, state.model_state, batch.images, jax.random.key(1))


def config_of(method: Any, frozen: tuple[str, ...]) -> Config:
    names = plugin_module("method", method.name).GROUPS
    groups = {name: asdict(Group(0.05, 0.1, freeze=name in frozen)) for name in names}
    given = values(steps=4) | {"method": asdict(method)}
    made = resolve(given | {"train": given["train"] | {"groups": groups}})
    return replace(made, backbone=replace(made.backbone, freeze_bn=False))


PAPERS = [paper.FROZEN for paper in modules(ROOT / "tests" / "contract") if hasattr(paper, "FROZEN")]


@pytest.mark.parametrize(
    ("method", "frozen", "owners"), [(PROXIES, ("embedding",), {}), (PROXIES, ("backbone", "loss"), {}), *PAPERS]
)
def test_nothing_of_a_frozen_group_changes(method: Any, frozen: tuple[str, ...], owners: dict[str, str]) -> None:
    """Two steps change all groups but the frozen ones."""
    config = config_of(method, frozen)
    method = build_method(config, TrainingSet(8, 64))
    optimizer = optimizers.build(config.train, method, lambda count: 1.0)
    batches = [toys.batch(method.hooks.views, seed=seed) for seed in range(2)]
    state = drawn_state(method, optimizer, batches[0])
    if method.hooks.fill:
        filled = method.hooks.fill(state.params, state.model_state, iter(batches))
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
            group = owners.get(keys[0]) or method.group(keys)
            moved[group] = moved.get(group, False) or not np.array_equal(before, now)
    assert {group for group, changed in moved.items() if not changed} == set(frozen), moved


def test_gradient_of_frozen_groups() -> None:
    """It is zero, so that XLA leaves its computation out, and the others' is as without frozen groups."""
    frozen = ("embedding",)

    def gradient(groups: tuple[str, ...]) -> tuple[Method, Any]:
        method = build_method(config_of(PROXIES, groups), TrainingSet(8, 64))
        batch = toys.batch(method.hooks.views)
        state = drawn_state(method, optax.sgd(1.0), batch)
        differentiated = jax.jit(jax.grad(step.loss, 1, has_aux=True), static_argnums=0)
        found = differentiated(method, state.params, state.model_state, batch, state.step, jax.random.key(1))
        return method, jax.tree_util.tree_leaves_with_path(jax.device_get(found[0]))

    (method, whole), (_, part) = gradient(()), gradient(frozen)
    for (path, before), (_, after) in zip(whole, part, strict=True):
        left_out = method.group(tuple(entry.key for entry in path)) in frozen
        np.testing.assert_allclose(after, 0 * before if left_out else before, rtol=1e-5, atol=1e-8)
        assert np.any(before)


def test_a_frozen_backbone_gives_the_features_of_evaluations() -> None:
    method = build_method(config_of(PROXIES, ("backbone",)), TrainingSet(8, 64))
    batch = toys.batch(method.hooks.views)
    state = drawn_state(method, optax.sgd(1.0), batch)
    statistics = jax.tree.map(lambda leaf: leaf + np.float32(0.5), state.model_state["backbone"])
    state = state._replace(model_state=state.model_state | {"backbone": statistics})
    training, evaluated = encoded_twice(method, state, batch)
    np.testing.assert_allclose(training, evaluated, rtol=1e-5)


def vit_values(**groups: Any) -> dict[str, Any]:
    """A vision transformer of two narrow blocks with proxies, and batch statistics in no layer."""
    given = values(steps=3)
    given["backbone"] = {"name": "vit", "depth": 2, "width": 8, "heads": 2, "patch": 4}
    given["method"] = asdict(baseline.make_config("proxy_anchor", embedding_dim=6))
    given["train"]["groups"] = {name: asdict(Group(1e-2)) for name in baseline.GROUPS} | {
        name: asdict(group) for name, group in groups.items()
    }
    return given


FROZEN = {"backbone": Group(0.0, freeze=True)}
LAYERS = {"backbone/blocks_*/attn/qkv": Group(1e-2, weight_decay=0.1)}


@pytest.mark.parametrize(("groups", "random"), [(FROZEN, False), (FROZEN | LAYERS, True)])
def test_stochastic_depth_where_parts_are_trained(groups: dict[str, Group], random: bool) -> None:
    config = resolve(vit_values(**groups))
    config = replace(config, backbone=replace(config.backbone, drop_path=0.9))
    method, batch = build_method(config, TrainingSet(8, 64)), toys.batch(1)
    trained, evaluated = encoded_twice(method, drawn_state(method, optax.sgd(1.0), batch), batch)
    assert np.allclose(trained, evaluated, atol=1e-6) != random


def test_layers_that_do_not_exist() -> None:
    given = vit_values(**{"backbone/blocks_*/atn/qkv": Group(1e-2)})
    message = r"blocks_\*/atn/qkv: matches no .* did you mean backbone/blocks_[01]/attn/qkv"
    with pytest.raises(ConfigError, match=message):
        run.check(resolve(given), Console(active=False))
