"""Low-rank updates of matrices (`train.groups.NAME.rank`): LoRA (Hu et al., ICLR 2022), for any network.

Of a group with a rank r, only the factors A [I, r] and B [r, O] of an update of each of its matrices W are trained:

    W + (alpha / r) A B

W are the kernels of dense layers and 1x1 convolutions, [I, O] or [1, 1, I, O]. A starts as U(±1/sqrt(I)), as in the
authors' code, and B as zero. The factors are parameters beside W, so that no network knows of them: the functions of a
method get the sums. So do evaluations, exports and whatever else uses a trained model, see `merged`.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from dml_jax.backbones.layers import uniform_fan_in
from dml_jax.config import Group
from dml_jax.errors import ConfigError, suggest
from dml_jax.methods.contract import Batch, Method, PyTree, map_functions

SUFFIX = "_lora"  # of the name of a matrix: its factors "a" and "b", and "scale", float32 [], which is alpha / r

Path = tuple[str, ...]


def is_factor(path: Path) -> bool:
    """Whether a path is that of A or B."""
    return _is_update(path) and path[-1] != "scale"


def _is_update(path: Path) -> bool:
    return len(path) > 1 and path[-2].endswith(SUFFIX) and path[-1] in ("a", "b", "scale")


def _matrix_of(path: Path) -> Path:
    """The path of the matrix that an array of an update is for."""
    return (*path[:-2], path[-2].removesuffix(SUFFIX))


def split(params: PyTree) -> tuple[PyTree, PyTree]:
    """(parameters of the network alone, updates), both nested dicts."""
    base: dict[Path, Any] = {}
    updates: dict[Path, Any] = {}
    for path, leaf in traverse_util.flatten_dict(params, keep_empty_nodes=True).items():
        (updates if _is_update(path) else base)[path] = leaf
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
    flat, factors = traverse_util.flatten_dict(base, keep_empty_nodes=True), traverse_util.flatten_dict(updates)
    for path in {path[:-1] for path in factors}:
        a, b, scale = (factors[*path, name] for name in ("a", "b", "scale"))
        update = jax.lax.stop_gradient(scale) * jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
        matrix = _matrix_of((*path, "scale"))
        flat[matrix] = flat[matrix] + update.reshape(flat[matrix].shape)
    sums: PyTree = traverse_util.unflatten_dict(flat)
    return sums


def updating(method: Method, groups: Mapping[str, Group]) -> Method:
    """The method with updates of the matrices of each group that has a rank.

    Its functions also take the parameters of `merged`.
    """
    if not any(group.rank for group in groups.values()):
        return method

    def group_of(path: Path) -> str:
        return method.group(_matrix_of(path) if _is_update(path) else path)

    def rank_of(path: Path) -> int:
        group = groups.get(group_of(path))  # one that is missing is reported when the optimizer is built
        return group.rank if group else 0

    def init(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        params, model_state = method.init(key, batch)
        updates = {}
        for i, (path, leaf) in enumerate(traverse_util.flatten_dict(params).items()):
            if _is_matrix(leaf) and (rank := rank_of(path)):
                (inputs, outputs), own = leaf.shape[-2:], (*path[:-1], path[-1] + SUFFIX)
                draw = uniform_fan_in(inputs)
                updates[*own, "a"] = draw(jax.random.fold_in(key, i), (inputs, rank), leaf.dtype)
                updates[*own, "b"] = jnp.zeros((rank, outputs), leaf.dtype)
                updates[*own, "scale"] = jnp.asarray((groups[group_of(path)].alpha or rank) / rank, leaf.dtype)
        return join(params, traverse_util.unflatten_dict(updates)), model_state

    def fixed(path: Any, leaf: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(leaf) if rank_of(tuple(part.key for part in path)) else leaf

    def of_sums(function: Any) -> Any:
        def call(params: PyTree, *arguments: Any, **options: Any) -> Any:
            base, updates = split(params)
            if updates:
                params = merged(join(jax.tree_util.tree_map_with_path(fixed, base), updates))
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
            for path, leaf in factors.items():  # a matrix that is initialised again begins without an update
                if path[-1] == "b" and after[_matrix_of(path)] is not before[_matrix_of(path)]:
                    factors[path] = jnp.zeros_like(leaf)
            return join(new, traverse_util.unflatten_dict(factors)), model_state

        hooks = hooks._replace(refresh=hooks.refresh._replace(update=refreshed))
    return made._replace(init=init, group=group_of, hooks=hooks)


def _is_matrix(leaf: jax.Array) -> bool:
    return leaf.ndim in (2, 4) and leaf.size == leaf.shape[-2] * leaf.shape[-1] and min(leaf.shape[-2:]) > 1


def check(groups: Mapping[str, Group], method: Method, params: PyTree) -> None:
    """Raises ConfigError, with the nearest layers, if a group with a rank has no matrix; of `params`, see shapes."""
    flat = traverse_util.flatten_dict(params)
    updated = {method.group(path) for path in flat if is_factor(path)}
    for name, group in groups.items():
        if group.rank and name not in updated:
            layers = ["/".join(path[:-1]) for path, leaf in flat.items() if not _is_update(path) and _is_matrix(leaf)]
            raise ConfigError(
                f"train.groups.{name}.rank={group.rank}: the group has no dense layers or 1x1 convolutions; "
                f"{suggest(name, layers)}"
            )
