"""Speed and utilisation of an interval; the traced steps."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from dml_jax.train.records import timing
from dml_jax.train.records.timing import Trace


@pytest.mark.parametrize(
    ("kind", "rate"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA L40S", 362e12), ("TPU v5 lite", 197e12), ("TPU v5p", 459e12), ("cpu", None), ("Tesla T4", None),
    ],
)  # fmt: skip
def test_peak_rates(kind: str, rate: float | None) -> None:
    assert timing.peak_rate(kind) == rate


def test_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps of 32 images on four devices in 5 s, 1 s of it waiting; at the peak rate a step would take 0.1 s."""
    now, batches = [100.0], SimpleNamespace(waited=7.0)
    monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(timing, "peak_memory", lambda: 3 * 2**30)
    clock = timing.Meter(batches, 32, 20)  # type: ignore[arg-type]
    clock.fastest = 0.1
    now[0], batches.waited = 105.0, 8.0
    line = clock.read(30)
    assert line == {
        "step": 30, "images_per_second": 64.0, "data_wait": 0.2,
        "peak_memory": 3 * 2**30, "step_seconds": 0.5, "flop_utilisation": 0.2,
    }  # fmt: skip
    text = "64 images/s  500 ms a step  waiting for data 20%  memory 3.0 GiB  FLOP utilisation 20%"
    assert timing.describe(line) == text
    assert clock.read(30).keys() == line.keys() - {"step_seconds", "flop_utilisation"}


@pytest.mark.parametrize(("steps", "start", "traced"), [((2, 3), 1, [2, 3]), ((2, 4), 3, [3, 4]), ((2, 3), 4, [])])
def test_traced_steps(
    steps: tuple[int, int], start: int, traced: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first step, or the one at which a run continues, to the last."""
    events: list[Any] = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda directory: events.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: events.append("stop"))
    trace = Trace(tmp_path, steps)
    for step in range(start, 6):
        trace.before(step)
        events.append(step)
        assert trace.after(step, ()) == (step == traced[-1] if traced else False)
    inside = events[events.index("start") + 1 : events.index("stop")] if traced else []
    assert inside == traced
    assert events.count("start") == events.count("stop") == bool(traced)
