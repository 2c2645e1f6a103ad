"""How fast a run trains: step time, images per second, waiting for data, memory."""

import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax

from dml_jax.data.pipeline import BatchReader


class Meter:
    """Reads the speed of the training since the last reading; a batch has `batch_size` images, over all devices."""

    def __init__(self, batches: BatchReader[Any], batch_size: int, step: int):
        self._batches, self._batch_size = batches, batch_size
        self.restart(step)

    def restart(self, step: int) -> None:
        """Starts an interval after `step` steps, without a compilation or an evaluation before it."""
        self._began, self._waited, self._step = time.monotonic(), self._batches.waited, step

    def read(self, step: int) -> dict[str, float]:
        """A line for `timing.jsonl`, with "data_wait" as a share of the time, memory in bytes; starts an interval."""
        seconds, done = max(time.monotonic() - self._began, 1e-9), step - self._step
        rate = done * self._batch_size / seconds
        line = {
            "step": step,
            "images_per_second": rate,
            "data_wait": (self._batches.waited - self._waited) / seconds,
            "peak_memory": peak_memory(),
        }
        if done:
            line["step_seconds"] = seconds / done
        self.restart(step)
        return line


def describe(line: dict[str, float]) -> str:
    """A line of `timing.jsonl` as text."""
    text = f"{line['images_per_second']:.0f} images/s"
    if "step_seconds" in line:
        text += f"  {1000 * line['step_seconds']:.0f} ms a step"
    return f"{text}  waiting for data {line['data_wait']:.0%}  memory {line['peak_memory'] / 2**30:.1f} GiB"


def peak_memory() -> int:
    """The largest number of bytes that a device of this process has held; on CPUs, the process itself."""
    of_devices = [device.memory_stats() or {} for device in jax.local_devices()]
    if found := [values["peak_bytes_in_use"] for values in of_devices if "peak_bytes_in_use" in values]:
        return max(found)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def machine() -> str:
    """The devices, the cores and the system, in words."""
    devices = jax.devices()
    system = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    return f"{len(devices)} x {devices[0].device_kind}, {system}"


def summary(lines: Sequence[dict[str, Any]], batch_size: int) -> dict[str, float]:
    """Seconds of training without compilation and evaluation, median speed and peak memory; empty without steps."""
    seconds, before, rates = 0.0, 0, []
    for line in lines:
        if line["images_per_second"] > 0:  # 0 if there was no step since compilation or an evaluation
            seconds += (line["step"] - before) * batch_size / line["images_per_second"]
            rates.append(line["images_per_second"])
        before = line["step"]
    if not rates:
        return {}
    found = {"seconds": round(seconds, 3), "images_per_second": round(statistics.median(rates), 3)}
    return found | {"peak_memory": max(line["peak_memory"] for line in lines)}
