"""How fast a run trains: step time, images per second, waiting for data, memory, use of the devices' peak rate.

`Meter` writes the lines of `timing.jsonl`, `summary` sums them up. The FLOPs of a step are those of all products and
convolutions of the program as written; what is computed again to save memory (`train.chunks`, `backbone.remat`) counts
again. The peak rate is the one of dense bfloat16 products, whatever the run computes in, so that utilisations are
comparable.
"""

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
from dml_jax.methods.contract import Batch
from dml_jax.train import hlo
from dml_jax.train.experiment import Experiment
from dml_jax.train.state import TrainState

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
    """Reads the speed of the training since the last reading; a batch has `batch_size` images, over all devices.

    Without `fastest`, see `fastest_step`, the utilisation is left out.
    """

    def __init__(self, batches: BatchReader[Any], batch_size: int, devices: int, step: int):
        self._batches, self._batch_size, self._devices = batches, batch_size, devices
        self.fastest: float | None = None
        self.restart(step)

    def restart(self, step: int) -> None:
        """Starts an interval after `step` steps; leaves out what came before, e.g. compilation or an evaluation."""
        self._began, self._waited, self._step = time.monotonic(), self._batches.waited, step

    def read(self, step: int) -> dict[str, float]:
        """A line for `timing.jsonl`; starts the next interval.

        Returns:
          "step"; "images_per_second", of all devices and "…_per_device"; "data_wait", the share of the time spent
          waiting for data; "peak_memory", bytes; and, unless there was no step in the interval, "step_seconds" and,
          where the devices' peak rate is known, "flop_utilisation", a share of it.
        """
        seconds, done = max(time.monotonic() - self._began, 1e-9), step - self._step
        rate = done * self._batch_size / seconds
        line = {
            "step": step,
            "images_per_second": rate,
            "images_per_second_per_device": rate / self._devices,
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
    if line["images_per_second_per_device"] < line["images_per_second"]:
        text += f" ({line['images_per_second_per_device']:.0f} per device)"
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
