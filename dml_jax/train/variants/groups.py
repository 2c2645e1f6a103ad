"""Parameter groups: by path, such as "backbone/layer1_*" beside the groups of the method, and frozen ones.

Of a group that is never trained (`train.groups.NAME.freeze`), the optimizer leaves the parameters alone; here its state
is left alone, such as batch statistics. The state that past batches leave (`Hooks.history`) belongs to no group.
"""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

import jax

from dml_jax.backbones.contract import Backbone
from dml_jax.config import Group
from dml_jax.errors import ConfigError, suggest
from dml_jax.methods.contract import Aux, Batch, Method, PyTree
from dml_jax.train.variants import low_rank


def is_path(name: str) -> bool:
    """Whether a key of `train.groups` is a pattern of paths rather than the name of a group."""
    return "/" in name


def by_path(method: Method, names: Collection[str]) -> Method:
    """The method with a group of its own for each pattern among the keys of `train.groups`.

    A pattern, such as "backbone/blocks_1*/attn", is for all parameters and statistics whose path it fits, and all
    below; * stands for any characters. Of several, the longest counts; the method groups what none fits.
    """
    patterns = sorted(filter(is_path, names), key=lambda name: (-len(name), name))
    if not patterns:
        return method

    def group(path: tuple[str, ...]) -> str:
        joined = "/".join(path)
        fitting = (name for name in patterns if fnmatchcase(joined, name) or fnmatchcase(joined, f"{name}/*"))
        return next(fitting, None) or method.group(path)

    return method._replace(groups=(*method.groups, *patterns), group=group)


def as_evaluated(backbone: Backbone, *, random: bool) -> Backbone:
    """A backbone that computes in training what it computes in evaluations, except for stochastic depth if `random`."""

    def apply(
        params: PyTree, stats: PyTree, inputs: jax.Array, /, *, train: bool, key: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
        return backbone.apply(params, stats, inputs, train=False, key=key if random else None)

    return backbone._replace(apply=apply)


def keeping_state(method: Method, frozen: Collection[str]) -> Method:
    """The method with the state of these groups as it was before each step."""
    if not frozen:
        return method

    def kept(before: PyTree, after: PyTree) -> PyTree:
        def choose(name: str, old: PyTree, new: PyTree) -> PyTree:
            def leaf(path: PyTree, old: jax.Array, new: jax.Array) -> jax.Array:
                return old if method.group((name, *(part.key for part in path))) in frozen else new

            return new if name in method.hooks.history else jax.tree_util.tree_map_with_path(leaf, old, new)

        return {name: choose(name, before[name], new) for name, new in after.items()}

    def encode(
        params: PyTree, model_state: PyTree, images: jax.Array, *, train: bool, key: jax.Array | None = None
    ) -> tuple[PyTree, PyTree]:
        encoded, after = method.encode(params, model_state, images, train=train, key=key)
        return encoded, kept(model_state, after)

    def loss(
        params: PyTree, model_state: PyTree, encoded: PyTree, batch: Batch, step: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Aux]:
        value, aux = method.loss(params, model_state, encoded, batch, step, key)
        return value, aux._replace(model_state=kept(model_state, aux.model_state))

    return method._replace(encode=encode, loss=loss)


def check(groups: Mapping[str, Group], method: Method, params: PyTree) -> None:
    """Raises ConfigError if a pattern fits no parameter, a group with a rank has no matrix, or nothing is trained.

    Of `params`, only keys and shapes matter.
    """
    leaves = [(tuple(part.key for part in path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)]
    used = {method.group(path) for path, _ in leaves}
    for name in filter(is_path, groups):
        if name not in used:
            modules = dict.fromkeys("/".join(path[: name.count("/") + 1]) for path, _ in leaves)
            raise ConfigError(
                f"train.groups.{name}: fits no parameter that longer patterns leave; {suggest(name, list(modules))}"
            )
    low_rank.check(groups, method, params)
    filled = {method.group(path) for path, leaf in leaves if leaf.size}
    if not any(groups[name].learning_rate and not groups[name].freeze for name in filled):
        raise ConfigError(
            f"train.groups: {', '.join(sorted(filled))} have freeze=true or learning_rate=0, so that nothing is "
            "trained; train one of them, or use published weights as they are (dml-jax embed --model)"
        )
