"""What a person sees of a run: a live line on a terminal, plain lines elsewhere."""

import time
from types import TracebackType

import rich.console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

REPORT_SECONDS = 20.0  # between two plain lines


class Console:
    """Progress of one run on standard output.

    Args:
      quiet: messages only, no progress.
      active: False on all processes but the first, which then print nothing.
    """

    def __init__(self, *, quiet: bool = False, active: bool = True):
        self.rich = rich.console.Console(quiet=not active, highlight=False, soft_wrap=True)
        if not self.rich.is_terminal:
            self.rich.width = 132  # a log file has no width of its own
        self._live = self.rich.is_terminal and not quiet
        self._quiet = quiet
        self._bar: Progress | None = None
        self._last = 0.0

    def say(self, message: str) -> None:
        """One line that stays."""
        self.rich.print(message, markup=False)

    def __enter__(self) -> "Console":
        if self._live:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=self.rich, transient=True)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    def begin(self, what: str, total: int, done: int = 0) -> None:
        """Starts a new bar of `total` parts."""
        self._what, self._total, self._start, self._from = what, total, time.monotonic(), done
        self._last = self._start - REPORT_SECONDS + 2
        if self._bar:
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._task = self._bar.add_task(what, total=total, completed=done, text="")

    def advance(self, done: int, text: str = "") -> None:
        """`done` parts are done; `text` says how it goes."""
        if self._bar:
            self._bar.update(self._task, completed=done, text=text)
        elif not self._quiet and time.monotonic() - self._last > REPORT_SECONDS:
            self._last = time.monotonic()
            share = (self._total - done) / max(done - self._from, 1)
            left = share * (self._last - self._start)
            self.say(f"{self._what} {done}/{self._total}  {text}  about {left:.0f} s left")
