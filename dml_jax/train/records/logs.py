"""Logs as lines of JSON: `metrics.jsonl`, which depends only on the run, and `timing.jsonl`."""

import hashlib
import json
import os
import platform
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import pydantic

from dml_jax import seal
from dml_jax.config import Config, flatten
from dml_jax.data.pipeline import BatchReader
from dml_jax.errors import CheckpointError
from dml_jax.files import atomic_write, finite, name_file, reading

Show = Callable[[dict[str, Any]], None]


class JsonLines:
    """A file with one JSON object per line, each with a `step`; only an `active` process writes it.

    `show` is called with the lines that remain after truncation, then with every new line.
    """

    def __init__(self, path: Path, active: bool = True, show: Show | None = None):
        self.path, self.active, self._show = path, active, show
        self._last, self._before, self._through = 0, hashlib.sha256(), hashlib.sha256()

    def _count(self, step: int, text: str) -> None:
        if step != self._last:
            self._last, self._before = step, self._through.copy()
        self._through.update(text.encode())

    def digests(self, step: int) -> dict[str, str]:
        """SHA-256 of the lines before and through a step, which must not precede the last line."""
        before = self._before if step == self._last else self._through
        return {"before": before.hexdigest(), "through": self._through.hexdigest()}

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line and flushes it to disk, so that the log is never behind a checkpoint.

        Undefined metrics (NaN) become null.
        """
        if not self.active:
            return
        text = json.dumps(finite(line)) + "\n"
        with name_file(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self._count(line["step"], text)
        if self._show:
            self._show(line)

    def read(self) -> list[dict[str, Any]]:
        """All complete lines, without an incomplete last line of a killed run."""
        if not self.path.exists():
            return []
        seal.file(self.path.parent, self.path.name, error=CheckpointError)
        with reading(self.path, "restore it from a copy", CheckpointError):
            complete, _, _ = self.path.read_text(encoding="utf-8").rpartition("\n")
            lines: list[dict[str, Any]] = [json.loads(text) for text in complete.splitlines()]
            steps = [line["step"] for line in lines]
            pydantic.TypeAdapter(list[pydantic.StrictInt]).validate_python(steps)
        return lines

    def truncate(self, step: int, sha256: str | None = None) -> None:
        """Removes lines after `step`, which the resumed run writes again, and an incomplete line.

        Raises CheckpointError, without any change, if the SHA-256 of the remaining lines is not
        `sha256`.
        """
        if not self.active:
            return
        remaining = [
            (line, json.dumps(line) + "\n") for line in self.read() if line["step"] <= step
        ]
        content = "".join(text for _, text in remaining)
        if sha256 not in (None, hashlib.sha256(content.encode()).hexdigest()):
            raise CheckpointError(
                f"{self.path}: the lines up to step {step} have changed since the run wrote them; "
                "restore it from a copy, or delete "
                f"{self.path.parent / 'checkpoints'} to train from the start"
            )
        if self.path.exists():
            with atomic_write(self.path) as draft:
                draft.write_text(content, encoding="utf-8")
        for line, text in remaining:
            self._count(line["step"], text)
            if self._show:
                self._show(line)


def tensorboard(directory: Path, config: Config) -> Show:
    """Writes lines of `metrics.jsonl` for TensorBoard; removes event files of earlier starts."""
    from tensorboardX import SummaryWriter

    shutil.rmtree(directory, ignore_errors=True)
    # A running TensorBoard forgets the steps of removed files from `purge_step` on.
    writer = SummaryWriter(str(directory), purge_step=0)
    table = "".join(f"| {key} | {value} |\n" for key, value in flatten(asdict(config)).items())
    writer.add_text("configuration", f"| key | value |\n|---|---|\n{table}")

    def show(line: dict[str, Any]) -> None:
        for name, value in line.items():
            if name != "step" and isinstance(value, int | float):
                tag = name if "/" in name else f"train/{name}"
                # "@" is not allowed in a tag.
                writer.add_scalar(tag.replace("@", "_at_"), value, line["step"])
        writer.flush()

    return show


class Meter:
    """Measures the speed of training since the last reading."""

    def __init__(self, batches: BatchReader[Any], batch_size: int, step: int):
        self._batches, self._batch_size = batches, batch_size
        self.restart(step)

    def restart(self, step: int) -> None:
        """Starts an interval after `step` steps, to exclude compilation or evaluation."""
        self._began, self._waited, self._step = time.monotonic(), self._batches.waited, step

    def read(self, step: int) -> dict[str, float]:
        """A line for `timing.jsonl`; "data_wait" is a fraction of the time, memory is in bytes."""
        seconds, done = max(time.monotonic() - self._began, 1e-9), step - self._step
        line = {
            "step": step,
            "images_per_second": done * self._batch_size / seconds,
            "data_wait": (self._batches.waited - self._waited) / seconds,
            "peak_memory": peak_memory(),
        }
        if done:
            line["step_seconds"] = seconds / done
        self.restart(step)
        return line


def describe(line: dict[str, float]) -> str:
    """A line of `timing.jsonl` as text."""
    parts = [f"{line['images_per_second']:.0f} images/s"]
    if "step_seconds" in line:
        parts.append(f"{1000 * line['step_seconds']:.0f} ms a step")
    parts.append(f"waiting for data {line['data_wait']:.0%}")
    return "  ".join([*parts, f"memory {line['peak_memory'] / 2**30:.1f} GiB"])


def peak_memory() -> int:
    """The peak memory of a device, or of this process on CPUs, in bytes."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [each["peak_bytes_in_use"] for each in stats if "peak_bytes_in_use" in each]
    unit = 1 if sys.platform == "darwin" else 1024
    return max(peaks, default=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def machine() -> str:
    """A description of devices, cores and operating system."""
    devices = jax.devices()
    system = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    return f"{len(devices)} x {devices[0].device_kind}, {system}"


def summary(timing: JsonLines, batch_size: int) -> dict[str, float]:
    """Seconds of training only, median speed and peak memory; empty without steps.

    Raises CheckpointError if a line of `timing.jsonl` lacks a number.
    """
    seconds, before, rates, lines = 0.0, 0, [], timing.read()
    with reading(timing.path, "delete it and repeat the command", CheckpointError):
        for line in lines:
            if line["images_per_second"] > 0:  # 0 just after compilation or evaluation
                seconds += (line["step"] - before) * batch_size / line["images_per_second"]
                rates.append(line["images_per_second"])
            before = line["step"]
        if not rates:
            return {}
        return {
            "seconds": round(seconds, 3),
            "images_per_second": round(statistics.median(rates), 3),
            "peak_memory": max(line["peak_memory"] for line in lines),
        }
