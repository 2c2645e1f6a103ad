"""Messages and progress on standard output: a live bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, TextIO

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

from dml_jax.errors import LAYOUT, printable

REPORT_SECONDS = 20.0  # between plain progress lines
FIRST_REPORT_SECONDS = 2.0
LOG_WIDTH = 132  # table width if the output is not a terminal


class RichConsole(rich.console.Console):
    """A Rich console that escapes control characters in texts, but not those of Rich itself."""

    def __init__(self, **options: Any):
        super().__init__(highlight=False, soft_wrap=True, **options)

    @property
    def file(self) -> IO[str]:
        """The current standard output, without the streams that wrap it."""
        stream: Any = super().file
        while hasattr(stream, "rich_proxied_file"):  # `Escaping`, or Rich's with a progress bar
            stream = stream.rich_proxied_file
        return stream

    @file.setter
    def file(self, stream: IO[str]) -> None:
        self._file = stream

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text, LAYOUT)
            yield segment._replace(text=text)


class Console:
    """Prints messages and, unless `quiet`, progress; prints nothing unless `active`."""

    def __init__(self, *, quiet: bool = False, active: bool = True):
        self.rich = RichConsole(quiet=not active)
        if not self.rich.is_terminal:
            self.rich.width = LOG_WIDTH
        self._live = self.rich.is_terminal and not quiet
        self._quiet = quiet
        self._bar: Progress | None = None
        self._reported = 0.0
        self._log: TextIO | None = None
        self.named: dict[str, str] = {}  # path of a directory -> name in messages

    def log_to(self, file: Path) -> None:
        """Also appends messages and progress to a file, with the time, even if not `active`."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._log = open(file, "a", buffering=1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115

    def log(self, text: str) -> None:
        """Writes a line to the log file only."""
        if self._log:
            with suppress(OSError):  # a full disk should not end a run
                self._log.write(f"{datetime.now().isoformat(' ', 'seconds')} {printable(text)}\n")

    def print(self, message: str) -> None:
        """Prints a permanent line."""
        for path, name in self.named.items():
            message = message.replace(path, name)
        self.log(message)
        self._show(message)

    def warn(self, message: str) -> None:
        """Prints a warning."""
        self.print(f"warning: {message}")

    def _show(self, message: str) -> None:
        self.rich.print(printable(message), markup=False)

    def __enter__(self) -> "Console":
        if self._live:
            name, text = TextColumn("{task.description}"), TextColumn("{task.fields[text]}")
            columns = name, BarColumn(), text, TimeRemainingColumn()
            self._bar = Progress(*columns, console=self.rich, transient=True)
            self._bar.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None
        if self._log:
            if error:
                self.log(f"{type(error).__name__}: {error}")
            with suppress(OSError):
                self._log.close()
            self._log = None

    def start_progress(self, activity: str, total: int, done: int = 0) -> None:
        """Starts a progress bar of `total` steps with `done` already done."""
        self._activity, self._total, self._started, self._first = (
            activity,
            total,
            time.monotonic(),
            done,
        )
        self._reported = self._started - REPORT_SECONDS + FIRST_REPORT_SECONDS
        if self._bar:
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._task = self._bar.add_task(activity, total=total, completed=done, text="")

    def update_progress(self, done: int, text: str = "") -> None:
        """Shows the number of finished steps, followed by `text`."""
        line = f"{self._activity} {done}/{self._total}  {text}"
        self.log(line)
        if self._bar:
            self._bar.update(self._task, completed=done, text=text)
        elif not self._quiet and time.monotonic() - self._reported > REPORT_SECONDS:
            self._reported = time.monotonic()
            each = (self._reported - self._started) / max(done - self._first, 1)
            self._show(f"{line}  about {(self._total - done) * each:.0f} s left")
