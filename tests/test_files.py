"""Every failure of reading a file is one error that names it; outputs with long names; names of all kinds."""

import errno
import io
import os
import re
import runpy
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.table import Table
from rich.text import Text

from dml_jax import errors, files, seal
from dml_jax.backbones.weights import converted, tensor_files
from dml_jax.commands import cli
from dml_jax.console import Console
from dml_jax.data.files import File
from dml_jax.data.split import read_splits
from dml_jax.errors import CheckpointError, ConfigError, DataError, UserError, printable
from dml_jax.evaluation import validation
from dml_jax.train.records.logs import JsonLines


def test_a_formula_in_a_table_is_text(tmp_path: Path) -> None:
    files.write_csv(tmp_path / "a.csv", [["=HYPERLINK(1)", "-0.5", "+x", "@y", "a-b", 3, -2.5]])
    assert (tmp_path / "a.csv").read_text() == "'=HYPERLINK(1),-0.5,'+x,'@y,a-b,3,-2.5\n"


@pytest.mark.parametrize("mask", [0o000, 0o027])
def test_permissions_follow_the_umask(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        files.write_json(tmp_path / "x.json", {})
        converted.write(tmp_path / "weights", {"x": np.zeros(1, np.float32)}, {})
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~mask, path


def test_a_library_that_writes_its_files_itself_states_the_error_in_text() -> None:
    stated = RuntimeError("Failed to finalize writing: write() failed: No space left on device; at byte 25")
    with (
        pytest.raises(OSError, match=r"^\[Errno 28\] No space left on device: 'data/x'$"),
        files.name_file(Path("data/x")),
    ):
        raise stated
    for other in (RuntimeError("Failed"), DataError("x: No space left on device")):
        with pytest.raises(type(other)), files.name_file(Path("data/x")):
            raise other


def test_a_cache_of_programs_that_cannot_be_used_is_not_needed(tmp_path: Path) -> None:
    """As on a read-only disk; nothing is printed."""
    (tmp_path / "cache").write_text("")
    script = """
import jax, sys
from dml_jax.commands import cli, jax_setup
sys.exit(cli.exit_code(lambda: (jax_setup.enable_compilation_cache(), print(jax.jit(lambda x: x + 1)(1)))))
"""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_messages_are_printable(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Control characters, line ends, text directions and bytes that are not UTF-8 are escaped; all else is kept."""
    assert printable("caf\udce9 \x1b[31m\u202e\t\r\n é 図") == r"caf\udce9 \x1b[31m\u202e\t\r\n é 図"

    def body() -> None:
        print("caf\udce9\n\t\x1b[2J\x07\u202e")
        print("\x9b31m", file=sys.stderr)
        Console().print("a\x1b[2Jb\nc")
        raise ConfigError("--output=a\x1b[2Jb: no")

    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    assert cli.exit_code(body) == 2
    screen.seek(0)
    assert screen.read() == "caf\\udce9\n\t\\x1b[2J\\x07\\u202e\na\\x1b[2Jb\\nc\n"
    assert capsys.readouterr().err == "\\x9b31m\nerror: --output=a\\x1b[2Jb: no\n"


def test_a_console_keeps_its_own_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Escaped are those in the texts, also in tables, of the bar and of `print` beside a bar."""
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")

    def body() -> None:
        with Console() as console:
            console.start_progress("bar \x1b[2J", 2)
            console.update_progress(1, "text \x1b[3J")
            table = Table(title="title \x1b[4J")
            table.add_row(Text("cell \x1b[5J", "bold"))
            console.rich.print(table)
            print("printed \x1b]0;title\x07")
        Console().warn("after \x1b[6J")

    assert cli.exit_code(body) == 0
    shown = screen.getvalue()
    for text in ("bar", "text", "title", "cell", "after"):
        assert f"{text} \\x1" in shown  # cropped to the width of its column
    assert "printed" in shown
    codes = {*re.findall(r"\x1b\S?[^a-zA-Z]*[a-zA-Z]", shown)}
    assert codes >= {"\x1b[1m", "\x1b[0m", "\x1b[?25l"}  # bold, plain, no cursor
    assert not codes & {f"\x1b[{number}J" for number in range(2, 7)}
    assert "\x07" not in shown


def test_of_two_that_hold_a_lock_one_waits(tmp_path: Path) -> None:
    """Each reads a number and writes the next one; none is lost, and no lock file is left."""
    counter = tmp_path / "counter"
    counter.write_text("0")

    def count() -> None:
        for _ in range(50):
            with files.locked(counter):
                number = int(counter.read_text())
                counter.write_text(str(number + 1))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.read_text() == "200"
    assert [path.name for path in tmp_path.iterdir()] == ["counter"]
    refused = pytest.raises(UserError, match=rf"^{counter}: another command is writing here; wait")
    with files.locked(counter), refused, files.locked(counter, wait=False):
        pass


@pytest.mark.parametrize(
    ("error", "code"),
    [
        *((OSError(number, "x", "file"), 2) for number in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)),
        *((OSError(number, "x", "file"), 75) for number in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EREMOTEIO)),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"), 2),
        (ValueError("INVALID_ARGUMENT: x"), 2),
        (RuntimeError("INTERNAL: NCCL operation ncclAllReduce failed"), 75),
        (RuntimeError("UNKNOWN: CUDA_ERROR_ILLEGAL_ADDRESS"), 75),
        (RuntimeError("ABORTED: heartbeat of a task, see RESOURCE_EXHAUSTED"), 75),
        (DataError("x"), 2),
        (MemoryError(), 2),
    ],
)
def test_exit_codes(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> None:
        with files.reading("file"), files.name_file(Path("file")):
            raise error

    assert cli.exit_code(body if isinstance(error, OSError) else lambda: raising(error)) == code
    assert capsys.readouterr().err.startswith("error: ")


def test_numbers_of_errors_that_a_system_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no EREMOTEIO, for example."""
    lacking = errno.EREMOTEIO
    monkeypatch.delattr(errno, "EREMOTEIO")
    assert runpy.run_path(errors.__file__)["TRANSIENT"] == errors.TRANSIENT - {lacking}


def raising(error: Exception) -> None:
    raise error


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    """Nobody writes to the pipe: opening it would wait for ever."""
    pipe = tmp_path / "x"
    os.mkfifo(pipe)
    readers = (
        lambda: validation.load(pipe, name="--embeddings"),
        lambda: validation.read_lines(pipe, name="--labels"),
        lambda: files.read_json(pipe, dict),
        lambda: tensor_files.read(pipe),
        lambda: read_splits(pipe),
        lambda: JsonLines(pipe).truncate(1),
        lambda: seal.read_manifest(tmp_path),
    )
    (tmp_path / seal.MANIFEST).symlink_to("/dev/zero")
    for read in readers:
        with pytest.raises(UserError, match=r"is a pipe or a device; give a file$"):
            read()
    with pytest.raises(DataError, match=f"^--labels={pipe}: is a pipe"):
        readers[1]()
    with pytest.raises(DataError, match="not a regular file"):
        File(pipe).read()


@pytest.mark.parametrize("error", [RuntimeError("odd"), ValueError("an INTERNAL error"), OSError("odd"), KeyError("x")])
def test_other_errors_keep_their_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        cli.exit_code(lambda: raising(error))


def command_in_a_process(body: str, output: int, **environment: str) -> subprocess.CompletedProcess[bytes]:
    program = "import os, sys; from dml_jax.commands import cli; from dml_jax.console import Console; "
    return subprocess.run(
        [sys.executable, "-c", f"{program}sys.exit(cli.exit_code(lambda: {body}))"],
        stdout=output, stderr=subprocess.PIPE, env={**os.environ, **environment}, check=False,
    )  # fmt: skip


@pytest.fixture
def broken_pipe() -> Iterator[int]:
    """A pipe whose reader has ended, as `head` does."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "body", ["print('x')", "Console().print('x')", "sys.exit(__import__('dml_jax.__main__').__main__.main())"]
)
def test_output_that_nobody_reads_ends_a_command_quietly(broken_pipe: int, body: str, unbuffered: str) -> None:
    done = command_in_a_process(body, broken_pipe, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (141, b"")  # 128 + SIGPIPE, as of other commands


def test_another_broken_pipe_keeps_its_traceback() -> None:
    done = command_in_a_process("(ends := os.pipe(), os.close(ends[0]), os.write(ends[1], b'x'))", subprocess.DEVNULL)
    assert done.returncode == 1
    assert done.stderr.endswith(b"BrokenPipeError: [Errno 32] Broken pipe\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_log_that_cannot_be_written_hides_no_error() -> None:
    def fail() -> None:
        with Console() as console:
            console.log_to(Path("/dev/full"))
            console.print("a line")
            raise CheckpointError("the reason")

    with pytest.raises(CheckpointError, match="the reason"):
        fail()


def test_drafts_of_killed_writers_are_deleted(tmp_path: Path) -> None:
    """Not those of writers at work."""
    file = tmp_path / "a[1].json"
    (tmp_path / ".a[1].json.abcdefgh.tmp").touch()
    (tmp_path / ".a1.json.abcdefgh.tmp").touch()
    with files.atomic_write(file) as first:
        with files.atomic_write(file) as second:
            assert sorted(tmp_path.iterdir()) == sorted([tmp_path / ".a1.json.abcdefgh.tmp", first, second])
            second.write_text("2")
        first.write_text("1")
    assert (sorted(path.name for path in tmp_path.iterdir()), file.read_text()) == (
        [".a1.json.abcdefgh.tmp", "a[1].json"],
        "1",
    )
