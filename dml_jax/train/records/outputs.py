"""Where a run is recorded."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax

from dml_jax.console import Console
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import mesh
from dml_jax.train.records import workdir
from dml_jax.train.records.jsonl import JsonLines
from dml_jax.train.records.trace import Trace
from dml_jax.train.state import TrainState


class Outputs(NamedTuple):
    """Where a run is recorded; `metrics` and `timing` are `metrics.jsonl` and `timing.jsonl`."""

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
) -> Iterator[Outputs]:
    """The outputs of a run in its work directory.

    `facts` are the contents of `config.json`, `template` as for `Checkpoints`, `metrics` are `metrics.jsonl` and
    wherever else its lines are shown, `traced` the first and last step of a trace.
    """
    timing = JsonLines(directory / "timing.jsonl", mesh.is_main_process())
    trace = Trace(directory / "profile" / process_name(), traced)
    with closing(open_checkpoints(directory, facts, template, console, writing=True)) as checkpoints:
        yield Outputs(checkpoints, metrics, timing, console, trace)


def open_checkpoints(
    directory: Path, facts: Mapping[str, Any], template: Callable[[], TrainState], console: Console, *, writing: bool
) -> Checkpoints:
    """The checkpoints of a work directory; the arguments are those of `opened`."""
    return Checkpoints(
        directory / "checkpoints",
        template,
        lambda text: console.print(f"warning: {text}"),
        run=workdir.identity(facts),
        writing=writing,
    )


def process_name() -> str:
    """What the files of this process are called."""
    return f"host-{jax.process_index()}"
