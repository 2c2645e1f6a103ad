"""The processes of a run start with the same experiment and end together.

If one fails, is stopped or is lost, the others end with a message instead of waiting. JAX's own detection of lost
processes, by their heartbeats, aborts the others with a stack trace (exit code 134).
"""

import ctypes
import itertools
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from atexit import register
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import jax

from dml_jax.errors import ConfigError, PeerError, UserError, printable
from dml_jax.files import reason
from dml_jax.train.distributed.stop_signals import Interrupted

# Keys in JAX's key-value store.
FAILED, SEEN, ALIVE = "dml_jax/failed", "dml_jax/seen", "dml_jax/alive"
FACTS, DECIDED = "dml_jax/facts", "dml_jax/decided"
PATIENCE = 10.0  # seconds that process 0, which hosts the store, waits until the others have read the reason
SILENCE = 5.0  # seconds without a sign of life, about one per second, after which a process counts as lost
HANGING = 30.0  # the same while nothing has failed, because the others wait for it
SHOWN = 5  # differences that an error message lists
# What jaxlib's errors say about the network, NCCL, Gloo and the key-value store; they have no types of their own.
TRANSIENT = re.compile(r"\bNCCL\b|\bGloo\b|\bnccl[A-Z]|UNAVAILABLE|DEADLINE_EXCEEDED")
_decisions = itertools.count()  # numbers what the processes agree on, in the same order on all


@contextmanager
def end_together() -> Iterator[Callable[[int], None]]:
    """Within this context, an exception in one process of several is reported by the others, which then end too.

    Yields:
      A function that ends this process at once with an exit code; may be called from any thread.

    Raises:
      PeerError: communication has failed, of processes or devices.
    """
    if jax.process_count() == 1:
        try:
            yield os._exit
        except Exception as error:
            if is_transient(error):
                raise _failed(error) from error
            raise
        return
    store = _store()
    over, ending = threading.Event(), threading.Lock()

    def end_now(code: int) -> None:
        with ending:
            _announce(store, code, signal.Signals(code - 128).name)
            _exit(store, code)

    heard = [time.monotonic()]  # when process 0 has last answered
    watch = threading.Thread(target=_watch, args=(store, heard, over, ending), daemon=True)
    watch.start()
    if jax.process_index() != 0:
        threading.Thread(target=_watch_first, args=(heard, over, ending), daemon=True).start()
    try:
        yield end_now
    except Exception as error:
        if isinstance(error, Interrupted) and not error.alone:  # all processes have agreed to stop
            raise
        failed = _failed(error) if is_transient(error) else error
        code = _code(failed)
        lost = _lost(store) if code in (1, os.EX_TEMPFAIL) else []
        over.set()
        _exit_if_announced(store, ending)  # this error may be a consequence of another process having ended
        if lost:
            _end_without(store, lost)
        _announce(store, code, printable(" ".join(str(failed).split())) or type(failed).__name__)
        register(_exit, store, code)  # after the error has been printed, and before JAX waits for the others
        if failed is not error:
            raise failed from error
        raise
    finally:
        over.set()
    watch.join()
    store.key_value_delete(f"{ALIVE}/{jax.process_index()}")  # it may end before the others


def is_transient(error: Exception) -> bool:
    """Whether an error that jaxlib raised is one of communication, which may not occur again."""
    return isinstance(error, RuntimeError | ValueError) and bool(TRANSIENT.search(str(error)))


def _failed(error: Exception) -> PeerError:
    return PeerError(f"communication failed ({reason(error)}); start all processes again to continue")


def _code(error: Exception) -> int:
    """The exit code that an error leads to, as in `commands.cli`."""
    match error:
        case Interrupted():
            return error.code
        case PeerError():
            return os.EX_TEMPFAIL
        case UserError() | OSError():
            return 2
    return 1


def check_same(facts: dict[str, Any]) -> None:
    """Checks that all processes run the same experiment; each waits here for the others.

    Args:
      facts: what must be equal, by name; JSON values.

    Raises:
      ConfigError: on all processes, if any of them has other facts than the first; names them.
    """
    if jax.process_count() == 1:
        return
    store, key = _store(), f"{FACTS}/{next(_decisions)}"
    store.key_value_set(f"{key}/{jax.process_index()}", json.dumps(facts))

    def difference() -> str:
        others = (json.loads(_wait_for(store, f"{key}/{index}")) for index in range(1, jax.process_count()))
        return next(filter(None, (_difference(facts, index, other) for index, other in enumerate(others, 1))), "")

    if message := _from_first(difference):  # which alone reads them all
        raise ConfigError(message)


def _difference(facts: dict[str, Any], index: int, other: dict[str, Any]) -> str:
    """What a process has that differs from process 0; empty if nothing does."""
    keys = [key for key in facts | other if facts.get(key) != other.get(key)]
    if not keys:
        return ""
    shown = ", ".join(f"{key} ({facts.get(key)!r} and {other.get(key)!r})" for key in keys[:SHOWN])
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return f"processes 0 and {index} differ in {shown}{more}; start all with the same options, data and versions"


def decided_by_first(decide: Callable[[], int]) -> int:
    """The value of `decide` in process 0, which alone calls it; the others wait for the value here.

    For what depends on files that process 0 may change before another process has looked at them.
    """
    return decide() if jax.process_count() == 1 else int(_from_first(lambda: str(decide())))


def _from_first(decide: Callable[[], str]) -> str:
    store, key = _store(), f"{DECIDED}/{next(_decisions)}"
    if jax.process_index() == 0:
        store.key_value_set(key, decide())
    return _wait_for(store, key)


def _store() -> Any:
    """JAX's key-value store, which the processes share."""
    return _jax_state().client


def _jax_state() -> Any:
    from jax._src import distributed  # it has no public name

    return distributed.global_state


def _wait_for(store: Any, key: str) -> str:
    """A value of the store, as soon as its process has set it."""
    while True:
        try:
            return str(store.key_value_try_get(key))
        except jax.errors.JaxRuntimeError:
            time.sleep(0.1)


def _watch(store: Any, heard: list[float], over: threading.Event, ending: threading.Lock) -> None:
    seen: dict[str, tuple[str, float]] = {}  # signs of life, and when process 0 has first seen them
    while not over.wait(1.0):
        try:
            store.key_value_set(f"{ALIVE}/{jax.process_index()}", str(time.monotonic()), allow_overwrite=True)
        except jax.errors.JaxRuntimeError:  # process 0 is lost
            return
        heard[0] = time.monotonic()
        _exit_if_announced(store, ending)
        if jax.process_index() == 0:
            now, before = time.monotonic(), seen
            values = store.key_value_dir_get(ALIVE)
            seen = {key: before[key] if before.get(key, ("",))[0] == value else (value, now) for key, value in values}
            if silent := [key for key, (_, since) in seen.items() if now - since > HANGING]:
                with ending:
                    _end_without(store, [int(key.rpartition("/")[2]) for key in silent])


def _watch_first(heard: list[float], over: threading.Event, ending: threading.Lock) -> None:
    """Ends this process when process 0 is lost, before JAX, whose key-value store is then lost, aborts it.

    The operating system closes the connections of a process that dies, so a connection to JAX's port shows it at once.
    JAX closes idle connections, too, but then accepts another one. If process 0 hangs, the store no longer answers.
    """
    _delay_aborts()
    host, _, port = _jax_state().coordinator_address.rpartition(":")
    try:
        while not over.is_set():
            with socket.create_connection((host.strip("[]"), int(port)), HANGING) as connection:
                connection.settimeout(1.0)
                while not over.is_set() and _is_open(connection) and time.monotonic() - heard[0] < HANGING:
                    pass
            if time.monotonic() - heard[0] >= HANGING:
                break
    except OSError:
        pass
    with ending:
        if not over.is_set():
            _end_without_first()


def _delay_aborts() -> None:
    """Delays what follows SIGABRT by six seconds, so that JAX, when it also notices the loss, cannot be first.

    The handler is libc's sleep; its argument, the seconds, is the number of the signal, 6. Python's own handlers would
    not run, as the thread that aborts never returns to Python.
    """
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))


def _is_open(connection: socket.socket) -> bool:
    """Waits a second for data; False if the other end has closed the connection."""
    try:
        return bool(connection.recv(4096))
    except TimeoutError:
        return True


def _announce(store: Any, code: int, reason: str) -> None:
    message = f"{code} process {jax.process_index()} has stopped: {reason}"
    store.key_value_set(FAILED, message, allow_overwrite=True)


def _end_without(store: Any, lost: list[int]) -> None:
    """Ends this process and all others because some are lost."""
    if 0 in lost:
        _end_without_first()
    _announce(store, os.EX_TEMPFAIL, _print_lost(lost))
    _exit(store, os.EX_TEMPFAIL, len(lost))


def _end_without_first() -> NoReturn:
    """Ends this process because process 0 is lost; the others notice it themselves."""
    _print_lost([0])
    os._exit(os.EX_TEMPFAIL)


def _print_lost(lost: list[int]) -> str:
    """Prints and returns that processes are lost."""
    message = f"process {', '.join(map(str, lost))} was killed or its machine failed"
    print(f"error: {message}; start all processes again to continue", file=sys.stderr, flush=True)
    return message


def _lost(store: Any) -> list[int]:
    """The indices of the other processes that give no sign of life; takes a few seconds."""
    try:
        before = dict(store.key_value_dir_get(ALIVE))
        time.sleep(SILENCE)
        after = store.key_value_dir_get(ALIVE)
    except jax.errors.JaxRuntimeError:
        return [0]  # which hosts the store
    alive = {key.rpartition("/")[2] for key, value in after if before.get(key) != value}
    return [index for index in range(jax.process_count()) if index != jax.process_index() and str(index) not in alive]


def _exit_if_announced(store: Any, ending: threading.Lock) -> None:
    """Ends this process, once, if another has announced that it ends."""
    with ending:
        try:
            code, _, message = store.key_value_try_get(FAILED).partition(" ")
        except jax.errors.JaxRuntimeError:  # nothing has been announced
            return
        print(f"error: {message}", file=sys.stderr)
        _exit(store, int(code))


def _exit(store: Any, code: int, lost: int = 0) -> None:
    """Ends this process; process 0 first gives the others, except the lost ones, time to read the reason."""
    store.key_value_set(f"{SEEN}/{jax.process_index()}", "", allow_overwrite=True)
    deadline = time.monotonic() + PATIENCE
    while jax.process_index() == 0 and time.monotonic() < deadline:
        if len(store.key_value_dir_get(SEEN)) >= jax.process_count() - lost:
            break
        time.sleep(0.1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
