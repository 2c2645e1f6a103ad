"""What limits a run: a trace of its steps in one table, beside the facts of the compiled step.

A device is busy while one of the step's operations runs; otherwise it waits for the host or for
data. Communication is exposed while nothing else runs. On CPUs, all devices of a process count as
one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.profiler import ProfileData
from rich.table import Table

from dml_jax.lab import compilation, hlo
from dml_jax.train import loop
from dml_jax.train.experiment import Experiment

Span = tuple[float, float]  # start and end in nanoseconds
NAME = "update"  # of the function that `Experiment.jitted_step` compiles


class Measured(NamedTuple):
    """Means of a step; times in seconds, those of operations of one device."""

    step: float
    enqueue: float  # time of the host for starting it
    waiting: float  # for the batch
    busy: float
    exposed: float  # communication
    kinds: Mapping[str, tuple[float, float]]  # (number, time) of operations by kind

    @property
    def limit(self) -> str:
        """What takes longest of the three that go on at the same time."""
        times = {"device": self.busy, "host": self.enqueue, "data": self.waiting}
        return max(times, key=lambda name: times[name])


def seconds(spans: Iterable[Span]) -> float:
    """The time that is in at least one of the spans."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(last - max(first, end), 0.0)
        end = max(end, last)
    return total / 1e9


def measure(trace: ProfileData, steps: int, text: str) -> Measured:
    """The means of the steps of a trace; `text` is the HLO of the compiled program."""
    kinds, host = hlo.kinds(text), defaultdict[str, list[Span]](list)
    devices: list[dict[str, list[Span]]] = []
    for plane in trace.planes:
        found = defaultdict[str, list[Span]](list)
        events = [(line.name, event) for line in plane.lines for event in line.events]
        # On a CPU, the event of an operation may only hand it to the threads. Another one, with the
        # same number, follows when they are done.
        done = {
            dict(event.stats)["_c"]: event.start_ns
            for _, event in events
            if event.name.startswith("end: ")
        }
        for line, event in events:
            first, last = event.start_ns, event.start_ns + event.duration_ns
            if event.name in (f"PjitFunction({NAME})", loop.WAITING):
                host[event.name].append((first, last))
            elif kind := kinds.get(_operation(plane.name, line, event)):
                last = max(last, done.get(dict(event.stats).get("_p"), last))
                found[kind].append((first, last))
        if found:
            devices.append(found)

    def mean(of: Callable[[dict[str, list[Span]]], float]) -> float:
        return sum(map(of, devices)) / max(len(devices), 1) / steps

    def busy(found: Mapping[str, list[Span]], without: str = "") -> float:
        return seconds(span for kind in found if kind != without for span in found[kind])

    def of_kind(kind: str) -> tuple[float, float]:
        return mean(lambda found: len(found[kind])), mean(lambda found: seconds(found[kind]))

    calls, waits = (host[name] for name in (f"PjitFunction({NAME})", loop.WAITING))
    spans = chain(calls, waits, *(each for found in devices for each in found.values()))
    starts, ends = zip(*spans, strict=True)
    by_kind = {kind: of_kind(kind) for kind in {kind for found in devices for kind in found}}
    return Measured(
        (max(ends) - min(starts)) / 1e9 / steps,
        seconds(calls) / steps,
        seconds(waits) / steps,
        mean(busy),
        mean(lambda found: busy(found) - busy(found, "collective")),
        dict(sorted(by_kind.items(), key=lambda item: -item[1][1])),
    )


def _operation(plane: str, line: str, event: Any) -> str:
    """The name of the step's instruction that ran in an event, "" for other events."""
    if plane.startswith("/device:TPU"):
        return event.name.partition(" = ")[0].lstrip("%") if line == "XLA Ops" else ""
    if line == "python":
        return ""
    facts = dict(event.stats)
    return str(facts["hlo_op"]) if facts.get("hlo_module") == f"jit_{NAME}" else ""


def report(
    experiment: Experiment, directory: Path, steps: int, lowered: jax.stages.Lowered
) -> Table:
    """The table of the newest trace, of `steps` steps, in a directory."""
    program = lowered.compile()  # from the cache of compiled programs
    text = program.as_text() or ""
    newest = max(directory.rglob("*.xplane.pb"), key=lambda file: file.stat().st_mtime)
    found = measure(ProfileData.from_file(str(newest)), steps, text)
    device = experiment.mesh.devices.flat[0]
    facts: dict[str, Any] = {}
    if chip := compilation.find_chip(device.device_kind):
        topology = compilation.Topology("", device.platform, experiment.mesh, chip, {})
        facts = compilation.compiled(lambda: lowered, topology)
        facts |= compilation.bound(experiment, topology, facts)
    return table(found, facts)


def table(found: Measured, facts: Mapping[str, Any]) -> Table:
    """`found` beside the facts of `compilation.bound`, if there are any."""
    made = Table("a step", "measured", "compiled", title=f"limited by the {found.limit}")

    def show(time: float) -> str:
        return f"{1000 * time:.2f} ms"

    least = facts.get("bound")
    made.add_row("time", show(found.step), f"at least {show(least['seconds'])}" if least else "")
    made.add_row(
        "host: starting it", show(found.enqueue), show(facts["host_seconds"]) if least else ""
    )
    made.add_row("host: waiting for data", show(found.waiting), "")
    busy = f"{show(found.busy)}, {found.busy / found.step:.0%}"
    made.add_row("device: busy", busy, f"{least['by']} {show(least['seconds'])}" if least else "")
    made.add_row("device: exposed communication", show(found.exposed), "")
    expected = facts.get("launches", {}).get("kinds", {})
    counts = sum(number for number, _ in found.kinds.values())
    made.add_row("launches", f"{counts:.0f}", f"{sum(expected.values())}" if expected else "")
    for kind, (number, time) in found.kinds.items():
        made.add_row(f"  {kind}", f"{number:.0f}, {show(time)}", str(expected.get(kind, "")))
    return made
