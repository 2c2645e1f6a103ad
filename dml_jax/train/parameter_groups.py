"""Parameter groups: named by a path, such as "backbone/layer1_*", or frozen.

A frozen group (`train.groups.NAME.freeze`) is never trained: the optimizer does not change its
parameters; here, their gradient is not computed and their state, such as batch statistics, stays
unchanged. State from past batches (`Hooks.history`) belongs to no group.
"""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

import jax
from flax.traverse_util import flatten_dict, path_aware_map

from dml_jax.backbones.contract import Backbone
from dml_jax.config import Group
from dml_jax.errors import ConfigError, suggest
from dml_jax.methods.contract import Method, PyTree

Path = tuple[str, ...]


def by_path(method: Method, names: Collection[str]) -> Method:
    """The method with an additional group for each pattern among the keys of `train.groups`.

    A pattern, such as "backbone/blocks_1*/attn", covers all parameters and statistics at and below
    matching paths; if several patterns match, the longest wins.
    """
    patterns = sorted((name for name in names if "/" in name), key=lambda name: (-len(name), name))
    if not patterns:
        return method

    def group(path: Path) -> str:
        joined = "/".join(path)
        for name in patterns:
            if fnmatchcase(joined, name) or fnmatchcase(joined, f"{name}/*"):
                return name
        return method.group(path)

    return method._replace(groups=(*method.groups, *patterns), group=group)


def as_evaluated(backbone: Backbone, *, random: bool) -> Backbone:
    """The backbone in evaluation mode even during training; `random` keeps stochastic depth."""

    def apply(*arguments: Any, train: bool, key: jax.Array | None = None) -> Any:
        return backbone.apply(*arguments, train=False, key=key if random else None)

    return backbone._replace(apply=apply)


def freezing(method: Method, groups: Mapping[str, Group]) -> Method:
    """The method without gradients and state changes for frozen groups."""
    frozen = {name for name, group in groups.items() if group.freeze}
    if not frozen:
        return method

    def stop(path: Any, leaf: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(leaf) if method.group(path) in frozen else leaf

    def keep(before: PyTree, after: PyTree) -> PyTree:
        old = flatten_dict(before)

        def choose(path: Any, new: PyTree) -> PyTree:
            changes = path[0] in method.hooks.history or method.group(path) not in frozen
            return new if changes else old[path]

        return path_aware_map(choose, after)

    def encode(params: PyTree, model_state: PyTree, *arguments: Any, **options: Any) -> Any:
        params = path_aware_map(stop, params)
        encoded, after = method.encode(params, model_state, *arguments, **options)
        return encoded, keep(model_state, after)

    def loss(params: PyTree, model_state: PyTree, *arguments: Any) -> Any:
        value, aux = method.loss(path_aware_map(stop, params), model_state, *arguments)
        return value, aux._replace(model_state=keep(model_state, aux.model_state))

    return method._replace(encode=encode, loss=loss)


def check(groups: Mapping[str, Group], method: Method, params: PyTree) -> None:
    """Raises ConfigError if a pattern matches no parameter, or nothing is trained."""
    flat = flatten_dict(params)
    filled = {method.group(path) for path, leaf in flat.items() if leaf.size}
    for name in groups:
        if "/" in name and name not in {method.group(path) for path in flat}:
            modules = dict.fromkeys("/".join(path[: name.count("/") + 1]) for path in flat)
            raise ConfigError(
                f"train.groups.{name}: matches no parameter, except those of longer patterns; "
                f"{suggest(name, list(modules))}"
            )
    if not any(groups[name].learning_rate and not groups[name].freeze for name in filled):
        raise ConfigError(
            f"train.groups: {', '.join(sorted(filled))} have freeze=true or learning_rate=0, so "
            "nothing is trained; train one of them, or use published weights as they are "
            "(dml-jax embed --model)"
        )
