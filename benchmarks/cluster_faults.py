"""Faults of a cluster at different moments of a run (see `faults.py`): exit code, what launchers
do, and the resumed run.

Each cell is a run that meets one fault at one moment; the same command then continues it. The
faults:

- SIGKILL and SIGBUS, and SIGSTOP in one of two processes;
- a device error, which is raised as XLA raises it;
- EIO, ESTALE and ENOSPC (a full disk) of all writes below the work directory, by a preloaded
  library (needs a C compiler), from that moment until the process ends;
- answers 503, connections that are reset, answers that are cut short, and requests without an
  answer, of an emulated bucket, for a minute, by a proxy.

Not covered: real hardware, and faults that do not end, except that the counter of starts stops
them.
"""

import contextlib
import ctypes
import errno
import hashlib
import http.client
import http.server
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.interruptions import SMALL
from tests.reliability.sandbox import ROOT

MOMENTS = ("start", "compile", "step", "save", "evaluation", "export")
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGBUS": signal.SIGBUS}
DISK = {"EIO": errno.EIO, "ESTALE": errno.ESTALE, "full disk": errno.ENOSPC}
NETWORK = ("503", "reset", "truncation", "hung request")
PAIR = ("SIGSTOP",)
FAULTS = (*SIGNALS, "device error", *DISK, *PAIR, *NETWORK)
SECONDS = 60.0  # of a fault of the network
LIMIT = 600.0  # of a run
RUN = (*SMALL, "method.embedding_dim=8", "train.steps=40", "train.evaluate_every=20",
       "train.checkpoint_every=10", "train.keep_every=0")  # fmt: skip
RESULTS = ("metrics.jsonl", "embeddings/test/embeddings.npy")
DEVICE_ERROR = "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"
# At its moment, once, the fault happens; a file remembers it for the process that continues.
PROGRAM = """
import sys
from benchmarks.cluster_faults import arm
from dml_jax import main
arm(*sys.argv[1:4])
del sys.argv[1:4]
sys.exit(main.main())
"""


class Cell(NamedTuple):
    """The outcome of a run with a fault."""

    fault: str
    moment: str
    code: int | None  # None if it did not end
    said: str  # the error line, or the last line
    resumed: int | None  # exit code of the run that continues
    equal: bool  # to an uninterrupted run, bit for bit

    def row(self) -> str:
        code = "none" if self.code is None else str(self.code)
        same = "bit-equal" if self.equal else "differs"
        cells = (
            self.fault,
            self.moment,
            code,
            slurm(self.code),
            jobset(self.code),
            same,
            self.said,
        )
        return f"| {' | '.join(cells)} |"


def slurm(code: int | None) -> str:
    """What `launch/slurm.sbatch` does with an exit code."""
    return {None: "time limit", 0: "done", 2: "fails"}.get(code, "requeues")


def jobset(code: int | None) -> str:
    """What the rules of `launch/jobset_*.yaml` do with an exit code."""
    return {None: "runs on", 0: "done", 2: "fails"}.get(code, "restarts")


def arm(fault: str, moment: str, marker: str) -> None:
    """Prepares the fault in this process, unless it has already happened."""
    if fault == "none":
        return
    from dml_jax import run
    from dml_jax.train import loop
    from dml_jax.train.checkpoint import Checkpoints
    from dml_jax.train.experiment import Experiment

    owner, name = {
        "start": (run.experiments, "build"),
        "compile": (Experiment, "jitted_step"),
        "step": (Experiment, "device_batch"),
        "save": (Checkpoints, "_write"),
        "evaluation": (loop.Training, "evaluate"),
        "export": (run, "write_embeddings"),
    }[moment]
    wait = {"step": 15, "save": 2}.get(moment, 1)  # calls, of which the last one meets the fault
    original, calls = getattr(owner, name), 0

    def meet(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == wait and not Path(marker).exists():
            Path(marker).touch()
            happen(fault, marker)
        return original(*arguments, **options)

    setattr(owner, name, meet)


def happen(fault: str, marker: str) -> None:
    """Causes the fault."""
    if fault in SIGNALS:
        os.kill(os.getpid(), SIGNALS[fault])
    elif fault in DISK:
        ctypes.CDLL(None).fault_set(DISK[fault])
    elif fault in NETWORK:
        Path(f"{marker}-network").write_text(fault)
    elif fault == "SIGSTOP":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        import jax

        raise jax.errors.JaxRuntimeError(DEVICE_ERROR)


class Proxy(http.server.BaseHTTPRequestHandler):
    """Passes requests to the emulator; if a file says so, with a fault for `SECONDS`."""

    protocol_version = "HTTP/1.1"
    target: str
    file: Path

    def fault(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            if time.time() - self.file.stat().st_mtime < SECONDS:
                return self.file.read_text()
        return ""

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.fault()
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        if fault == "hung request":
            while self.fault():
                time.sleep(0.5)
            self.close_connection = True
            return
        if fault == "503":
            self.reply(503, [], b"{}")
            return
        connection = http.client.HTTPConnection(self.target)
        connection.request(self.command, self.path, body, dict(self.headers))
        found = connection.getresponse()
        content = found.read()
        connection.close()
        dropped = ("transfer-encoding", "content-length", "connection", "date", "server")
        headers = [(key, value) for key, value in found.getheaders() if key.lower() not in dropped]
        self.reply(found.status, headers, content, cut=fault == "truncation")

    def reply(
        self, status: int, headers: list[tuple[str, str]], content: bytes, *, cut: bool = False
    ) -> None:
        self.send_response(status)
        for key, value in headers:
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        self.close_connection = self.close_connection or cut

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = answer

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def bucket(file: Path) -> Iterator[dict[str, str]]:
    """Environment variables of an emulated bucket behind a proxy, which reads faults from a
    file."""
    from tests import emulator

    with emulator.running() as variables:
        target = variables["STORAGE_EMULATOR_HOST"]
        handler = type(
            "Handler", (Proxy,), {"target": target.removeprefix("http://"), "file": file}
        )
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # of clients that give up
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            here = f"http://127.0.0.1:{server.server_address[1]}"
            yield {name: value.replace(target, here) for name, value in variables.items()}
        finally:
            server.shutdown()


def library(folder: Path) -> Path | None:
    """The library that makes writes fail; None without a C compiler."""
    out = folder / "failing_writes.so"
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        source = str(ROOT / "benchmarks" / "failing_writes.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(out), source, "-ldl"], check=True)
    return out if out.exists() else None


def command(fault: str, moment: str, marker: Path, workdir: str, *more: str) -> list[str]:
    overrides = [f"--config.{text}" for text in RUN]
    arguments = [
        fault,
        moment,
        str(marker),
        "--config=configs/digits_baseline.py:proxy_anchor",
        f"--workdir={workdir}",
    ]
    return [sys.executable, "-c", PROGRAM, *arguments, *overrides, *more]


def finish(process: subprocess.Popen[str]) -> tuple[int | None, str]:
    """(exit code, output); no code if the process has not ended in time."""
    try:
        printed = process.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return None, process.communicate()[0]
    return (128 - process.returncode if process.returncode < 0 else process.returncode), printed


def run_once(
    arguments: list[str], environment: dict[str, str], copies: int = 1
) -> tuple[int | None, str]:
    """One start; of two processes, the first meets the fault only if the second is told not to."""
    processes = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for number in range(copies):
        own = list(arguments)
        if copies > 1:
            own += [f"--coordinator=localhost:{port}", "--processes=2", f"--process={number}"]
            if number == 0:
                own[3] = "none"  # only the other meets the fault
        processes.append(
            subprocess.Popen(
                own,
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    code, printed = finish(processes[0])
    for process in processes[1:]:
        if code is not None and code != 0:
            process.kill()
        process.communicate()
    return code, printed


def digest(read: Callable[[str], bytes]) -> list[str]:
    """The digests of the results of a run."""
    return [hashlib.sha256(read(name)).hexdigest() for name in RESULTS]


def cell(
    fault: str, moment: str, folder: Path, expected: dict[int, list[str]], shim: Path | None
) -> Cell:
    """Runs one cell."""
    name = f"{fault}-{moment}".replace(" ", "-")
    marker, directory = folder / f"{name}.met", folder / name
    copies = 2 if fault in PAIR else 1
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    environment["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    with contextlib.ExitStack() as stack:
        workdir, read = str(directory), lambda file: (directory / file).read_bytes()
        if fault in DISK:
            environment |= {"LD_PRELOAD": str(shim), "FAULT_DIRECTORY": str(directory)}
        if fault in NETWORK:
            variables = stack.enter_context(bucket(Path(f"{marker}-network")))
            environment |= variables
            workdir = f"gs://bucket/{name}"
            address = variables["STORAGE_EMULATOR_HOST"].removeprefix("http://")
            read = lambda file: download(address, f"{name}/{file}")  # noqa: E731
        arguments = command(fault, moment, marker, workdir)
        code, printed = run_once(arguments, environment, copies)
        lines = [line for line in printed.splitlines() if line.strip()]
        said = next(
            (line for line in reversed(lines) if line.startswith("error:")), (lines or [""])[-1]
        )
        resumed = code
        if code != 0:
            resumed, _ = run_once(arguments, environment, copies)
        equal = False
        with contextlib.suppress(OSError):
            equal = resumed == 0 and digest(read) == expected[copies]
    said = said.replace(str(folder), "…").replace("|", "/")[:160]
    return Cell(fault, moment, code, said, resumed, equal)


def download(address: str, name: str) -> bytes:
    """An object of the emulated bucket."""
    connection = http.client.HTTPConnection(address)
    connection.request(
        "GET", f"/download/storage/v1/b/bucket/o/{name.replace('/', '%2F')}?alt=media"
    )
    return connection.getresponse().read()


def matrix(faults: tuple[str, ...], moments: tuple[str, ...], jobs: int) -> Iterator[Cell]:
    """The cells of the table, as they are done."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(jobs) as pool:
        folder = Path(name)
        shim = library(folder)
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        environment["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
        expected = {}
        for copies in sorted({2 if fault in PAIR else 1 for fault in faults}):
            directory = folder / f"whole-{copies}"
            code, printed = run_once(
                command("none", "start", folder / "whole.met", str(directory)), environment, copies
            )
            if code != 0:
                raise RuntimeError(printed[-2000:])
            expected[copies] = digest(
                lambda file, directory=directory: (directory / file).read_bytes()
            )
            (folder / "whole.met").touch()
        wanted = [
            (fault, moment) for fault in faults if shim or fault not in DISK for moment in moments
        ]
        yield from pool.map(lambda both: cell(*both, folder, expected, shim), wanted)


def main(arguments: list[str]) -> int:
    """Prints the table; returns 1 if a run ends with an unknown code, or a resumed one differs."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults cluster")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--moments", default=",".join(MOMENTS))
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(arguments)
    print(
        "| fault | moment | exit code | Slurm | JobSet | resumed run | says "
        "|\n|---|---|--:|---|---|---|---|"
    )
    failed = False
    for found in matrix(
        tuple(options.faults.split(",")), tuple(options.moments.split(",")), options.jobs
    ):
        print(found.row(), flush=True)
        failed |= not found.equal
    return int(failed)
