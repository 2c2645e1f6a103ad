"""Runs one hostile case as a command would, and reports how it ended.

Allowed is success, or one `error:` line and exit code 2. Everything else is a failure.
"""

import contextlib
import io
import re
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from hypothesis.strategies import SearchStrategy

from dml_jax.commands import cli

ROOT = Path(__file__).parents[2]
CONFIG = f"--config={ROOT}/configs/digits_baseline.py:proxy_anchor"

# Content by relative path: bytes of a file, None for a folder, the target of a link.
Files = Mapping[str, bytes | Path | None]


class Attack(NamedTuple):
    """One kind of hostile input.

    Attributes:
      files: the input.
      read: reads the files in a directory, as the library does.
      command: the arguments of `python -m dml_jax.…` that reads them; None if no command does so
        within seconds.
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


def run(read: Callable[[Path], object], files: Files) -> Outcome:
    """Writes hostile input into a new directory, where `read`, which is given the directory, reads it."""
    printed = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="dml_jax-case-") as folder:
        write(Path(folder), files)
        try:
            with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
                code = cli.exit_code(lambda: read(Path(folder)))
        except Exception as error:
            return Outcome("failure", f"{type(error).__name__} at {_place(error)}: {_general(str(error)[:300])}")
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
