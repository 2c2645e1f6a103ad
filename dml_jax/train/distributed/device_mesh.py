"""Mesh and shardings: one axis over all devices of all hosts.

Batches are split along it; everything else is replicated.
"""

from contextlib import suppress
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dml_jax.methods.contract import Batch, PyTree

AXIS = "data"


def is_main_process() -> bool:
    """Whether this process writes files and prints."""
    return jax.process_index() == 0


def make() -> Mesh:
    """A mesh of all devices of all processes."""
    return jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(AxisType.Auto,))


@cache
def compiler_options(mesh: Mesh) -> dict[str, str]:
    """On CPUs, switches off YNNPACK's matrix products, which are slower."""
    if mesh.devices.flat[0].platform != "cpu":
        return {}
    options = {"xla_cpu_experimental_ynn_fusion_type": ""}
    with suppress(jax.errors.JaxRuntimeError):  # the option is experimental; XLA may not know it
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
        return options
    return {}


def replicated(mesh: Mesh) -> NamedSharding:
    """A sharding with the whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def row_sharded(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """A sharding that splits `axis` over the devices."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))


def place(mesh: Mesh, tree: PyTree) -> PyTree:
    """Copies a tree of values, which are equal on all hosts, to all devices."""

    def copy_to_devices(value: Any) -> jax.Array:
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(copy_to_devices(jax.random.key_data(value)))
        # Via the host, because a process cannot write to the devices of other processes.
        return jax.device_put(np.asarray(value), replicated(mesh))

    return jax.tree.map(copy_to_devices, tree)


def shard_batch(mesh: Mesh, images: np.ndarray, labels: np.ndarray, index: np.ndarray) -> Batch:
    """The global `Batch` from the rows of this host."""
    put, rows = jax.make_array_from_process_local_data, row_sharded(mesh)
    return Batch(put(row_sharded(mesh, 1), images), put(rows, labels), put(rows, index))
