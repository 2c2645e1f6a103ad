"""Parameter groups: named by a path, such as "backbone/layer1_*", frozen, or of low rank.

A frozen group (`train.groups.NAME.freeze`) is never trained: the optimizer leaves its parameters
alone; here, their gradient is not computed and their state, such as batch statistics, is left
unchanged. State that past batches leave (`Hooks.history`) belongs to no group.

In a group with a rank r (`train.groups.NAME.rank`: LoRA, Hu et al., ICLR 2022), each matrix W gets
an update, of which only the factors A [I, r] and B [r, O] are trained:

    W + A B

The matrices are the kernels of dense layers and 1x1 convolutions, [I, O] or [1, 1, I, O]. A starts
as U(±1/sqrt(I)), as in the authors' code, and B as zero. The factors are parameters beside W, so
that no network knows about them: the functions of a method get the sums. So does everything that
uses a trained model, such as evaluations and exports, see `merged`.
"""

from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, path_aware_map, unflatten_dict

from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import uniform_fan_in
from dml_jax.config import Group
from dml_jax.errors import ConfigError, suggest
from dml_jax.methods.contract import Batch, Method, PyTree, map_functions

SUFFIX = "_lora"  # appended to the name of a matrix, for its factors "a" and "b"
Path = tuple[str, ...]


def by_path(method: Method, names: Collection[str]) -> Method:
    """The method with an additional group for each pattern among the keys of `train.groups`.

    A pattern, such as "backbone/blocks_1*/attn", covers the parameters and statistics whose path it
    matches, and everything below them; if several match, the longest wins.
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
    """The backbone computing in training as in evaluation; `random` keeps stochastic depth."""

    def apply(*arguments: Any, train: bool, key: jax.Array | None = None) -> Any:
        return backbone.apply(*arguments, train=False, key=key if random else None)

    return backbone._replace(apply=apply)


def freezing(method: Method, groups: Mapping[str, Group]) -> Method:
    """The method without gradients for frozen groups, and without changes of the state of frozen
    and low-rank groups."""
    frozen = {name for name, group in groups.items() if group.freeze}
    unchanged = frozen | {name for name, group in groups.items() if group.rank}
    if not unchanged:
        return method

    def stop(path: Any, leaf: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(leaf) if method.group(path) in frozen else leaf

    def keep(before: PyTree, after: PyTree) -> PyTree:
        old = flatten_dict(before)

        def choose(path: Any, new: PyTree) -> PyTree:
            changes = path[0] in method.hooks.history or method.group(path) not in unchanged
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
    """Raises ConfigError if a pattern matches no parameter, a group with a rank has no matrix, or
    nothing is trained."""
    flat = flatten_dict(params)
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
                "convolutions; set it to 0"
            )
    if not any(groups[name].learning_rate and not groups[name].freeze for name in filled):
        raise ConfigError(
            f"train.groups: {', '.join(sorted(filled))} have freeze=true or learning_rate=0, so "
            "that nothing is trained; train one of them, or use published weights as they are "
            "(dml-jax embed --model)"
        )


def is_factor(path: Path) -> bool:
    """Whether a path leads to A or B."""
    return len(path) > 1 and path[-2].endswith(SUFFIX) and path[-1] in ("a", "b")


def _matrix_of(path: Path) -> Path:
    """The path of the matrix that a factor belongs to."""
    return (*path[:-2], path[-2].removesuffix(SUFFIX))


def split(params: PyTree) -> tuple[PyTree, PyTree]:
    """(parameters of the network alone, factors), both nested dicts."""
    base: dict[Path, Any] = {}
    factors: dict[Path, Any] = {}
    for path, leaf in flatten_dict(params, keep_empty_nodes=True).items():
        (factors if is_factor(path) else base)[path] = leaf
    return unflatten_dict(base), unflatten_dict(factors)


def join(params: PyTree, factors: PyTree) -> PyTree:
    """The inverse of `split`."""
    return unflatten_dict(flatten_dict(params, keep_empty_nodes=True) | flatten_dict(factors))


def merged(params: PyTree) -> PyTree:
    """The parameters of the network with their updates added; unchanged if there are none."""
    base, factors = split(params)
    if not factors:
        return params
    sums, factors = flatten_dict(base, keep_empty_nodes=True), flatten_dict(factors)
    for path, a in factors.items():
        if path[-1] == "a":
            b, matrix = factors[*path[:-1], "b"], _matrix_of(path)
            update = jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
            sums[matrix] = sums[matrix] + update.reshape(sums[matrix].shape)
    return unflatten_dict(sums)


def updating(method: Method, groups: Mapping[str, Group]) -> Method:
    """The method with updates of the matrices in each group that has a rank."""
    if not any(group.rank for group in groups.values()):
        return method

    def group_of(path: Path) -> str:
        return method.group(_matrix_of(path) if is_factor(path) else path)

    def rank_of(matrix: Path) -> int:
        group = groups.get(method.group(matrix))
        return group.rank if group else 0  # building the optimizer reports a missing group

    def init(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        params, model_state = method.init(key, batch)
        return join(params, _initial_factors(params, rank_of, key)), model_state

    def with_sums(function: Any) -> Any:
        def call(params: PyTree, *arguments: Any, **options: Any) -> Any:
            return function(_sums(params, rank_of), *arguments, **options)

        return call

    wrapped = map_functions(with_sums, method)
    hooks, refresh = wrapped.hooks, method.hooks.refresh
    if refresh is not None:
        hooks = hooks._replace(
            refresh=refresh._replace(
                features=with_sums(refresh.features), update=partial(_refreshed, refresh.update)
            )
        )
    return wrapped._replace(init=init, group=group_of, hooks=hooks)


def _initial_factors(params: PyTree, rank_of: Callable[[Path], int], key: jax.Array) -> PyTree:
    factors = {}
    for i, (path, leaf) in enumerate(flatten_dict(params).items()):
        inputs, outputs = leaf.shape[-2:] if leaf.ndim in (2, 4) else (0, 0)
        is_matrix = min(inputs, outputs) > 1 and leaf.size == inputs * outputs
        if is_matrix and (rank := rank_of(path)):
            beside = (*path[:-1], path[-1] + SUFFIX)
            draw, drawn = uniform_fan_in(inputs), jax.random.fold_in(key, i)
            factors[*beside, "a"] = draw(drawn, (inputs, rank), leaf.dtype)
            factors[*beside, "b"] = jnp.zeros((rank, outputs), leaf.dtype)
    return unflatten_dict(factors)


def _sums(params: PyTree, rank_of: Callable[[Path], int]) -> PyTree:
    """`merged` parameters, with gradients for the factors but not for their matrices."""

    def fixed(path: Any, leaf: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(leaf) if rank_of(path) else leaf

    base, factors = split(params)
    return merged(join(path_aware_map(fixed, base), factors)) if factors else params


def _refreshed(update: Any, params: PyTree, *arguments: Any) -> tuple[PyTree, PyTree]:
    """`Refresh.update`; a matrix that it initialises again starts without an update."""
    base, factors = split(params)
    new, model_state = update(base, *arguments)
    before, after, flat = map(flatten_dict, (base, new, factors))
    for path, leaf in flat.items():
        if path[-1] == "b" and after[_matrix_of(path)] is not before[_matrix_of(path)]:
            flat[path] = jnp.zeros_like(leaf)
    return join(new, unflatten_dict(flat)), model_state
