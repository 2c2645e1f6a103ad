"""Where arrays live: one mesh axis over all devices of all hosts; batches split along it, everything else copied."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dml_jax.errors import ConfigError
from dml_jax.methods.contract import Batch

AXIS = "data"


def connect(coordinator: str, processes: int, process: int) -> None:
    """Joins the other processes of the run, before any device is used.

    Args:
      coordinator: "host:port" of process 0, or "auto" to ask the cluster (Slurm, TPU pod, Kubernetes).
      processes: their number; ignored with "auto".
      process: number of this one; ignored with "auto".

    Raises:
      ConfigError: "auto", and no cluster is found.
    """
    if coordinator == "auto":
        try:
            jax.distributed.initialize()
        except ValueError as error:
            raise ConfigError(
                "--coordinator=auto: no Slurm, TPU pod or Kubernetes found; give HOST:PORT, --processes and --process"
            ) from error
    else:
        jax.distributed.initialize(coordinator, processes, process)


def make() -> Mesh:
    """All devices of all processes in a row."""
    return jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(AxisType.Auto,))


def copied(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def rows(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Each device holds its part of `axis`."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))


def replicate(mesh: Mesh, tree: Any) -> Any:
    """Copies a tree of values, equal on all hosts, to every device."""

    def put(value: Any) -> jax.Array:
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(value)))
        return jax.device_put(np.asarray(value), copied(mesh))  # from the host: devices of others cannot be written to

    return jax.tree.map(put, tree)


def shard(mesh: Mesh, images: np.ndarray, labels: np.ndarray, index: np.ndarray) -> Batch:
    """The global batch from this host's rows.

    Args:
      mesh: the devices.
      images: uint8 [V, B_local, H, W, 3].
      labels: int32 [B_local].
      index: int32 [B_local].
    """
    put = jax.make_array_from_process_local_data
    return Batch(put(rows(mesh, 1), images), put(rows(mesh), labels), put(rows(mesh), index))


def first() -> bool:
    """Whether this is the process that writes files and speaks."""
    return jax.process_index() == 0
