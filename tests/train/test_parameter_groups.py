"""Parameter groups: by path, frozen, low-rank."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dml_jax import run
from dml_jax.config import Config, Group, Train, plugin_module, resolve
from dml_jax.console import Console
from dml_jax.errors import ConfigError
from dml_jax.methods import baseline
from dml_jax.methods.contract import Aux, Batch, Hooks, Method, Refresh, TrainingSet
from dml_jax.train import optimizers, parameter_groups, step
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.method_wrappers import build_method
from dml_jax.train.step import TrainState, digest
from tests import toys
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
    """One step of SGD on gradients of 1 shows the rate of each parameter; the longest pattern that
    fits counts."""
    params = jax.tree.map(np.asarray, PARAMS)
    groups = {name: Group(rate) for name, rate in RATES.items()} | {
        FROZEN_PATH: Group(0.0, freeze=True)
    }
    made = parameter_groups.by_path(one_group(), groups)
    train = Train(groups=groups, steps=1, optimizer="sgd")
    optimizer = optimizers.build(train, made, lambda step: 1.0)
    updates, _ = jax.jit(lambda grads: optimizer.update(grads, optimizer.init(params), params))(
        PARAMS
    )
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


def drawn_state(
    method: Method, optimizer: optax.GradientTransformation, batch: Batch
) -> TrainState:
    """The state before the first step with random parameters, and zeros elsewhere."""
    shapes = jax.eval_shape(partial(step.initial, method, optimizer), jax.random.key(0), batch)
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)._replace(
        params=drawn(shapes.params)
    )


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


def check_frozen(
    method: Any, frozen: tuple[str, ...], owners: Mapping[str, str] | None = None
) -> None:
    """Two steps change all groups but the frozen ones.

    Args:
      method: its configuration.
      frozen: names of groups.
      owners: of batch statistics that do not have the name of their group, by name.
    """
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
            group = (owners or {}).get(keys[0]) or method.group(keys)
            moved[group] = moved.get(group, False) or not np.array_equal(before, now)
    assert {group for group, changed in moved.items() if not changed} == set(frozen), moved


@pytest.mark.parametrize("frozen", [("embedding",), ("backbone", "loss")])
def test_nothing_of_a_frozen_group_changes(frozen: tuple[str, ...]) -> None:
    check_frozen(PROXIES, frozen)


def test_gradient_of_frozen_groups() -> None:
    """It is zero, so that XLA leaves its computation out, and the others' is as without frozen
    groups."""
    frozen = ("embedding",)

    def gradient(groups: tuple[str, ...]) -> tuple[Method, Any]:
        method = build_method(config_of(PROXIES, groups), TrainingSet(8, 64))
        batch = toys.batch(method.hooks.views)
        state = drawn_state(method, optax.sgd(1.0), batch)
        differentiated = jax.jit(jax.grad(step.loss, 1, has_aux=True), static_argnums=0)
        found = differentiated(
            method, state.params, state.model_state, batch, state.step, jax.random.key(1)
        )
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


RANK = 2
GROUPS = {"net": Group(0.1, rank=RANK), "rest": Group(0.1)}


def linear() -> Method:
    """sum (x W1 W2 + b - y)^2 / 2, with W2 a 1x1 convolution, on the numbers of the batch's
    images."""

    def init(key: jax.Array, batch: Batch) -> tuple[Any, Any]:
        keys = jax.random.split(key, 3)
        first, second = jax.random.normal(keys[0], (5, 4)), jax.random.normal(keys[1], (1, 1, 4, 3))
        net = {
            "dense": {"kernel": first},
            "conv": {"kernel": second, "bias": jnp.ones(3)},
            "depthwise": jnp.ones((3, 3, 1, 4)),
        }
        return {"net": net, "rest": {"kernel": jax.random.normal(keys[2], (3, 3))}}, {}

    def encode(
        params: Any, model_state: Any, images: jax.Array, *, train: bool, key: Any = None
    ) -> Any:
        net = params["net"]
        x = (
            images @ net["dense"]["kernel"] @ net["conv"]["kernel"][0, 0]
            + net["conv"]["bias"][None]
        )
        return x @ params["rest"]["kernel"], model_state

    def loss(
        params: Any, model_state: Any, encoded: Any, batch: Batch, count: jax.Array, key: jax.Array
    ) -> Any:
        return (encoded**2).sum() / 2, Aux(model_state, {})

    embed = lambda params, model_state, images: encode(params, model_state, images, train=False)[0]  # noqa: E731
    return Method(init, encode, loss, embed, groups=("net", "rest"), group=lambda path: path[0])


def test_values_and_gradients() -> None:
    """Against the products in NumPy, in float64, as peft's layers compute them: x W + (x A) B."""
    method = parameter_groups.updating(linear(), GROUPS)
    rng = np.random.default_rng(0)
    with jax.enable_x64():
        params, _ = jax.jit(method.init)(jax.random.key(0), toys.batch(1))
        np.testing.assert_array_equal(params["net"]["dense"]["kernel_lora"]["b"], 0)
        a = np.asarray(params["net"]["dense"]["kernel_lora"]["a"])
        assert np.abs(a).max() <= 5**-0.5
        assert len(np.unique(a)) == a.size
        assert set(params["net"]["conv"]) == {"kernel", "kernel_lora", "bias"}
        assert (set(params["rest"]), set(params["net"])) == (
            {"kernel"},
            {"dense", "conv", "depthwise"},
        )

        params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), params)
        x = rng.normal(size=(7, 5))
        batch = toys.batch(1)._replace(images=jnp.asarray(x))

        def objective(params: Any) -> Any:
            encoded, state = method.encode(params, {}, batch.images, train=True)
            return method.loss(
                params, state, encoded, batch, jnp.zeros((), int), jax.random.key(0)
            )[0]

        value, gradients = jax.jit(jax.value_and_grad(objective))(params)
        plain, embed = jax.jit(parameter_groups.merged)(params), jax.jit(method.embed)
        np.testing.assert_allclose(embed(plain, {}, x), embed(params, {}, x), rtol=1e-12)
        np.testing.assert_allclose(
            jax.jit(linear().embed)(plain, {}, x), embed(params, {}, x), rtol=1e-12
        )
        assert "stop_gradient" not in str(
            jax.make_jaxpr(method.embed)(plain, {}, x)
        )  # jax2onnx cannot convert it
        assert jax.tree.structure(plain) == jax.tree.structure(parameter_groups.split(params)[0])

    net, rest = jax.tree.map(np.asarray, (params["net"], params["rest"]["kernel"]))
    (a1, b1), (a2, b2) = (
        (net[n]["kernel_lora"]["a"], net[n]["kernel_lora"]["b"]) for n in ("dense", "conv")
    )
    w1, w2 = net["dense"]["kernel"], net["conv"]["kernel"][0, 0]
    hidden = x @ w1 + (x @ a1) @ b1
    before = hidden @ w2 + (hidden @ a2) @ b2 + net["conv"]["bias"]
    y = before @ rest
    np.testing.assert_allclose(value, (y**2).sum() / 2, rtol=1e-12)
    dy = y @ rest.T
    dh = dy @ (w2 + a2 @ b2).T
    expected = {
        "net": {
            "dense": {
                "kernel": np.zeros((5, 4)),
                "kernel_lora": {"a": x.T @ dh @ b1.T, "b": a1.T @ x.T @ dh},
            },
            "conv": {
                "kernel": np.zeros((1, 1, 4, 3)), "bias": np.zeros(3),
                "kernel_lora": {"a": hidden.T @ dy @ b2.T, "b": a2.T @ hidden.T @ dy},
            },
            "depthwise": np.zeros((3, 3, 1, 4)),
        },
        "rest": {"kernel": before.T @ y},
    }  # fmt: skip
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12),
        gradients,
        expected,
    )


def test_a_matrix_that_is_initialised_again_begins_without_an_update() -> None:
    def update(params: Any, model_state: Any, features: np.ndarray, key: jax.Array) -> Any:
        net = params["net"] | {"dense": {"kernel": jnp.ones((5, 4))}}
        return params | {"net": net}, model_state

    hooks = Hooks(refresh=Refresh(1, linear().embed, update))
    method = parameter_groups.updating(linear()._replace(hooks=hooks), GROUPS)
    params, _ = jax.device_get(jax.jit(method.init)(jax.random.key(0), toys.batch(1)))
    params["net"] = jax.tree.map(lambda leaf: leaf + np.float32(1.0), params["net"])
    after, _ = method.hooks.refresh.update(params, {}, np.zeros((1, 3)), jax.random.key(0))
    np.testing.assert_array_equal(
        jax.jit(parameter_groups.merged)(after)["net"]["dense"]["kernel"], 1
    )
    assert digest(after["net"]["conv"]) == digest(params["net"]["conv"])


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
LAYERS = {
    "backbone/blocks_*/attn/qkv": Group(1e-2, weight_decay=0.1, rank=2),
    "backbone/blocks_1/mlp_fc1": Group(1e-2, rank=1),
}


def test_only_the_factors_of_the_chosen_layers_change(tmp_path: Path) -> None:
    """Merged, the model embeds as before, and a checkpoint continues bit for bit."""
    config = resolve(vit_values(**FROZEN, **LAYERS))
    method = build_method(config, TrainingSet(8, 64))
    optimizer = optimizers.build(config.train, method, lambda count: 1.0)
    batch = toys.batch(1)
    state = drawn_state(method, optimizer, batch)
    update = jax.jit(step.build(method, optimizer))
    after, _ = update(state, batch, jax.random.key(1))
    changed = jax.tree.map(
        lambda a, b: not np.array_equal(a, b), state.params["backbone"], after.params["backbone"]
    )
    factors = {"kernel": False, "kernel_lora": {"a": True, "b": True}}
    for block in ("blocks_0", "blocks_1"):
        assert changed[block]["attn"]["qkv"] == factors | {"bias": False}
    assert changed["blocks_1"]["mlp_fc1"] == factors | {"bias": False}
    assert sum(jax.tree.leaves(changed)) == 6

    store = Checkpoints(tmp_path, lambda: after, pytest.fail, run={})
    store.save("latest", after, {})
    restored, selected = store.restore(), store.restore_selected("latest", "last").params
    store.close()
    one, other = (update(before, batch, jax.random.key(2))[0] for before in (after, restored[0]))
    assert digest(one) == digest(other)
    base, embed = parameter_groups.split(after.params)[0], jax.jit(method.embed)
    assert jax.tree.structure(selected) == jax.tree.structure(base)
    rows, merged, without = (
        embed(x, {"backbone": {}}, batch.images[0]) for x in (after.params, selected, base)
    )
    np.testing.assert_allclose(rows, merged, atol=1e-6)
    assert not np.allclose(rows, without, atol=1e-4)


@pytest.mark.parametrize(("groups", "random"), [(FROZEN, False), (FROZEN | LAYERS, True)])
def test_stochastic_depth_where_parts_are_trained(groups: dict[str, Group], random: bool) -> None:
    config = resolve(vit_values(**groups))
    config = replace(config, backbone=replace(config.backbone, drop_path=0.9))
    method, batch = build_method(config, TrainingSet(8, 64)), toys.batch(1)
    trained, evaluated = encoded_twice(method, drawn_state(method, optax.sgd(1.0), batch), batch)
    assert np.allclose(trained, evaluated, atol=1e-6) != random


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            {"backbone/blocks_*/atn/qkv": Group(1e-2, rank=2)},
            r"train\.groups\.backbone/blocks_\*/atn/qkv: fits no parameter that longer patterns "
            r"leave; did you mean backbone/blocks_[01]/attn/qkv",
        ),
        (
            {"backbone/blocks_1/norm1": Group(1e-2, rank=2)},
            r"train\.groups\.backbone/blocks_1/norm1\.rank=2: the group has no dense layers or "
            r"1x1 convolutions",
        ),
    ],
)
def test_layers_that_do_not_exist(groups: dict[str, Group], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run.check(resolve(vit_values(**groups)), Console(active=False))


def test_a_frozen_group_has_no_updates() -> None:
    given = vit_values()
    given["train"]["groups"]["backbone"] |= {"rank": 2, "freeze": True}
    with pytest.raises(
        ConfigError, match=r"train\.groups\.backbone\.rank=2: a frozen group has no updates"
    ):
        resolve(given)
