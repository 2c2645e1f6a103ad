"""Optimizers with PyTorch's conventions, one per parameter group, and the schedule they share.

Coupled decay ("adam", "sgd", "rmsprop") is added to the gradient; decoupled decay ("adamw", "radam") to the update. The
defaults are PyTorch's, too.
"""

import re
from collections.abc import Callable
from typing import Any, assert_never

import jax
import jax.numpy as jnp
import optax

from dml_jax.config import Group, Train
from dml_jax.errors import ConfigError, suggest
from dml_jax.methods.contract import Method
from dml_jax.train.radam import scale_by_radam
from dml_jax.train.variants import low_rank

Schedule = Callable[[Any], Any]
FIXED = ""  # label of parameters that only their low-rank updates change


def rate_factor(train: Train, *, start: int, stop: int, milestones: tuple[int, ...]) -> Schedule:
    """The schedule of the factor that multiplies every learning rate.

    Args:
      train: kind of schedule, gamma, and the steps in which the factor rises linearly to that of the schedule.
      start: first step after the warm-up; before it the factor is 1.
      stop: number of steps of the whole run.
      milestones: steps at which "step" multiplies by gamma.
    """

    def constant(step: Any) -> Any:
        return jnp.ones(())

    def cosine(step: Any) -> Any:
        progress = jnp.clip(jnp.asarray(step - start, float) / max(stop - start, 1), 0.0, 1.0)
        return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))

    def stairs(step: Any) -> Any:
        passed = sum((step >= milestone) * 1 for milestone in milestones)
        return train.gamma**passed

    def rising(step: Any) -> Any:
        return jnp.minimum(jnp.asarray(step + 1, float) / train.linear_warmup, 1.0) * chosen(step)

    chosen: Schedule
    match train.schedule:
        case "constant":
            chosen = constant
        case "cosine":
            chosen = cosine
        case "step":
            chosen = stairs
        case _:
            assert_never(train.schedule)
    return rising if train.linear_warmup else chosen


def _direction(train: Train, decay: float) -> optax.GradientTransformation:
    """The direction of an update including weight decay, before the learning rate."""
    coupled, decoupled = optax.add_decayed_weights(decay), optax.add_decayed_weights(decay)
    momentum = optax.trace(train.momentum) if train.momentum else optax.identity()
    match train.optimizer:
        case "adam":
            return optax.chain(coupled, optax.scale_by_adam())
        case "adamw":
            return optax.chain(optax.scale_by_adam(), decoupled)
        case "radam":
            return optax.chain(scale_by_radam(), decoupled)
        case "sgd":
            return optax.chain(coupled, momentum)
        case "rmsprop":
            return optax.chain(coupled, optax.scale_by_rms(train.alpha, eps_in_sqrt=False), momentum)
        case _:
            assert_never(train.optimizer)


def _group_optimizer(train: Train, group: Group, schedule: Schedule, start: int) -> optax.GradientTransformation:
    if group.freeze:
        return optax.set_to_zero()
    late = start if group.warmup == "freeze" else 0
    # The inner step count starts when the group is unfrozen: bias corrections start over, the schedule does not.
    rate = optax.scale_by_schedule(lambda count: -group.learning_rate * schedule(count + late))
    inner = optax.chain(_direction(train, group.weight_decay), rate)
    return optax.transforms.conditionally_mask(inner, lambda step: step >= late) if late else inner


def scale_by_depth(decay: float) -> optax.GradientTransformation:
    """Lower learning rates for the lower layers of a vision transformer (Bao et al., ICLR 2022).

    The updates of block i of n, counted from 0, are multiplied by decay^(n - i), those of the embedding of patches and
    of the tokens by decay^(n + 1), all others, from the final norm on, by 1.
    """

    def update(updates: Any, params: Any = None) -> Any:
        layers = [_layer(path) for path, _ in jax.tree_util.tree_leaves_with_path(updates)]
        top = 1 + max((layer for layer in layers if layer is not None), default=0)

        def scale(path: Any, leaf: jax.Array) -> jax.Array:
            layer = _layer(path)
            return leaf if layer is None else leaf * decay ** (top - layer)

        return jax.tree_util.tree_map_with_path(scale, updates)

    return optax.stateless(update)


def _layer(path: Any) -> int | None:
    """0 for the embedding of a vision transformer, i + 1 for its block i, None for everything else."""
    if path[0].key != "backbone":
        return None
    name = path[1].key
    block = re.fullmatch(r"blocks_(\d+)", name)
    return int(block[1]) + 1 if block else 0 if name.endswith(("_embed", "_token")) else None


def build(train: Train, method: Method, schedule: Schedule, *, warmup_steps: int = 0) -> optax.GradientTransformation:
    """The optimizer of a run."""
    for name in train.groups:
        if name not in method.groups:
            raise ConfigError(f"train.groups.{name}: the method has no such group; {suggest(name, method.groups)}")
    for name in method.groups:
        if name not in train.groups:
            raise ConfigError(f"train.groups.{name}: missing; give its learning_rate")

    def labels(params: Any) -> Any:
        def label(path: Any, _: Any) -> str:
            keys = tuple(part.key for part in path)
            name = method.group(keys)
            return FIXED if train.groups[name].rank and not low_rank.is_factor(keys) else name

        return jax.tree_util.tree_map_with_path(label, params)

    transforms = {n: _group_optimizer(train, g, schedule, warmup_steps) for n, g in train.groups.items()}
    if any(group.rank for group in train.groups.values()):  # else the checkpoints of other runs would not fit
        transforms[FIXED] = optax.set_to_zero()
    optimizer = optax.partition(transforms, labels)
    if train.clip_norm:

        def trained(params: Any) -> Any:
            return jax.tree.map(lambda name: name != FIXED and not train.groups[name].freeze, labels(params))

        optimizer = optax.chain(optax.masked(optax.clip_by_global_norm(train.clip_norm), trained), optimizer)
    return optimizer if train.layer_decay == 1 else optax.chain(optimizer, scale_by_depth(train.layer_decay))
