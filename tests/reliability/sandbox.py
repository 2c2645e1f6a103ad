"""Runs one hostile case as a command would, and reports how it ended.

Allowed is success, or one `error:` line and exit code 2. Everything else is a failure: another exception, more than
`SECONDS` or `MEMORY`, a file written outside the case's directory, a process, a connection, an unpickled class.
"""

import contextlib
import ctypes
import io
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

from hypothesis.strategies import SearchStrategy

from dml_jax.commands import cli
from dml_jax.errors import UserError

SECONDS = 30.0  # of CPU time, for milliseconds of work
WALL_SECONDS = 600.0  # of waiting; a busy machine may stop the process for minutes
MEMORY = 2**31  # bytes; the largest image that is decoded, in RGBA and RGB, takes half of this
ROOT = Path(__file__).parents[2]
CONFIG = f"--config={ROOT}/configs/digits_hist.py"
NEVER = {
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect", "socket.getaddrinfo"),
    *("pickle.find_class", "webbrowser.open"),
}
CHANGES = {"os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink", "os.truncate", "shutil.rmtree"}

# Content by relative path: bytes of a file, None for a folder, the target of a link.
Files = Mapping[str, bytes | Path | None]


class Attack(NamedTuple):
    """One kind of hostile input.

    Attributes:
      files: the input.
      read: reads the files in a directory, as the library does.
      command: the arguments of `python -m dml_jax.…` that reads them; None if no command does so within seconds.
      share: of the cases; attacks of which a case takes longer have a smaller one.
    """

    files: SearchStrategy[Files]
    read: Callable[[Path], object]
    command: Callable[[Path], Sequence[str]] | None = None
    share: int = 10


class Outcome(NamedTuple):
    """How a case ended: the error line, or what must not happen with the place in dml_jax where it did."""

    kind: Literal["success", "error", "failure"]
    text: str = ""


class TooLong(BaseException):
    """The time is over; not an Exception, so that no handler of damaged input can swallow it."""


class _Watch:
    """Records forbidden events. There is one, because Python's audit hooks cannot be removed."""

    def __init__(self) -> None:
        self.allowed: Path | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._event)

    def _event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.allowed is None:
            return
        if event in NEVER:
            self.seen.append(f"{event} {arguments[:2]!r:.200}")
        elif event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._check(event, path)
        elif event in CHANGES:
            relative = arguments[-1] not in (-1, None)  # to an open directory, below a path checked before
            for path in arguments[: 2 if event in ("os.rename", "os.link", "os.symlink") else 1]:
                if not relative:
                    self._check(event, path)

    def _check(self, event: str, path: Any) -> None:
        if isinstance(path, int) or path is None or self.allowed is None:
            return
        real = os.path.realpath(os.fsdecode(path))
        fine = (str(self.allowed), os.environ.get("JAX_COMPILATION_CACHE_DIR") or os.devnull, os.devnull)
        if not real.startswith(fine) and "__pycache__" not in real:
            self.seen.append(f"{event} outside: {real}")


WATCH = _Watch()


def write(directory: Path, files: Files) -> None:
    """Creates files, folders and links below a directory."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir(exist_ok=True)
        elif isinstance(content, Path):
            path.symlink_to(content)
        else:
            path.write_bytes(content)


@contextlib.contextmanager
def _within_time(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"more than {seconds:g} s of CPU time, or {WALL_SECONDS:g} s of waiting")

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, seconds), signal.SIGALRM: (signal.ITIMER_REAL, WALL_SECONDS)}
    before = {number: signal.signal(number, stop) for number in timers}
    for timer, most in timers.values():
        signal.setitimer(timer, most)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def run(
    read: Callable[[Path], object], files: Files, *, seconds: float | None = None, memory: int | None = None
) -> Outcome:
    """Writes the files into a new directory and reads them there.

    Args:
      read: given the directory, in which it may write.
      files: hostile input.
      seconds: of CPU time, by default `SECONDS`.
      memory: bytes, by default `MEMORY`.
    """
    directory = Path(tempfile.mkdtemp(prefix="dml_jax-case-"))
    try:
        write(directory, files)
        return _judged(lambda: read(directory), directory, seconds or SECONDS, memory or MEMORY)
    finally:
        for folder, _, _ in os.walk(directory):
            os.chmod(folder, 0o700)
        shutil.rmtree(directory)


def _judged(body: Callable[[], object], directory: Path, seconds: float, memory: int) -> Outcome:
    printed = io.StringIO()
    with contextlib.suppress(AttributeError, OSError):  # glibc: memory that other tests have freed would be used again
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):  # Linux: the peak so far, perhaps of another test, becomes the present size
        Path("/proc/self/clear_refs").write_text("5")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    WATCH.allowed, WATCH.seen = directory.resolve(), []
    try:
        with _within_time(seconds), contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
            code = cli.exit_code(body)
    except (Exception, TooLong) as error:
        return Outcome("failure", f"{type(error).__name__} at {_place(error)}: {_general(str(error)[:300])}")
    finally:
        WATCH.allowed = None
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
    if WATCH.seen:
        return Outcome("failure", _general(WATCH.seen[0]))
    if grown > memory:
        return Outcome("failure", f"{grown >> 20} MiB of memory")
    return judge_output(code, printed.getvalue())


def _general(text: str) -> str:
    """A text without the random names of directories, so that equal failures are counted together."""
    return re.sub(r"/tmp/[^/'\" ]*", "…", text)


def judge_output(code: int, stderr: str) -> Outcome:
    """The outcome of a command from its exit code and standard error."""
    if code == 0:
        return Outcome("success")
    line = stderr.removesuffix("\n")
    if code != 2 or not line.startswith("error: ") or "\n" in line:
        return Outcome("failure", _general(f"exit code {code}, standard error: {stderr[-500:]}"))
    return Outcome("error", line)


def _place(error: BaseException) -> str:
    """The innermost line of dml_jax in a traceback."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(str(ROOT / "dml_jax"))]
    return f"{Path(frames[-1].filename).relative_to(ROOT)}:{frames[-1].lineno}" if frames else "a library"


def read_all(readers: Sequence[Callable[[], object]]) -> None:
    """Calls every reader; raises the first user error at the end, any other exception at once."""
    refused: UserError | None = None
    for reader in readers:
        try:
            reader()
        except UserError as error:
            refused = refused or error
    if refused:
        raise refused
