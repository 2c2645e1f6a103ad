"""The speed of an interval."""

from types import SimpleNamespace

import pytest

from dml_jax.train.records import timing


def test_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps of 32 images on four devices in 5 s, 1 s of it waiting."""
    now, batches = [100.0], SimpleNamespace(waited=7.0)
    monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(timing, "peak_memory", lambda: 3 * 2**30)
    clock = timing.Meter(batches, 32, 20)  # type: ignore[arg-type]
    now[0], batches.waited = 105.0, 8.0
    line = clock.read(30)
    assert line == {
        "step": 30, "images_per_second": 64.0, "data_wait": 0.2,
        "peak_memory": 3 * 2**30, "step_seconds": 0.5,
    }  # fmt: skip
    text = "64 images/s  500 ms a step  waiting for data 20%  memory 3.0 GiB"
    assert timing.describe(line) == text
    assert clock.read(30).keys() == line.keys() - {"step_seconds"}
