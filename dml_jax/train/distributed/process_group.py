"""The processes of a run find each other, start with the same experiment and end together.

Each other process has a connection to process 0, on which both are heard once a second. If one
fails, is stopped or is lost, all print the reason and end with the same code. JAX's own heartbeats
end the others too, but a minute later, with a stack trace of C++ (exit code 134) and without the
reason.

To diagnose hangs, the stacks of all threads go to a file, as does a line per minute, and a sentence
about a slow step names the process that is late.
"""

import atexit
import faulthandler
import json
import os
import queue
import secrets
import signal
import socket
import statistics
import struct
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from dml_jax import files
from dml_jax.errors import ConfigError, PeerError, exit_code_of, message_of
from dml_jax.train.distributed.stop_signals import Interrupted, largest
from dml_jax.train.records import logs

T = TypeVar("T")

START_PATIENCE = 300.0  # seconds until all processes must have started
# Seconds without a sign of life, after which a process is lost, unless another time is set.
SILENCE = 30.0
PATIENCE = 10.0  # seconds that a process which ends waits until the others know why
SHOWN = 5  # differences that an error message lists
MOST_FACTS = 1024  # facts that can be compared
ADDRESS = 256  # bytes
STRANGER = struct.pack("ll", 5, 0)  # s and µs without a byte until a connection is given up
# A step is slow after 20 times the median of 5 or more, and 5 seconds.
FACTOR, SHORTEST, KNOWN = 20, 5.0, 5
MINUTE = 60.0  # seconds between two lines of a process


def connect(coordinator: str, processes: int, process: int, silence: float = SILENCE) -> None:
    """Joins the other processes of the run; must come before any device is used.

    While this process waits, SIGTERM and Ctrl-C end it at once. `coordinator` is "host:port" of
    process 0, or "auto" to ask the cluster.
    """
    address = None if coordinator == "auto" else coordinator
    # The service would replace the handlers of `stop_signals`.
    jax.config.update("jax_enable_preemption_service", False)
    end = threading.Timer(START_PATIENCE, _give_up, (coordinator,))
    end.daemon = True
    end.start()
    # Python would call its handlers only once JAX returns.
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    try:
        jax.distributed.initialize(
            address,
            processes if address else None,
            process if address else None,
            local_device_ids=local_devices(),
            initialization_timeout=int(2 * START_PATIENCE),
            heartbeat_timeout_seconds=max(100, int(2 * silence)),
        )
    except (ModuleNotFoundError, ValueError) as error:  # no package or no cluster
        problem = f"no Slurm, TPU pod or Kubernetes can be asked ({files.reason(error)})"
        raise ConfigError(
            f"--coordinator=auto: {problem}; give HOST:PORT, --processes and --process"
        ) from error
    except Exception as error:  # JAX, kubernetes and requests raise many types of exceptions
        kind = PeerError if exit_code_of(error) == os.EX_TEMPFAIL else ConfigError
        problem = f"cannot be used ({files.reason(error)})"
        raise kind(f"--coordinator={coordinator}: {problem}") from error
    finally:
        end.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _give_up(coordinator: str) -> None:
    print(
        f"error: --coordinator={coordinator}: not all processes have connected within "
        f"{START_PATIENCE:.0f} s; start all with the same address, which every host must be able "
        "to reach",
        file=sys.stderr,
        flush=True,
    )
    os._exit(os.EX_TEMPFAIL)


def local_devices() -> list[int] | None:
    """`local_device_ids` for JAX: [] for all visible ones, None to leave it to JAX.

    Under Slurm, JAX uses the device with the task's index on its node, which is right only if tasks
    share devices.
    """
    tasks, nodes = (os.environ.get(name) for name in ("SLURM_NTASKS", "SLURM_STEP_NUM_NODES"))
    bound = "," not in os.environ.get("CUDA_VISIBLE_DEVICES", ",")
    return [] if (tasks == nodes or bound) and "JAX_LOCAL_DEVICE_IDS" not in os.environ else None


class _Peer:
    """A connection with another process; a JSON message is a sign of life, a value or the end."""

    def __init__(self, index: int, connection: Connection):
        self.index, self.connection = index, connection
        self.step, self.heard = 0, time.monotonic()
        self.values: queue.Queue[Any] = queue.Queue()
        self.left = False  # it has finished
        self._sending = threading.Lock()

    def send(self, **message: Any) -> None:
        with self._sending, suppress(OSError):  # its loss is noticed by the reader
            self.connection.send_bytes(json.dumps(message).encode())


class _Group:
    """The connections of this process."""

    def __init__(self, silence: float) -> None:
        self.peers = _connected()
        self.silence, self.step = silence, 0
        self.ending = threading.Lock()  # held by the thread that ends this process
        self.readers = [
            threading.Thread(target=self._read, args=(peer,), daemon=True) for peer in self.peers
        ]
        for thread in (*self.readers, threading.Thread(target=self._live, daemon=True)):
            thread.start()

    def send(self, **message: Any) -> None:
        for peer in self.peers:
            peer.send(**message)

    def _live(self) -> None:
        while True:
            self.send(step=self.step)
            time.sleep(1.0)

    def _read(self, peer: _Peer) -> None:
        problem = f"has given no sign of life for {self.silence:g} s"
        try:
            while peer.connection.poll(self.silence):
                peer.heard, message = time.monotonic(), json.loads(peer.connection.recv_bytes())
                peer.step = message.get("step", peer.step)
                if "value" in message:
                    peer.values.put(message["value"])
                elif "code" in message:
                    return self._end(message["code"], message["reason"])
                peer.left = peer.left or "left" in message
        except (EOFError, OSError):  # its connection was lost
            problem = "was killed or its machine failed"
        if not peer.left:
            reason = f"process {peer.index} {problem}; start all processes again to continue"
            self._end(os.EX_TEMPFAIL, reason)

    def _end(self, code: int, reason: str) -> None:
        """Ends this process because another one has ended; called by readers."""
        if self.ending.acquire(blocking=False):
            if code == os.EX_TEMPFAIL:
                write_stacks(reason)
            print(f"error: {reason}", file=sys.stderr, flush=True)
            self.leave(code, reason)
            os._exit(code)

    def leave(self, code: int, reason: str) -> None:
        """Tells the others why this process ends, and waits until they have answered the same."""
        self.send(code=code, reason=reason)
        deadline = time.monotonic() + PATIENCE
        for reader in self.readers:
            if reader is not threading.current_thread():
                reader.join(max(0.0, deadline - time.monotonic()))


_group: _Group | None = None
_stacks: int | None = None  # file descriptor


def keep_stacks(file: Path) -> None:
    """From now on, SIGUSR1 and `write_stacks` append the stacks of all threads to a file."""
    global _stacks
    previous, _stacks = _stacks, os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    faulthandler.register(signal.SIGUSR1, _stacks)
    if previous is not None:
        os.close(previous)


def write_stacks(reason: str) -> None:
    """Appends the time, a reason and the stacks of all threads to any file of `keep_stacks`."""
    if _stacks is not None:
        os.write(_stacks, f"{datetime.now().isoformat(' ', 'seconds')} {reason}\n".encode())
        faulthandler.dump_traceback(_stacks)


@contextmanager
def watched(warn: Callable[[str], None], file: Path) -> Iterator[Callable[[int], None]]:
    """Context of the training loop; `warn` gets slow steps, `file` a line of JSON per minute.

    Its value is to be called with the number of each step done, and with 0 before other work.
    """
    seconds, end = deque[float](maxlen=100), threading.Event()
    step, began, written = 0, 0.0, time.monotonic()

    def stepped(done: int) -> None:
        nonlocal step, began
        now = time.monotonic()
        if done and began:
            seconds.append(now - began)
        step, began = done or step, now if done else 0.0
        if _group is not None:
            _group.step = step

    def watch() -> None:
        nonlocal began, written
        while not end.wait(SHORTEST / 5):
            now = time.monotonic()
            taken, median = now - began, statistics.median(seconds or [0.0])
            if now - written >= MINUTE:
                written, peers = now, _group.peers if _group else []
                line = {
                    "time": datetime.now().astimezone().isoformat(timespec="seconds"),
                    "step": step,
                    "step_seconds": seconds[-1] if seconds else None,
                    "host_memory": logs.host_memory(),
                    "peers": {p.index: {"step": p.step, "silent": now - p.heard} for p in peers},
                }
                with suppress(OSError), open(file, "a", encoding="utf-8") as opened:
                    opened.write(json.dumps(line) + "\n")
            if began and len(seconds) >= KNOWN and taken > max(FACTOR * median, SHORTEST):
                began = 0.0  # once
                warn(
                    f"step {step + 1} has taken {taken:.0f} s so far, the median is {median:.2g} "
                    f"s{_late(step)}; kill -USR1 {os.getpid()} writes the stacks of all threads to "
                    "logs/"
                )

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield stepped
    finally:
        end.set()


def _late(step: int) -> str:
    """The process that is late, by the connections of this one; empty if unknown."""
    now, peers = time.monotonic(), _group.peers if _group else []
    silence = {peer.index: now - peer.heard for peer in peers}
    silent = [f"{i} (silent for {seconds:.0f} s)" for i, seconds in silence.items() if seconds > 3]
    late = silent or [f"{peer.index} (at step {peer.step})" for peer in peers if peer.step < step]
    late = late or [f"{jax.process_index()}, this one" for peer in peers if peer.step > step][:1]
    return f"; late: process {', '.join(late)}" if late else ""


@contextmanager
def end_together(silence: float) -> Iterator[None]:
    """Within this context, if one of several processes fails, all report it and end.

    A process without a sign of life for `silence` seconds has failed.
    """
    global _group
    if jax.process_count() == 1:
        yield
        return
    group = _group = _Group(silence)
    try:
        # The first collective over all devices connects them, for which Gloo waits 30 s; later ones
        # wait far longer. So it runs here, where all processes are, and not after compiling: only
        # process 0 writes JAX's cache of compiled programs, so that others may compile for minutes
        # while it waits.
        jax.block_until_ready(largest(0))
        yield
    except Exception as error:
        if isinstance(error, Interrupted) and not error.alone:  # all processes have agreed to stop
            raise
        code = error.code if isinstance(error, Interrupted) else exit_code_of(error)
        if code not in (2, 128 + signal.SIGTERM, 128 + signal.SIGINT):
            write_stacks(str(error))
            # If this error follows from the loss of a process, a reader ends this one.
            time.sleep(PATIENCE / 5)
        group.ending.acquire()
        reason = message_of(error) or type(error).__name__
        group.leave(code, f"process {jax.process_index()} has stopped: {reason}")
        # After the error has been printed, and before JAX waits for the others.
        atexit.register(os._exit, code)
        raise
    finally:
        group.send(left=True)


def _connected() -> list[_Peer]:
    """Connections of process 0 with all others, or of another process with process 0."""
    secret, processes = secrets.token_hex(16), jax.process_count()
    with socket.create_server(("", 0), backlog=processes) as server:
        here = json.dumps([_local_address(), server.getsockname()[1], secret]).encode()
        sent = np.frombuffer(here.ljust(ADDRESS), np.uint8)
        received = np.asarray(multihost_utils.broadcast_one_to_all(sent), np.uint8)
        host, port, key = json.loads(received.tobytes())
        if jax.process_index() != 0:
            connection = Client((host, port), authkey=key.encode())
            connection.send_bytes(str(jax.process_index()).encode())
            return [_Peer(0, connection)]
        peers: dict[int, _Peer] = {}
        server.settimeout(SILENCE)
        while len(peers) < processes - 1:
            try:
                accepted, _ = server.accept()
            except TimeoutError:
                raise PeerError(
                    f"{processes - 1 - len(peers)} of {processes} processes have not reached "
                    f"{host}:{port} within {SILENCE:g} s; allow connections between the hosts"
                ) from None
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, STRANGER)
            connection = Connection(accepted.detach())
            # A stranger fails the challenge or says nothing.
            with suppress(AuthenticationError, EOFError, OSError):
                deliver_challenge(connection, secret.encode())
                answer_challenge(connection, secret.encode())
                index = int(connection.recv_bytes())
                peers[index] = _Peer(index, connection)
        return [peers[index] for index in sorted(peers)]


def _local_address() -> str:
    """The address from which this machine sends to others; without a network, localhost."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("10.255.255.255", 1))  # sends nothing
        return str(probe.getsockname()[0])
    return "localhost"


def check_same(facts: dict[str, Any]) -> None:
    """Raises ConfigError on all processes if facts (JSON values by name) differ between them."""
    digests = np.zeros(MOST_FACTS, np.uint32)
    digests[: len(facts)] = [zlib.crc32(json.dumps(value).encode()) for value in facts.values()]
    everywhere = np.asarray(multihost_utils.process_allgather(digests))
    same = (everywhere == everywhere[0]).all(axis=0)
    if differing := [name for name, equal in zip(facts, same, strict=False) if not equal]:
        raise ConfigError(
            f"the processes differ in {', '.join(differing[:SHOWN])}; start all with the same "
            "options, data and versions"
        )


def decided_by_first(decide: Callable[[], T]) -> T:
    """The JSON value of `decide`, called only in process 0, as it may change files that others
    read."""
    if _group is not None and jax.process_index() != 0:
        received: T = _group.peers[0].values.get()
        return received
    decided = decide()
    if _group is not None:
        _group.send(value=decided)
    return decided
