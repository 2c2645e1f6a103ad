"""SIGTERM and Ctrl-C: stop at the next step, or at once if nothing needs saving."""

import signal
from collections.abc import Callable
from functools import cache
from types import FrameType

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dml_jax.train.distributed import device_mesh


class Interrupted(Exception):
    """The run stopped on a signal; `alone` if the other processes have not been told."""

    def __init__(self, number: int, *, alone: bool = False):
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number
        self.alone = alone


class Stop:
    """Context manager that records the first SIGTERM or SIGINT; a second raises Interrupted."""

    def __init__(self) -> None:
        self.signal = 0
        self._immediate = False
        self._asked: jax.Array | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "Stop":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal or self._immediate:
            raise Interrupted(number, alone=True)
        self.signal = number

    def stop_immediately(self) -> None:
        """Lets signals end the run at once from now on; all processes must call this."""
        self._immediate = True
        if number := self.agreed():
            raise Interrupted(number)

    def poll(self) -> int:
        """The signal that any process had received at the previous call, 0 for none.

        Each call starts the exchange for the next one, so devices never wait. All processes must
        call this equally often.
        """
        if jax.process_count() == 1:
            return self.agreed()
        reply, self._asked = self._asked, largest(self.signal)
        return 0 if reply is None else int(reply)

    def raise_if_stopped(self) -> None:
        """Raises Interrupted after a signal; all processes must call this equally often."""
        number = self.signal if jax.process_count() == 1 else self.poll()
        # While in progress, it could block devices that one process uses alone.
        jax.block_until_ready(self._asked)
        if number:
            raise Interrupted(number)

    def agreed(self) -> int:
        """The signal that any process has received, or 0; all must call this at the same step."""
        return self.signal if jax.process_count() == 1 else int(largest(self.signal))


def largest(value: int) -> jax.Array:
    """The largest value of all processes, int32 [], computed in the background."""
    devices, reduced = _reduction()
    local = np.full(jax.local_device_count(), value, np.int32)
    return reduced(jax.make_array_from_process_local_data(device_mesh.row_sharded(devices), local))


@cache
def _reduction() -> tuple[Mesh, Callable[[jax.Array], jax.Array]]:
    devices = device_mesh.make()
    return devices, jax.jit(jnp.max, out_shardings=device_mesh.replicated(devices))
