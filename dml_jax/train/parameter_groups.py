"""Parameter groups: by path, such as "backbone/layer1_*" beside the groups of the method, frozen,
low-rank.

Of a group that is never trained (`train.groups.NAME.freeze`), the optimizer leaves the parameters
alone; here, their gradient is not computed, and state such as batch statistics is left alone. The
state that past batches leave (`Hooks.history`) belongs to no group.

Of a group with a rank r (`train.groups.NAME.rank`: LoRA, Hu et al., ICLR 2022), only the factors A
[I, r] and B [r, O] of an update of each of its matrices W are trained:

    W + A B

W are the kernels of dense layers and 1x1 convolutions, [I, O] or [1, 1, I, O]. A starts as
U(±1/sqrt(I)), as in the authors' code, and B as zero. The factors are parameters beside W, so that
no network knows of them: the functions of a method get the sums. So do evaluations, exports and
whatever else uses a trained model, see `merged`.
"""

import math
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import uniform_fan_in
from dml_jax.config import Group
from dml_jax.errors import ConfigError, suggest
from dml_jax.methods.contract import Aux, Batch, Method, PyTree, map_functions

SUFFIX = "_lora"  # of the name of a matrix, for its factors "a" and "b"
Path = tuple[str, ...]


def by_path(method: Method, names: Collection[str]) -> Method:
    """The method with a group of its own for each pattern among the keys of `train.groups`.

    A pattern, such as "backbone/blocks_1*/attn", is for all parameters and statistics whose path it
    fits, and all below; of several, the longest counts.
    """
    patterns = sorted((name for name in names if "/" in name), key=lambda name: (-len(name), name))
    if not patterns:
        return method

    def group(path: Path) -> str:
        joined = "/".join(path)
        fitting = (
            name
            for name in patterns
            if fnmatchcase(joined, name) or fnmatchcase(joined, f"{name}/*")
        )
        return next(fitting, None) or method.group(path)

    return method._replace(groups=(*method.groups, *patterns), group=group)


def as_evaluated(backbone: Backbone, *, random: bool) -> Backbone:
    """A backbone that computes in training as in evaluations, except for stochastic depth if
    `random`."""

    def apply(
        params: PyTree,
        stats: PyTree,
        inputs: jax.Array,
        /,
        *,
        train: bool,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, PyTree]:
        return backbone.apply(params, stats, inputs, train=False, key=key if random else None)

    return backbone._replace(apply=apply)


def freezing(method: Method, groups: Mapping[str, Group]) -> Method:
    """The method without gradients of frozen groups, and with state of these and of low-rank groups
    unchanged."""
    frozen = {name for name, group in groups.items() if group.freeze}
    unchanged = frozen | {name for name, group in groups.items() if group.rank}
    if not unchanged:
        return method

    def stop(path: Any, leaf: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(leaf) if method.group(path) in frozen else leaf

    stopped = partial(traverse_util.path_aware_map, stop)

    def kept(before: PyTree, after: PyTree) -> PyTree:
        old = traverse_util.flatten_dict(before)

        def choose(path: Any, new: PyTree) -> PyTree:
            return (
                new
                if path[0] in method.hooks.history or method.group(path) not in unchanged
                else old[path]
            )

        return traverse_util.path_aware_map(choose, after)

    def encode(
        params: PyTree,
        model_state: PyTree,
        images: jax.Array,
        *,
        train: bool,
        key: jax.Array | None = None,
    ) -> tuple[PyTree, PyTree]:
        encoded, after = method.encode(stopped(params), model_state, images, train=train, key=key)
        return encoded, kept(model_state, after)

    def loss(
        params: PyTree,
        model_state: PyTree,
        encoded: PyTree,
        batch: Batch,
        step: jax.Array,
        key: jax.Array,
    ) -> tuple[jax.Array, Aux]:
        value, aux = method.loss(stopped(params), model_state, encoded, batch, step, key)
        return value, aux._replace(model_state=kept(model_state, aux.model_state))

    return method._replace(encode=encode, loss=loss)


def check(groups: Mapping[str, Group], method: Method, params: PyTree) -> None:
    """Raises ConfigError if a pattern fits no parameter, a group with a rank has no matrix, or
    nothing is trained."""
    flat = traverse_util.flatten_dict(params)
    filled = {method.group(path) for path, leaf in flat.items() if leaf.size}
    updated = {method.group(path) for path in flat if is_factor(path)}
    for name, group in groups.items():
        if "/" in name and name not in {method.group(path) for path in flat}:
            modules = dict.fromkeys("/".join(path[: name.count("/") + 1]) for path in flat)
            raise ConfigError(
                f"train.groups.{name}: fits no parameter that longer patterns leave; "
                f"{suggest(name, list(modules))}"
            )
        if group.rank and name not in updated:
            raise ConfigError(
                f"train.groups.{name}.rank={group.rank}: the group has no dense layers or 1x1 "
                "convolutions; "
                "set "
                "it "
                "to 0"
            )
    if not any(groups[name].learning_rate and not groups[name].freeze for name in filled):
        raise ConfigError(
            f"train.groups: {', '.join(sorted(filled))} have freeze=true or learning_rate=0, so "
            "that nothing "
            "is "
            "trained; train one of them, or use published weights as they are (dml-jax embed "
            "--model)"
        )


def is_factor(path: Path) -> bool:
    """Whether a path leads to A or B."""
    return len(path) > 1 and path[-2].endswith(SUFFIX) and path[-1] in ("a", "b")


def _matrix_of(path: Path) -> Path:
    """The path of the matrix that an update is for."""
    return (*path[:-2], path[-2].removesuffix(SUFFIX))


def split(params: PyTree) -> tuple[PyTree, PyTree]:
    """(parameters of the network alone, updates), both nested dicts."""
    base: dict[Path, Any] = {}
    updates: dict[Path, Any] = {}
    for path, leaf in traverse_util.flatten_dict(params, keep_empty_nodes=True).items():
        (updates if is_factor(path) else base)[path] = leaf
    return traverse_util.unflatten_dict(base), traverse_util.unflatten_dict(updates)


def join(params: PyTree, updates: PyTree) -> PyTree:
    """The inverse of `split`."""
    flat = [traverse_util.flatten_dict(tree, keep_empty_nodes=True) for tree in (params, updates)]
    return traverse_util.unflatten_dict(flat[0] | flat[1])


def merged(params: PyTree) -> PyTree:
    """The parameters of the network with their updates added; unchanged if there are none."""
    base, updates = split(params)
    if not updates:
        return params
    flat, factors = (
        traverse_util.flatten_dict(base, keep_empty_nodes=True),
        traverse_util.flatten_dict(updates),
    )
    for path in {path[:-1] for path in factors}:
        update = jnp.matmul(
            factors[*path, "a"], factors[*path, "b"], precision=jax.lax.Precision.HIGHEST
        )
        matrix = _matrix_of((*path, "a"))
        flat[matrix] = flat[matrix] + update.reshape(flat[matrix].shape)
    return traverse_util.unflatten_dict(flat)


def updating(method: Method, groups: Mapping[str, Group]) -> Method:
    """The method with updates of the matrices of each group that has a rank."""
    if not any(group.rank for group in groups.values()):
        return method

    def group_of(path: Path) -> str:
        return method.group(_matrix_of(path) if is_factor(path) else path)

    def rank_of(path: Path) -> int:
        group = groups.get(
            group_of(path)
        )  # one that is missing is reported when the optimizer is built
        return group.rank if group else 0

    def init(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        params, model_state = method.init(key, batch)
        updates = {}
        for i, (path, leaf) in enumerate(traverse_util.flatten_dict(params).items()):
            is_matrix = (
                leaf.ndim in (2, 4)
                and leaf.size == math.prod(leaf.shape[-2:])
                and min(leaf.shape[-2:]) > 1
            )
            if is_matrix and (rank := rank_of(path)):
                (inputs, outputs), own = leaf.shape[-2:], (*path[:-1], path[-1] + SUFFIX)
                draw = uniform_fan_in(inputs)
                updates[*own, "a"] = draw(jax.random.fold_in(key, i), (inputs, rank), leaf.dtype)
                updates[*own, "b"] = jnp.zeros((rank, outputs), leaf.dtype)
        return join(params, traverse_util.unflatten_dict(updates)), model_state

    def fixed(path: Any, leaf: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(leaf) if rank_of(path) else leaf

    def of_sums(function: Any) -> Any:
        def call(params: PyTree, *arguments: Any, **options: Any) -> Any:
            base, updates = split(params)
            if updates:
                params = merged(join(traverse_util.path_aware_map(fixed, base), updates))
            return function(params, *arguments, **options)

        return call

    made = map_functions(of_sums, method)
    hooks = made.hooks
    if hooks.refresh is not None:
        assert method.hooks.refresh is not None
        update = method.hooks.refresh.update

        def refreshed(params: PyTree, *arguments: Any) -> tuple[PyTree, PyTree]:
            base, updates = split(params)
            new, model_state = update(base, *arguments)
            before, after, factors = map(traverse_util.flatten_dict, (base, new, updates))
            for (
                path,
                leaf,
            ) in factors.items():  # a matrix that is initialised again begins without an update
                if path[-1] == "b" and after[_matrix_of(path)] is not before[_matrix_of(path)]:
                    factors[path] = jnp.zeros_like(leaf)
            return join(new, traverse_util.unflatten_dict(factors)), model_state

        hooks = hooks._replace(refresh=hooks.refresh._replace(update=refreshed))
    return made._replace(init=init, group=group_of, hooks=hooks)
