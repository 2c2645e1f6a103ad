"""The files in which a run is recorded while it trains: checkpoints, metrics, timing, and a trace of some steps."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import jax

from dml_jax.console import Console
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import mesh
from dml_jax.train.records import workdir
from dml_jax.train.records.jsonl import JsonLines
from dml_jax.train.state import TrainState


class Trace:
    """Context manager of the training loop that traces `steps`, the first and the last one, from 1; None: nothing."""

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


class RunRecords(NamedTuple):
    """The records of a run, with `metrics.jsonl` and `timing.jsonl`."""

    checkpoints: Checkpoints
    metrics: JsonLines
    timing: JsonLines
    console: Console
    trace: Trace = Trace()


@contextmanager
def opened(
    directory: Path,
    facts: Mapping[str, Any],
    template: Callable[[], TrainState],
    console: Console,
    metrics: JsonLines,
    traced: tuple[int, int] | None = None,
) -> Iterator[RunRecords]:
    """The records of a run in its work directory; `facts` are the contents of its `config.json`."""
    timing = JsonLines(directory / "timing.jsonl", mesh.is_main_process())
    trace = Trace(directory / "profile" / process_name(), traced)
    stored = Checkpoints(directory / "checkpoints", template, console.warn, run=workdir.identity(facts))
    with closing(stored) as checkpoints:
        yield RunRecords(checkpoints, metrics, timing, console, trace)


def process_name() -> str:
    """What the files of this process are called."""
    return f"host-{jax.process_index()}"
