"""Groups that are never trained (`train.groups.NAME.freeze`): neither their parameters nor their state change.

The optimizer leaves the parameters alone; here the rest is left alone, such as batch statistics. The state that past
batches leave (`Hooks.history`) belongs to no group.
"""

from collections.abc import Collection, Mapping

import jax

from dml_jax.backbones.contract import Backbone
from dml_jax.config import Group
from dml_jax.errors import ConfigError
from dml_jax.methods.contract import Aux, Batch, Method, PyTree


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


def check_trainable(groups: Mapping[str, Group], method: Method, params: PyTree) -> None:
    """Raises ConfigError if no group that has parameters is trained; of `params`, only the shapes matter."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    used = {method.group(tuple(part.key for part in path)) for path, leaf in leaves if leaf.size}
    if not any(groups[name].learning_rate and not groups[name].freeze for name in used):
        raise ConfigError(
            f"train.groups: {', '.join(sorted(used))} have freeze=true or learning_rate=0, so that nothing is trained; "
            "train one of them, or use published weights as they are (dml-jax embed --model)"
        )
