"""Keeps the processes of a run together: same experiment, same decisions, same end.

If one process fails, JAX ends the others minutes later with a C++ trace (exit code 134) and without
the reason. So each process exchanges a message with process 0 every second: if one fails, stops or
is lost, all print the reason and end with the same exit code.
"""

import atexit
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

from dml_jax import files
from dml_jax.errors import ConfigError, PeerError, exit_code_of, message_of
from dml_jax.train.distributed.stop_signals import Interrupted, largest

T = TypeVar("T")

START_PATIENCE = 300.0  # seconds for all processes to start
SILENCE = 60.0  # seconds without a message, after which a process counts as lost
HEARTBEAT = 200  # seconds after which JAX ends a process whose Python hangs
PATIENCE = 10.0  # seconds that an ending process waits for the others to learn the reason
SHOWN = 5  # differences that an error message lists
MESSAGE = 1024  # maximum number of facts to compare, and of bytes to broadcast


def connect(coordinator: str, processes: int, process: int) -> None:
    """Connects the processes of the run; must be called before any device is used.

    Ctrl-C ends a waiting process at once. `coordinator` is "host:port" of process 0, or "auto" to
    detect it from the cluster.
    """
    place = {"coordinator_address": coordinator, "num_processes": processes, "process_id": process}
    options: dict[str, Any] = {} if coordinator == "auto" else place
    # This service would replace the handlers of `stop_signals`.
    jax.config.update("jax_enable_preemption_service", False)
    # Python would only call its handler after JAX returns.
    previous = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with _limited(coordinator):
            jax.distributed.initialize(
                **options,
                local_device_ids=local_devices(),
                initialization_timeout=int(2 * START_PATIENCE),
                heartbeat_timeout_seconds=HEARTBEAT,
            )
    except Exception as error:  # JAX, kubernetes and requests raise many types of exceptions
        kind = PeerError if exit_code_of(error) == os.EX_TEMPFAIL else ConfigError
        problem = f"cannot be used ({files.reason(error)})"
        if not options:
            problem = f"no Slurm, TPU pod or Kubernetes was detected ({files.reason(error)})"
            problem += "; give HOST:PORT, --processes and --process"
        raise kind(f"--coordinator={coordinator}: {problem}") from error
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def _limited(coordinator: str | None) -> Iterator[None]:
    """Context with a time limit that ends the process, because waiting C code cannot be stopped."""

    def give_up() -> None:
        problem = f"not all processes have connected within {START_PATIENCE:.0f} s"
        problem += "; start all with the same address, which every host can reach"
        print(f"error: --coordinator={coordinator}: {problem}", file=sys.stderr, flush=True)
        os._exit(os.EX_TEMPFAIL)

    timer = threading.Timer(START_PATIENCE, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def local_devices() -> list[int] | None:
    """`local_device_ids` for JAX: [] for all visible devices, None for JAX's default.

    Under Slurm, JAX uses the device with the task's index on its node, which is only right if tasks
    share devices.
    """
    tasks, nodes = (os.environ.get(name) for name in ("SLURM_NTASKS", "SLURM_STEP_NUM_NODES"))
    bound = "," not in os.environ.get("CUDA_VISIBLE_DEVICES", ",")
    return [] if (tasks == nodes or bound) and "JAX_LOCAL_DEVICE_IDS" not in os.environ else None


class _Channel:
    """Connects process 0 with all others.

    Each process repeats its message, a JSON object: its index, whether it has finished, and the
    reason if it ends.
    """

    def __init__(self) -> None:
        self.message: dict[str, Any] = {"process": jax.process_index()}
        self.connections, self.sending = _connections(), threading.Lock()
        self.ending = threading.Lock()  # held by the thread that ends this process
        self.readers = [
            threading.Thread(target=self._read, args=(connection,), daemon=True)
            for connection in self.connections
        ]
        for thread in (*self.readers, threading.Thread(target=self._live, daemon=True)):
            thread.start()

    def send(self, **more: Any) -> None:
        with self.sending:
            self.message |= more
            for connection in self.connections:
                with suppress(OSError):  # the reader thread detects the loss
                    connection.send_bytes(json.dumps(self.message).encode())

    def _live(self) -> None:
        while True:
            self.send()
            time.sleep(1.0)

    def _read(self, connection: Connection) -> None:
        message, problem = dict[str, Any](), f"has not responded for {SILENCE:g} s"
        try:
            while "code" not in message and connection.poll(SILENCE):
                message = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            problem = "was killed or its machine failed"
        lost = f"process {message.get('process')} {problem}; start all processes again to continue"
        if not message.get("finished") and self.ending.acquire(blocking=False):
            code, reason = message.get("code", os.EX_TEMPFAIL), message.get("reason", lost)
            print(f"error: {reason}", file=sys.stderr, flush=True)
            self.leave(code, reason)
            os._exit(code)

    def leave(self, code: int, reason: str) -> None:
        """Sends the others the reason why this process ends, and waits until they end, too."""
        self.send(code=code, reason=reason, finished=False)
        deadline = time.monotonic() + PATIENCE
        for reader in self.readers:
            if reader is not threading.current_thread():
                reader.join(max(0.0, deadline - time.monotonic()))


@contextmanager
def end_together(coordinator: str | None) -> Iterator[None]:
    """Context in which, if one of several processes fails, all report it and end."""
    if jax.process_count() == 1:
        yield
        return
    # The first collective connects all devices, for which Gloo waits only 30 s; later ones wait far
    # longer. So it runs here, where all processes arrive together, and not after compilation: only
    # process 0 writes JAX's compilation cache, so others may compile for minutes while it waits.
    with _limited(coordinator):
        channel = _Channel()
        jax.block_until_ready(largest(0))
    try:
        yield
    except Exception as error:
        if isinstance(error, Interrupted) and not error.alone:  # all processes have agreed to stop
            raise
        code = error.code if isinstance(error, Interrupted) else exit_code_of(error)
        if code in (1, os.EX_TEMPFAIL):  # if a process was lost, a reader thread reports it
            time.sleep(PATIENCE / 5)
        channel.ending.acquire()
        reason = message_of(error) or type(error).__name__
        channel.leave(code, f"process {jax.process_index()} has stopped: {reason}")
        # Ends after printing the error, but before JAX waits for the others.
        atexit.register(os._exit, code)
        raise
    finally:
        channel.send(finished="code" not in channel.message)


def _connections() -> list[Connection]:
    """The connections of process 0 with all others, or of another process with process 0."""
    if jax.process_index() != 0:
        host, port, key = decided_by_first(lambda: ("", 0, ""))
        return [Client((host, port), authkey=key.encode())]
    key, connections, count = secrets.token_hex(16), list[Connection](), jax.process_count() - 1
    host = "localhost"  # without a network
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("10.255.255.255", 1))  # sends nothing
        host = str(probe.getsockname()[0])
    with Listener(("", 0), backlog=count, authkey=key.encode()) as listener:
        port = cast(tuple[str, int], listener.address)[1]
        decided_by_first(lambda: (host, port, key))
        while len(connections) < count:
            with suppress(AuthenticationError, EOFError, OSError):  # not one of our processes
                connections.append(listener.accept())
    return connections


def check_same(facts: dict[str, Any]) -> None:
    """Raises ConfigError in all processes if their facts (JSON values by name) differ."""
    digests = np.zeros(MESSAGE, np.uint32)
    digests[: len(facts)] = [zlib.crc32(json.dumps(value).encode()) for value in facts.values()]
    equal_digests = np.ptp(multihost_utils.process_allgather(digests), axis=0) == 0
    if different := [
        name for name, agrees in zip(facts, equal_digests, strict=False) if not agrees
    ]:
        raise ConfigError(
            f"the processes differ in {', '.join(different[:SHOWN])}; start all with the same "
            "options, data and versions"
        )


def decided_by_first(decide: Callable[[], T]) -> T:
    """The JSON value of `decide`, which only process 0 calls: it may change shared files."""
    first = jax.process_index() == 0
    text = json.dumps(decide()) if first else ""
    if jax.process_count() > 1:
        sent = np.frombuffer(text.encode().ljust(MESSAGE), np.uint8)
        text = np.asarray(multihost_utils.broadcast_one_to_all(sent)).tobytes().decode()
    return cast(T, json.loads(text))
