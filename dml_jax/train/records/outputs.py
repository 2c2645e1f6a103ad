"""Where a run is recorded."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax

from dml_jax.console import Console
from dml_jax.train import on_devices
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import workdir
from dml_jax.train.records.jsonl import JsonLines
from dml_jax.train.records.trace import Trace


class Outputs(NamedTuple):
    """Where a run is recorded.

    Attributes:
      checkpoints: of the work directory.
      metrics: `metrics.jsonl`.
      timing: `timing.jsonl`.
      console: shows progress.
      trace: of some steps.
    """

    checkpoints: Checkpoints
    metrics: JsonLines
    timing: JsonLines
    console: Console
    trace: Trace = Trace()


@contextmanager
def opened(
    experiment: Experiment,
    directory: Path,
    facts: Mapping[str, Any],
    console: Console,
    metrics: JsonLines,
    traced: tuple[int, int] | None = None,
) -> Iterator[Outputs]:
    """The outputs of a run with these facts in its work directory."""
    timing = JsonLines(directory / "timing.jsonl", mesh.is_main_process())
    trace = Trace(directory / "profile" / process_name(), traced)
    with closing(open_checkpoints(experiment, directory, console, facts, writing=True)) as checkpoints:
        yield Outputs(checkpoints, metrics, timing, console, trace)


def open_checkpoints(
    experiment: Experiment, directory: Path, console: Console, facts: Mapping[str, Any], *, writing: bool
) -> Checkpoints:
    """The checkpoints of a work directory, of the run with these facts."""
    return Checkpoints(
        directory / "checkpoints",
        lambda: on_devices.template(experiment),
        lambda text: console.print(f"warning: {text}"),
        run=workdir.identity(facts),
        writing=writing,
    )


def process_name() -> str:
    """What the files of this process are called."""
    return f"host-{jax.process_index()}"
