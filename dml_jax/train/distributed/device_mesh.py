"""Mesh and shardings: one axis over all devices of all hosts.

Batches are split along it, and tables of classes may be; everything else is replicated.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dml_jax.methods.contract import Batch, PyTree, no_classes

AXIS = "data"


def is_main_process() -> bool:
    """Whether this process writes files and prints."""
    return jax.process_index() == 0


def make() -> Mesh:
    """A mesh of all devices of all processes."""
    return jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(AxisType.Auto,))


@cache
def compiler_options(mesh: Mesh) -> dict[str, str]:
    """On CPUs, training and embedding are faster without YNNPACK's matrix products."""
    if mesh.devices.flat[0].platform != "cpu":
        return {}
    options = {"xla_cpu_experimental_ynn_fusion_type": ""}
    with suppress(jax.errors.JaxRuntimeError):  # the option is experimental; XLA may not know it
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
        return options
    return {}


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def row_sharded(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Each device holds a part of `axis`."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))


def shardings(
    mesh: Mesh, tree: PyTree, class_axis: Callable[[tuple[str, ...]], int | None] = no_classes
) -> PyTree:
    """The sharding of each leaf of a tree whose paths end like those of the parameters."""

    def one(path: Any, leaf: Any) -> NamedSharding:
        keys = tuple(part.key for part in path if isinstance(part, jax.tree_util.DictKey))
        axes = (class_axis(keys[start:]) for start in range(len(keys)))
        axis = next((axis for axis in axes if axis is not None), None)
        return replicated(mesh) if axis is None or axis >= leaf.ndim else row_sharded(mesh, axis)

    return jax.tree_util.tree_map_with_path(one, tree)


def place(
    mesh: Mesh, tree: PyTree, class_axis: Callable[[tuple[str, ...]], int | None] = no_classes
) -> PyTree:
    """Copies a tree of values, equal on all hosts, to the devices."""

    def put(value: Any, sharding: NamedSharding) -> jax.Array:
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(value), sharding))
        # Through the host, because a process cannot write to the devices of others.
        return jax.device_put(to_host(value), sharding)

    return jax.tree.map(put, tree, shardings(mesh, tree, class_axis))


def to_host(value: Any) -> np.ndarray:
    """A whole array on the host; all processes must ask for one that is spread over them."""
    spread = isinstance(value, jax.Array) and not value.is_fully_addressable
    if spread and not value.is_fully_replicated:
        return np.asarray(multihost_utils.process_allgather(value, tiled=True))
    return np.asarray(value)


def shard_batch(mesh: Mesh, images: np.ndarray, labels: np.ndarray, index: np.ndarray) -> Batch:
    """The global `Batch` from the rows of this host."""
    put, rows = jax.make_array_from_process_local_data, row_sharded(mesh)
    return Batch(put(row_sharded(mesh, 1), images), put(rows, labels), put(rows, index))
