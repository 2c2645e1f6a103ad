"""SIGTERM and Ctrl-C: a wish that the loop grants at the next step, and at once when training is over."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

import jax
import numpy as np

GRACE = 5.0  # seconds between an exception in a signal's handler and the end of the process


class Interrupted(Exception):
    """The run stopped on a signal, its last step on disk.

    Attributes:
      code: the exit code, 128 + the signal.
      alone: the other processes have not been asked.
    """

    def __init__(self, number: int, *, alone: bool = False):
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number
        self.alone = alone


class Stop:
    """Remembers the first SIGTERM or SIGINT while it is entered; a second one acts at once.

    Args:
      leave: ends the process with an exit code, called from another thread.

    Attributes:
      signal: the one remembered, 0 for none.
    """

    def __init__(self, leave: Callable[[int], None] = os._exit) -> None:
        self.signal = 0
        self._leave = leave
        self._saved = False
        self._previous: dict[int, object] = {}
        self._end: threading.Timer | None = None

    def __enter__(self) -> "Stop":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._end:
            self._end.cancel()
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.signal or self._saved:
            # The interpreter swallows what is raised while it runs a callback, of the garbage collector for one.
            self._end = threading.Timer(GRACE, self._leave, (128 + number,))
            self._end.daemon = True
            self._end.start()
            raise Interrupted(number, alone=True)
        self.signal = number

    def at_once(self) -> None:
        """From here on nothing is to be saved: a signal, also one remembered, ends the run without waiting for a step.

        Raises:
          Interrupted: one is remembered, by any process; all must call this.
        """
        self._saved = True
        if number := self.agreed():
            raise Interrupted(number)

    def agreed(self) -> int:
        """The signal that any process has received, 0 for none; all processes must call this at the same step."""
        if jax.process_count() == 1:
            return self.signal
        from jax.experimental import multihost_utils

        return int(np.max(multihost_utils.process_allgather(np.int32(self.signal))))
