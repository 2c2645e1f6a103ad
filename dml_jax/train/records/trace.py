"""A trace of some training steps: what the devices and the host do when, for XProf or https://ui.perfetto.dev."""

from pathlib import Path
from types import TracebackType
from typing import Any

import jax


class Trace:
    """Context manager of the training loop that records `steps`, the first and the last one, from 1; None: nothing.

    After a resume, the remaining ones are traced. Only this process writes to the directory.
    """

    def __init__(self, directory: Path = Path(), steps: tuple[int, int] | None = None):
        self._directory, self._steps = directory, steps
        self._tracing = False

    def before(self, step: int) -> None:
        """Starts the trace if `step` is to be traced."""
        if self._steps and not self._tracing and self._steps[0] <= step <= self._steps[1]:
            jax.profiler.start_trace(self._directory)
            self._tracing = True

    def after(self, step: int, values: Any) -> bool:
        """Ends the trace if `step` was the last one, once `values` have been computed; returns whether it did."""
        if not (self._tracing and self._steps and step >= self._steps[1]):
            return False
        jax.block_until_ready(values)
        self._end()
        return True

    def _end(self) -> None:
        self._tracing, self._steps = False, None
        jax.profiler.stop_trace()

    def __enter__(self) -> "Trace":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tracing:  # the run ends early
            self._end()
