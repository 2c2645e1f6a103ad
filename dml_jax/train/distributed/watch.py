"""Hangs can be read: a line about a step that takes too long, with the process that is late, and one line a minute.

The stacks of all threads are written by `process_group.keep_stacks`.
"""

import json
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from dml_jax.train.distributed import process_group

FACTOR = 20  # times the median, after which a step is slow
SHORTEST = 5.0  # seconds, in which no step is slow
KNOWN = 5  # number of known step durations that are needed
MINUTE = 60.0  # seconds between two lines


class Watch:
    """Context of the training loop; `file` gets one line of JSON per minute, `warn` a sentence about each slow step."""

    def __init__(
        self,
        file: Path | None = None,
        warn: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._file, self._warn, self._clock = file, warn, clock
        self._durations: deque[float] = deque(maxlen=100)
        self._step, self._began, self._warned = 0, 0.0, False
        self._written = clock()
        self._stop = threading.Event()

    def stepped(self, step: int) -> None:
        """A step was given to the devices; the next one begins."""
        now = self._clock()
        if self._began:
            self._durations.append(now - self._began)
        self._step, self._began, self._warned = step, now, False
        process_group.report(step)

    def pause(self) -> None:
        """Until the next step, the process does something else, such as an evaluation."""
        self._began = 0.0

    def check(self) -> None:
        """Warns once if the current step is slow; writes a line if a minute has passed."""
        now, began = self._clock(), self._began
        median = statistics.median(self._durations or [0.0])
        if now - self._written >= MINUTE:
            self._written = now
            self._write(median)
        slow = max(FACTOR * median, SHORTEST)
        if began and not self._warned and len(self._durations) >= KNOWN and now - began > slow:
            self._warned = True
            self._warn(
                f"step {self._step + 1} has taken {now - began:.0f} s so far, the median is {median:.2g} s"
                f"{late(self._step, process_group.peers())}; kill -USR1 {os.getpid()} writes the stacks of all threads "
                "to logs/"
            )

    def _write(self, median: float) -> None:
        line = {
            "time": datetime.now().astimezone().isoformat(timespec="seconds"),
            "step": self._step,
            "step_seconds": median,
            "busy_with": "training" if self._began else "evaluating or saving",
            "peers": {index: {"step": step, "silent": silent} for index, step, silent in process_group.peers()},
        }
        with suppress(OSError), open(self._file or os.devnull, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            self.check()

    def __enter__(self) -> "Watch":
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()


def late(step: int, peers: list[tuple[int, int, float]]) -> str:
    """Which process is late, by (index, step, seconds of silence) of the others; empty if unknown."""
    silent = [f"{index} (silent for {seconds:.0f} s)" for index, _, seconds in peers if seconds > 3]
    behind = [f"{index} (at step {other})" for index, other, _ in peers if other < step]
    if silent or behind:
        return f"; late: process {', '.join(silent or behind)}"
    return f"; late: this process (at step {step})" if any(other > step for _, other, _ in peers) else ""
