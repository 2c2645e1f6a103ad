"""Clock readings, memory and machine: what `timing.jsonl` holds, and what it says about a whole run."""

import os
import platform
import resource
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import jax


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
    """Training time, speed and memory of a run, from the lines of its `timing.jsonl`.

    Returns:
      "seconds" of training, without compilation and evaluation; "images_per_second", the median over the lines; and
      "peak_memory", bytes, where it is known. Empty if nothing was measured.
    """
    seconds, before, rates = 0.0, 0, []
    for line in lines:
        if line["images_per_second"] > 0:  # 0 if there was no step since compilation or an evaluation
            seconds += (line["step"] - before) * batch_size / line["images_per_second"]
            rates.append(line["images_per_second"])
        before = line["step"]
    if not rates:
        return {}
    found = {"seconds": round(seconds, 3), "images_per_second": round(statistics.median(rates), 3)}
    if memory := [line["peak_memory"] for line in lines if line.get("peak_memory")]:
        found["peak_memory"] = max(memory)
    return found
