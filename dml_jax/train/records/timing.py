"""How fast a run trains: step time, images per second, waiting for data, memory, use of the devices' peak rate.

The FLOPs of a step count all products and convolutions of the program as written, also recomputed ones. The peak rate
is of dense bfloat16 products, whatever the run computes in, so that utilisations are comparable.
"""

import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from dml_jax.data.pipeline import BatchReader
from dml_jax.methods.contract import Batch
from dml_jax.train import hlo
from dml_jax.train.experiment import Experiment
from dml_jax.train.step import TrainState

# FLOP/s of dense bfloat16 products of one JAX device, by the beginning of its `device_kind`; the first match counts.
# GPUs: NVIDIA's data sheets (half of the figures given with sparsity). TPUs: cloud.google.com/tpu/docs, per chip; a
# device of v2 and v3 is one of the two cores of a chip.
PEAK_RATES = {
    "NVIDIA B200": 2.25e15,
    "NVIDIA GB200": 2.5e15,
    "NVIDIA H200": 989e12,
    "NVIDIA GH200": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 80GB": 989e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
    "TPU v6 lite": 918e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,  # v5p
    "TPU v4": 275e12,
    "TPU v3": 61.5e12,
    "TPU v2": 22.5e12,
}


def peak_rate(device_kind: str) -> float | None:
    """The entry of `PEAK_RATES` for a device; None if it is unknown."""
    return next((rate for kind, rate in PEAK_RATES.items() if device_kind.startswith(kind)), None)


def step_flops(experiment: Experiment, state: TrainState, batch: Batch, key: jax.Array) -> float:
    """The FLOPs of a step on all devices together; traces it, but compiles nothing."""
    backend = jax.default_backend()
    return hlo.flops(experiment.jitted_step(), state, batch, key, platform="cuda" if backend == "gpu" else backend)


def fastest_step(experiment: Experiment, state: TrainState, batch: Batch, key: jax.Array) -> float | None:
    """The seconds that a step would take at the peak rate of the devices; None if it is unknown."""
    rate = peak_rate(jax.devices()[0].device_kind)
    return step_flops(experiment, state, batch, key) / (jax.device_count() * rate) if rate else None


class Meter:
    """Reads the speed of the training since the last reading; a batch has `batch_size` images, over all devices."""

    def __init__(self, batches: BatchReader[Any], batch_size: int, step: int):
        self._batches, self._batch_size = batches, batch_size
        self.fastest: float | None = None  # seconds of a step at the peak rate of the devices
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
            if self.fastest:
                line["flop_utilisation"] = self.fastest * done / seconds
        self.restart(step)
        return line


def describe(line: dict[str, float]) -> str:
    """A line of `timing.jsonl` as text."""
    text = f"{line['images_per_second']:.0f} images/s"
    if "step_seconds" in line:
        text += f"  {1000 * line['step_seconds']:.0f} ms a step"
    text += f"  waiting for data {line['data_wait']:.0%}  memory {line['peak_memory'] / 2**30:.1f} GiB"
    if "flop_utilisation" in line:
        text += f"  FLOP utilisation {line['flop_utilisation']:.0%}"
    return text


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


class Trace:
    """Traces `steps` of the training loop, the first and the last one, from 1; None: nothing."""

    def __init__(self, directory: Path = Path(), steps: tuple[int, int] | None = None):
        self._directory, self._steps = directory, steps or (0, -1)
        self._tracing = False

    def before(self, step: int) -> None:
        """Starts the trace before the first traced step."""
        if not self._tracing and self._steps[0] <= step <= self._steps[1]:
            jax.profiler.start_trace(self._directory)
            self._tracing = True

    def after(self, step: int, values: Any) -> bool:
        """Ends the trace if `step` was the last one, once `values` have been computed; returns whether it did."""
        if not self._tracing or step < self._steps[1]:
            return False
        jax.block_until_ready(values)
        jax.profiler.stop_trace()
        self._tracing = False
        return True
