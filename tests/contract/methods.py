"""All methods whose contract is tested: baselines, and those of the papers that are there, on toy backbones."""

from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from dml_jax.methods import baseline
from dml_jax.methods.contract import Method
from dml_jax.train import step
from dml_jax.train.method_wrappers import computed_in
from dml_jax.train.step import TrainState
from tests import toys
from tests.contract.cases import BODY, DATA, DIM, LARGE_DATA, Large, Small
from tests.papers import modules


def of_baseline(loss: str, **options: int) -> Large:
    config = baseline.make_config(loss, embedding_dim=DIM, **options)
    return Large(lambda: (baseline.build(config, BODY, LARGE_DATA), None), slow=False, slow_trace=False)


CONFIG = baseline.make_config(embedding_dim=8)
SMALL = {"baseline": Small(lambda body: baseline.build(CONFIG, body, DATA), examined=False)}
LARGE = {"proxies": of_baseline("proxy_anchor"), "memory": of_baseline("multi_similarity", memory=64)}
for paper in modules(Path(__file__).parent):
    SMALL |= paper.SMALL
    LARGE |= paper.LARGE


# All tests of a method run one after another, because they share compiled programs.
def methods(slow: str) -> Any:
    """Parametrizes with all of them; those whose `slow` is set are tested every night."""
    names = [pytest.param(name, marks=pytest.mark.slow if getattr(case, slow) else ()) for name, case in SMALL.items()]
    return pytest.mark.parametrize("name", names, scope="module")


every_method = methods("slow")
KEY = jax.random.key(0)
# The first step, unlike Adam's, shows gradients that are wrong by a factor.
OPTIMIZER = optax.sgd(0.01, momentum=0.9)


def method(name: str) -> Method:
    return computing_in(name, jnp.float32)


@cache
def computing_in(name: str, dtype: Any) -> Method:
    """The method on a toy backbone."""
    build = SMALL[name].build
    if dtype is jnp.float64:
        build = SMALL[name].in_float64 or build
    built = build(toys.backbone(dtype=dtype if dtype is jnp.bfloat16 else None))
    return computed_in(built, "bfloat16" if dtype is jnp.bfloat16 else "float32")


@cache
def started(name: str) -> TrainState:
    """The state before the first step; read-only, as tests share it."""
    made = method(name)
    batch = toys.batch(made.hooks.views)
    state = jax.jit(partial(step.initial, made, OPTIMIZER))(jax.random.key(1), batch)
    if made.hooks.fill:
        filled = made.hooks.fill(state.params, state.model_state, iter([batch] * 4))
        state = state._replace(model_state=filled)
    return state
