"""Work that the processes of a run divide among them; each has all inputs and ends with all results."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from dml_jax.evaluation._engine.counting_kernels import sum_over_devices
from dml_jax.evaluation._engine.tiles import SHARDED

Work = TypeVar("Work", Sequence, np.ndarray)


class Share(NamedTuple):
    """The part of this process. All processes must call `sum` equally often, with arrays of equal shapes."""

    process: int = 0
    processes: int = 1  # 1 if nothing is shared

    def of(self, work: Work) -> Work:
        """Every n-th item, for n processes."""
        return work[self.process :: self.processes]

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum over the processes of int32 values, or of any values of which each is zero in all processes but one."""
        if self.processes == 1:
            return values
        # As 32-bit integers, because JAX would round 64-bit values.
        bits = np.ascontiguousarray(values).view(np.int32)
        devices = {device.process_index: device for device in reversed(jax.devices())}
        mesh = Mesh(np.array([devices[process] for process in range(self.processes)]), ("data",))
        parts = jax.make_array_from_process_local_data(NamedSharding(mesh, SHARDED), bits[None])
        return np.array(sum_over_devices(parts, mesh)).view(values.dtype)


def among_processes(shared: bool) -> Share:
    """The part of this process among all of the run; everything unless `shared`."""
    return Share(jax.process_index(), jax.process_count()) if shared else Share()
