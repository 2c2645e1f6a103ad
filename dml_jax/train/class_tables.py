"""Tables with one row per training class, spread over the devices (`train.shard_classes`).

Proxies, classifiers and class statistics grow with the number of classes, and so do their optimizer
moments; with a million classes they fill a device. Spread, each device holds and updates its share
of the rows. The rows are padded with zeros to a multiple of `MULTIPLE`, so that a checkpoint fits
any number of devices; the method itself only sees the rows of its classes, and its values and
gradients are the same up to rounding.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax.sharding import Mesh

from dml_jax.backbones.contract import PyTree
from dml_jax.methods.contract import Batch, Method, map_functions
from dml_jax.train.distributed import device_mesh

# Tables are padded to multiples of this number of rows; the number of devices must divide it. Not
# larger, because each step transfers up to this many rows between padded and unpadded shares.
MULTIPLE = 256

ClassAxis = Callable[[tuple[str, ...]], int | None]


def spread(build: Callable[[int], Method], classes: int, batch: Batch, mesh: Mesh) -> Method:
    """The method with tables of classes that are padded and spread over the devices."""
    method = build(classes)
    class_axis = class_axes(method, build(classes + 1), batch).get

    def on_padded(function: Any) -> Any:
        def call(params: PyTree, *arguments: Any, **options: Any) -> Any:
            return function(unpadded(params, class_axis, classes), *arguments, **options)

        return call

    def init(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        params, model_state = method.init(key, batch)
        return padded(params, class_axis), model_state

    def loss(params: PyTree, state: PyTree, encoded: PyTree, batch: Batch, *more: Any) -> Any:
        # Each device compares its classes with all images. Left to itself, the compiler may gather
        # the tables instead.
        everywhere = device_mesh.replicated(mesh)
        encoded, labels = jax.lax.with_sharding_constraint((encoded, batch.labels), everywhere)
        return method.loss(params, state, encoded, batch._replace(labels=labels), *more)

    spread_out = map_functions(on_padded, method._replace(loss=loss))
    hooks = spread_out.hooks._replace(class_axis=class_axis)
    if hooks.refresh is not None:
        update = hooks.refresh.update

        def padded_update(*arguments: Any) -> tuple[PyTree, PyTree]:
            params, model_state = update(*arguments)
            return padded(params, class_axis), model_state

        hooks = hooks._replace(refresh=hooks.refresh._replace(update=padded_update))
    return spread_out._replace(init=init, hooks=hooks)


def unpadded(params: PyTree, class_axis: ClassAxis, classes: int) -> PyTree:
    """The parameters with tables of `classes` rows."""

    def cut(path: Any, leaf: jax.Array) -> jax.Array:
        axis = class_axis(path)
        return leaf if axis is None else jax.lax.slice_in_dim(leaf, 0, classes, axis=axis)

    return traverse_util.path_aware_map(cut, params)


def padded(params: PyTree, class_axis: ClassAxis) -> PyTree:
    """The parameters with tables of a multiple of MULTIPLE rows."""

    def pad(path: Any, leaf: jax.Array) -> jax.Array:
        axis, sizes = class_axis(path), enumerate(leaf.shape)
        added = [(0, -size % MULTIPLE if i == axis else 0) for i, size in sizes]
        return leaf if axis is None else jnp.pad(leaf, added)

    return traverse_util.path_aware_map(pad, params)


def class_axes(method: Method, larger: Method, batch: Batch) -> Mapping[tuple[str, ...], int]:
    """The axis along which each parameter grows when a method has one more class, by path."""

    def shapes(method: Method) -> dict[Any, Any]:
        params, _ = jax.eval_shape(method.init, jax.random.key(0), batch)
        return {path: leaf.shape for path, leaf in traverse_util.flatten_dict(params).items()}

    before, after = shapes(method), shapes(larger)
    return {
        path: next(i for i, size in enumerate(shape) if size != after[path][i])
        for path, shape in before.items()
        if shape != after[path]
    }
