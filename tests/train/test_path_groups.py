"""Parameter groups by path: rates and freezing for any network."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.config import Group, Train
from dml_jax.methods.contract import Method
from dml_jax.train import optimizers, parameter_groups

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
FROZEN = "backbone/layer2_*"


def method() -> Method:
    def unused(*_: Any, **__: Any) -> Any:
        raise AssertionError

    return Method(unused, unused, unused, unused, groups=("all",), group=lambda path: "all")


def test_rates_by_path() -> None:
    """One step of SGD on gradients of 1 shows the rate of each parameter; the longest pattern that fits counts."""
    params = jax.tree.map(jnp.asarray, PARAMS)
    groups = {name: Group(rate) for name, rate in RATES.items()} | {FROZEN: Group(0.0, freeze=True)}
    made = parameter_groups.by_path(method(), groups)
    train = Train(groups=groups, steps=1, optimizer="sgd")
    optimizer = optimizers.build(train, made, lambda step: 1.0)
    updates, _ = optimizer.update(jax.tree.map(jnp.ones_like, params), optimizer.init(params), params)
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
