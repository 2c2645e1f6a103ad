"""Optimizers with PyTorch's conventions and defaults, one per parameter group, and their schedule.

Coupled decay ("adam", "sgd") is added to the gradient; decoupled decay ("adamw", "radam") to the
update.

"radam" is Rectified Adam (Liu et al., ICLR 2020) as implemented in the code of Seidenschwarz et al.
(ICML 2021):

    m_t   = b1 m_{t-1} + (1 - b1) g_t,     v_t = b2 v_{t-1} + (1 - b2) g_t^2
    rho   = rho_inf - 2 t b2^t / (1 - b2^t),     rho_inf = 2 / (1 - b2) - 1
    r     = sqrt((1 - b2^t) (rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho))
    u_t   = r / (1 - b1^t) m_t / (sqrt(v_t) + eps)   if rho >= 5, else   m_t / (1 - b1^t)

With the usual b2, the first five updates are momentum SGD. `optax.scale_by_radam` adds eps to the
root of the bias-corrected v; here it is added to the root of v itself, which matters where
gradients are tiny.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, path_aware_map

from dml_jax.config import Group, Train
from dml_jax.config.modules import function
from dml_jax.errors import ConfigError, suggest
from dml_jax.methods.contract import Method

Schedule = Callable[[Any], Any]


def rate_factor(train: Train, *, start: int, stop: int, milestones: tuple[int, ...]) -> Schedule:
    """The factor of all learning rates by step; 1 until the warm-up ends at `start`."""

    def cosine(step: Any) -> Any:
        progress = jnp.clip(jnp.asarray(step - start, float) / max(stop - start, 1), 0.0, 1.0)
        return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))

    def stairs(step: Any) -> Any:
        passed = sum((step >= milestone) * 1 for milestone in milestones)
        return train.gamma**passed

    def rising(step: Any) -> Any:
        return jnp.minimum(jnp.asarray(step + 1, float) / train.linear_warmup, 1.0) * schedule(step)

    schedules = {"constant": lambda step: jnp.ones(()), "cosine": cosine, "step": stairs}
    if "." in train.schedule:
        user_schedule = function("train.schedule", train.schedule, train)(stop - start)
        schedules[train.schedule] = lambda step: user_schedule(jnp.maximum(step - start, 0))
    schedule = schedules[train.schedule]
    return rising if train.linear_warmup else schedule


def scaled(schedule: Schedule, train: Train, batch_size: int) -> Schedule:
    """The schedule multiplied by the factor of `train.scale_rates` for this batch size."""
    if train.scale_rates == "none":
        return schedule
    ratio = batch_size / train.rates_for_batch
    factor = ratio if train.scale_rates == "linear" else math.sqrt(ratio)
    return lambda step: factor * schedule(step)


def _direction(train: Train, decay: float) -> optax.GradientTransformation:
    """The direction of an update including weight decay, before the learning rate."""
    if "." in train.optimizer:
        return function("train.optimizer", train.optimizer, train)(decay)
    coupled, decoupled = optax.add_decayed_weights(decay), optax.add_decayed_weights(decay)
    parts = {
        "adam": (coupled, optax.scale_by_adam()),
        "adamw": (optax.scale_by_adam(), decoupled),
        "radam": (scale_by_radam(), decoupled),
        "sgd": (coupled, optax.trace(train.momentum) if train.momentum else optax.identity()),
    }
    return optax.chain(*parts[train.optimizer])


def _group_optimizer(
    train: Train, group: Group, schedule: Schedule, start: int
) -> optax.GradientTransformation:
    if group.freeze:
        return optax.set_to_zero()
    late = start if group.warmup == "freeze" else 0
    # The inner step count starts when the group is unfrozen, so bias corrections start over, but
    # the schedule does not.
    rate = optax.scale_by_schedule(lambda count: -group.learning_rate * schedule(count + late))
    inner = optax.chain(_direction(train, group.weight_decay), rate)
    return optax.transforms.conditionally_mask(inner, lambda step: step >= late) if late else inner


def no_layer(name: str) -> int | None:
    """The `layer` of networks without layer-wise decay."""
    return None


def scale_by_depth(
    decay: float, layer: Callable[[str], int | None]
) -> optax.GradientTransformation:
    """Layer-wise learning rate decay for vision transformers (Bao et al., ICLR 2022).

    Multiplies updates of block i of n, from 0, by decay^(n - i), and updates of the embeddings by
    decay^(n + 1); `layer` is the backbone's, see `backbones.contract.Config`.
    """

    def update(updates: Any, params: Any = None) -> Any:
        paths = flatten_dict(updates)
        layers = {path: layer(path[1]) if path[0] == "backbone" else None for path in paths}
        top = 1 + max(filter(None, layers.values()), default=0)

        def scale(path: Any, leaf: jax.Array) -> jax.Array:
            depth = layers[path]
            return leaf if depth is None else leaf * decay ** (top - depth)

        return path_aware_map(scale, updates)

    return optax.stateless(update)


def build(
    train: Train,
    method: Method,
    schedule: Schedule,
    *,
    warmup_steps: int = 0,
    layer: Callable[[str], int | None] = no_layer,
) -> optax.GradientTransformation:
    for name in train.groups:
        if name not in method.groups:
            raise ConfigError(
                f"train.groups.{name}: the method has no such group; {suggest(name, method.groups)}"
            )

    def label(path: Any, _: Any) -> str:
        name = method.group(path)
        if (
            name not in train.groups
        ):  # checked here, because groups without parameters may be missing
            raise ConfigError(f"train.groups.{name}: missing; give its learning_rate")
        return name

    transforms = {
        n: _group_optimizer(train, g, schedule, warmup_steps) for n, g in train.groups.items()
    }
    optimizer = optax.partition(transforms, partial(path_aware_map, label))
    if train.layer_decay == 1:
        return optimizer
    return optax.chain(optimizer, scale_by_depth(train.layer_decay, layer))


class RAdamState(NamedTuple):
    steps: jax.Array
    mean: Any
    square: Any


def scale_by_radam() -> optax.GradientTransformation:
    """The direction u_t of an update, without learning rate, sign and decay."""
    b1, b2, eps = 0.9, 0.999, 1e-8  # as in PyTorch
    limit = 2 / (1 - b2) - 1
    log_b1, log_b2 = math.log(b1), math.log(b2)

    def init(params: Any) -> RAdamState:
        # Separate buffers, because both are donated.
        mean, square = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return RAdamState(jnp.zeros((), jnp.int32), mean, square)

    def update(updates: Any, state: RAdamState, params: Any = None) -> tuple[Any, RAdamState]:
        steps = optax.safe_increment(state.steps)
        t = steps.astype(float)
        mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, updates)
        square = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.square, updates)
        # 1 - b2^t starts near 0; expm1 keeps its digits in float32.
        growth = -t * log_b2
        rho = limit - 2 * t / jnp.expm1(growth)
        rectified = rho >= 5
        safe = jnp.where(rectified, rho, 5)
        factor = (safe - 4) / (limit - 4) * (safe - 2) / safe * limit / (limit - 2)
        rectification = jnp.where(rectified, jnp.sqrt(-jnp.expm1(-growth) * factor), 1)
        size = rectification / -jnp.expm1(t * log_b1)

        def direction(m: jax.Array, v: jax.Array) -> jax.Array:
            return size.astype(m.dtype) * jnp.where(rectified, m / (jnp.sqrt(v) + eps), m)

        return jax.tree.map(direction, mean, square), RAdamState(steps, mean, square)

    return optax.GradientTransformation(init, update)
