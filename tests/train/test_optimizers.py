"""Optimizers against update rules in NumPy; groups with rates, decay, warm-up and freezing of their own."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.backbones import vit
from dml_jax.config import Group, Train
from dml_jax.errors import ConfigError
from dml_jax.methods.contract import Aux, Batch, Method
from dml_jax.train import experiment as experiments
from dml_jax.train import optimizers, step
from tests.train.experiments import small

STEPS, DECAY = 12, 0.03
RATES = {"fast": 0.1, "slow": 0.01}
TARGET = np.linspace(-1, 1, 6)


def method(groups: tuple[str, ...] = ("fast", "slow")) -> Method:
    """Each group is a vector pulled towards a target that depends on the batch."""

    def encode(params: Any, model_state: Any, images: jax.Array, *, train: bool, key: Any = None) -> Any:
        return params, model_state

    def loss(params: Any, model_state: Any, encoded: Any, batch: Batch, count: jax.Array, key: jax.Array) -> Any:
        distances = [((x - TARGET * batch.labels[0]) ** 2).sum() for x in jax.tree.leaves(encoded)]
        return sum(distances), Aux(model_state, {})

    init = lambda key, batch: ({g: jnp.full(6, 0.5) for g in groups}, {})  # noqa: E731
    return Method(init, encode, loss, lambda *_: jnp.zeros(()), groups=groups, group=lambda path: path[0])


def batches() -> list[Batch]:
    factors = np.random.default_rng(0).integers(1, 5, STEPS)
    return [Batch(jnp.zeros((1, 1, 1, 1, 3)), jnp.asarray([f]), jnp.zeros(1, jnp.int32)) for f in factors]


def adam(x: np.ndarray, g: np.ndarray, memory: dict[str, Any], rate: float, *, coupled: bool) -> np.ndarray:
    t = memory["t"] = memory.get("t", 0) + 1
    if coupled:
        g = g + DECAY * x
    b1, b2 = 0.9, 0.999
    memory["m"] = b1 * memory.get("m", 0) + (1 - b1) * g
    memory["v"] = b2 * memory.get("v", 0) + (1 - b2) * g * g
    move = memory["m"] / (1 - b1**t) / (np.sqrt(memory["v"] / (1 - b2**t)) + 1e-8)
    return x - rate * move - (0 if coupled else rate * DECAY * x)


def sgd(x: np.ndarray, g: np.ndarray, memory: dict[str, Any], rate: float, *, momentum: float = 0) -> np.ndarray:
    g = g + DECAY * x
    memory["m"] = momentum * memory["m"] + g if "m" in memory else g
    return x - rate * memory["m"]


def radam(x: np.ndarray, g: np.ndarray, memory: dict[str, Any], rate: float) -> np.ndarray:
    t = memory["t"] = memory.get("t", 0) + 1
    b1, b2 = 0.9, 0.999
    memory["m"] = b1 * memory.get("m", 0) + (1 - b1) * g
    memory["v"] = b2 * memory.get("v", 0) + (1 - b2) * g * g
    limit = 2 / (1 - b2) - 1
    rho = limit - 2 * t * b2**t / (1 - b2**t)
    move = memory["m"] / (1 - b1**t)
    if rho >= 5:
        size = (1 - b2**t) * (rho - 4) / (limit - 4) * (rho - 2) / rho * limit / (limit - 2)
        move = move * np.sqrt(size) / (np.sqrt(memory["v"]) + 1e-8)
    return x - rate * move - rate * DECAY * x


RULES: dict[str, Callable[..., np.ndarray]] = {
    "adam": partial(adam, coupled=True),
    "adamw": partial(adam, coupled=False),
    "radam": radam,
    "sgd": sgd,
}


def run(train: Train, made: Method, warmup: int = 0, milestones: tuple[int, ...] = ()) -> list[Any]:
    """Parameters after each step of the donated, jitted update."""
    schedule = optimizers.rate_factor(train, start=warmup, stop=STEPS, milestones=milestones)
    optimizer = optimizers.build(train, made, schedule, warmup_steps=warmup, layer=vit.Config.layer)
    data = batches()
    state = step.initial(made, optimizer, jax.random.key(0), data[0])
    update = jax.jit(step.build(made, optimizer), donate_argnums=0)
    trajectory = []
    for batch in data:
        state, _ = update(state, batch, jax.random.key(0))
        trajectory.append(jax.tree.map(np.asarray, state.params))
    return trajectory


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in RULES),  # with PyTorch's defaults
        ("sgd", {"momentum": 0.9}),
    ],
)
def test_rules_and_groups(name: str, options: dict[str, Any], x64: None) -> None:
    """A staircase after steps 4 and 9; the slow group is frozen for three steps and starts from there."""
    groups = {g: Group(rate, DECAY, "freeze" if g == "slow" else "train") for g, rate in RATES.items()}
    train = Train(groups=groups, steps=STEPS, optimizer=name, schedule="step", gamma=0.5, **options)  # type: ignore[arg-type]
    found = run(train, method(), warmup=3, milestones=(4, 9))
    x: dict[str, np.ndarray] = {g: np.full(6, 0.5) for g in RATES}
    memory: dict[str, dict[str, Any]] = {g: {} for g in RATES}
    for t, batch in enumerate(batches()):
        for g, rate in RATES.items():
            if g == "slow" and t < 3:
                continue
            gradient = 2 * (x[g] - TARGET * int(batch.labels[0]))
            x[g] = RULES[name](x[g], gradient, memory[g], rate * 0.5 ** ((t >= 4) + (t >= 9)), **options)
        for g in RATES:
            np.testing.assert_allclose(found[t][g], x[g], rtol=1e-10, atol=1e-12, err_msg=f"{g} after {t + 1}")


@pytest.mark.parametrize("length", [{"epochs": 7}, {"steps": 0}])
def test_a_period_lasts_as_long_as_the_run(length: dict[str, int]) -> None:
    """StepLR: the rate in epoch e after the warm-up is gamma^floor(e / period)."""
    options = {"warmup_epochs": 1, "schedule": "step", "period": 2, "gamma": 0.5}
    epoch = experiments.build(small(epochs=1)).sampler.first_step(1)
    experiment = experiments.build(small(**options, **(length if "epochs" in length else {"steps": 7 * epoch})))
    steps = np.arange(8 * epoch)
    expected = 0.5 ** (np.maximum(steps // epoch - 1, 0) // 2)
    np.testing.assert_allclose([experiment.schedule(step) for step in steps[::3]], expected[::3])


def test_linear_warmup(x64: None) -> None:
    train = Train(groups={}, steps=10, schedule="cosine", linear_warmup=4)
    factor = optimizers.rate_factor(train, start=0, stop=10, milestones=())
    expected = [min(1, (t + 1) / 4) * 0.5 * (1 + np.cos(np.pi * t / 10)) for t in range(11)]
    np.testing.assert_allclose([factor(jnp.asarray(t)) for t in range(11)], expected, atol=1e-12)


def test_lower_layers_have_lower_rates(x64: None) -> None:
    """With decay 0.5: the last block at half the rate, the embedding of a network of two blocks at an eighth."""
    factors = {"patch_embed": 0.125, "cls_token": 0.125, "blocks_0": 0.25, "blocks_1": 0.5, "norm": 1.0}
    both = {"backbone": {name: jnp.full(6, 0.5) for name in factors}, "blocks_0": jnp.full(6, 0.5)}
    made = method()._replace(init=lambda key, batch: (both, {}), group=lambda path: "fast", groups=("fast",))
    train = Train(groups={"fast": Group(0.1, DECAY)}, steps=STEPS, optimizer="adamw", layer_decay=0.5)
    last = run(train, made)[-1]
    found = last["backbone"] | {"head": last["blocks_0"]}
    for name, factor in (factors | {"head": 1.0}).items():
        x, memory = np.full(6, 0.5), {}
        for batch in batches():
            gradient = 2 * (x - TARGET * int(batch.labels[0]))
            x = RULES["adamw"](x, gradient, memory, 0.1 * factor)
        np.testing.assert_allclose(found[name], x, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_rates_for_larger_batches(rule: Any, factor: float) -> None:
    """Four times the batch for which the rates are given."""
    train = Train(groups={}, steps=STEPS, scale_rates=rule, rates_for_batch=16)
    schedule = optimizers.scaled(lambda step: 0.5 * step, train, 64)
    assert schedule(3) == 1.5 * factor
    given, scaled = (
        experiments.build(small(steps=4, **options))
        for options in ({}, {"scale_rates": rule, "rates_for_batch": 4 if rule != "none" else 0})
    )
    assert scaled.schedule(1) == pytest.approx(factor * given.schedule(1))  # of a run, with batches of 16


def test_a_group_without_parameters_may_be_missing() -> None:
    train = Train(groups={"fast": Group(0.5)}, steps=1, optimizer="sgd")
    optimizer, params = optimizers.build(train, method(), lambda t: 1.0), {"fast": jnp.ones(2)}
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    np.testing.assert_allclose(updates["fast"], -0.5)
    with pytest.raises(ConfigError, match=r"^train\.groups\.slow: missing"):
        optimizer.init({"fast": jnp.ones(2), "slow": jnp.ones(2)})
