"""Optimizers in torch's conventions, one per group of parameters, and the schedule they share.

Coupled decay ("adam", "sgd", "rmsprop") is added to the gradient; decoupled decay ("adamw", "radam") to the update.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dml_jax.config import Group, Train
from dml_jax.config_schema import suggest
from dml_jax.errors import ConfigError
from dml_jax.methods.contract import Method
from dml_jax.train.radam import scale_by_radam

Schedule = Callable[[Any], Any]


def factor(train: Train, *, start: int, stop: int, milestones: tuple[int, ...]) -> Schedule:
    """The factor every learning rate is multiplied by.

    Args:
      train: kind of schedule and gamma.
      start: first step after the warm-up; before it the factor is 1.
      stop: number of steps of the whole run.
      milestones: steps from which on "step" multiplies once more by gamma.
    """

    def constant(step: Any) -> Any:
        return jnp.ones(())

    def cosine(step: Any) -> Any:
        progress = jnp.clip((step - start) / max(stop - start, 1), 0.0, 1.0)
        return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))

    def stairs(step: Any) -> Any:
        passed = sum((step >= milestone) * 1 for milestone in milestones)
        return train.gamma**passed

    return {"constant": constant, "cosine": cosine, "step": stairs}[train.schedule]


def _rule(name: str, decay: float) -> optax.GradientTransformation:
    """The direction of an update, before the learning rate; decay included."""
    coupled, decoupled = optax.add_decayed_weights(decay), optax.add_decayed_weights(decay)
    match name:
        case "adam":
            return optax.chain(coupled, optax.scale_by_adam())
        case "adamw":
            return optax.chain(optax.scale_by_adam(), decoupled)
        case "radam":
            return optax.chain(scale_by_radam(), decoupled)
        case "sgd":
            return optax.chain(coupled, optax.trace(0.9, nesterov=True))
        case _:
            return optax.chain(coupled, optax.scale_by_rms(0.9, eps_in_sqrt=False), optax.trace(0.9))


def _transform(name: str, group: Group, schedule: Schedule, start: int) -> optax.GradientTransformation:
    if group.freeze:
        return optax.set_to_zero()
    late = start if group.warmup == "freeze" else 0
    # Inside, counting begins when the group thaws: bias corrections start afresh, the schedule does not.
    rate = optax.scale_by_schedule(lambda count: -group.learning_rate * schedule(count + late))
    inner = optax.chain(_rule(name, group.weight_decay), rate)
    return optax.transforms.conditionally_mask(inner, lambda step: step >= late) if late else inner


def build(train: Train, method: Method, schedule: Schedule, *, warmup_steps: int = 0) -> optax.GradientTransformation:
    """The optimizer of a run.

    Raises:
      ConfigError: a group the method does not have, or one it has and the configuration does not.
    """
    for name in train.groups:
        if name not in method.groups:
            raise ConfigError(f"train.groups.{name}: the method has no such group; {suggest(name, method.groups)}")
    for name in method.groups:
        if name not in train.groups:
            raise ConfigError(f"train.groups.{name}: missing; give its learning_rate")

    def labels(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: method.group(tuple(p.key for p in path)), params)

    transforms = {n: _transform(train.optimizer, g, schedule, warmup_steps) for n, g in train.groups.items()}
    return optax.partition(transforms, labels)
