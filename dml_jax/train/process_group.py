"""The processes of a run end together: if one fails or is stopped, the others end with a message instead of waiting."""

import os
import signal
import sys
import threading
import time
from atexit import register
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from dml_jax.errors import UserError
from dml_jax.train.signals import Interrupted

FAILED, SEEN = "dml_jax/failed", "dml_jax/seen"  # keys in JAX's key-value store
PATIENCE = 10.0  # seconds that process 0, which hosts the store, waits until the others have read the reason


@contextmanager
def end_together() -> Iterator[Callable[[int], None]]:
    """Within this context, an exception in one process of several is reported by the others, which then end too.

    Yields:
      A function that ends this process at once with an exit code; may be called from any thread.
    """
    if jax.process_count() == 1:
        yield os._exit
        return
    from jax._src import distributed  # the key-value store that processes share has no public name

    store: Any = distributed.global_state.client
    over, ending = threading.Event(), threading.Lock()

    def announce(code: int, reason: str) -> None:
        message = f"{code} process {jax.process_index()} has stopped: {reason}"
        store.key_value_set(FAILED, message, allow_overwrite=True)

    def end_now(code: int) -> None:
        announce(code, signal.Signals(code - 128).name)
        _exit(store, code)

    threading.Thread(target=_watch, args=(store, over, ending), daemon=True).start()
    try:
        yield end_now
    except Exception as error:
        if isinstance(error, Interrupted) and not error.alone:  # all processes have agreed to stop
            raise
        over.set()
        _exit_if_announced(store, ending)  # this error may be a consequence of another process having ended
        code = error.code if isinstance(error, Interrupted) else 2 if isinstance(error, UserError | OSError) else 1
        announce(code, " ".join(str(error).split()) or type(error).__name__)
        register(_exit, store, code)  # after the error has been printed, and before JAX waits for the others
        raise
    finally:
        over.set()


def _watch(store: Any, over: threading.Event, ending: threading.Lock) -> None:
    while not over.wait(1.0):
        _exit_if_announced(store, ending)


def _exit_if_announced(store: Any, ending: threading.Lock) -> None:
    """Ends this process, once, if another has announced that it ends."""
    with ending:
        try:
            code, _, message = store.key_value_try_get(FAILED).partition(" ")
        except jax.errors.JaxRuntimeError:  # nothing has been announced
            return
        print(f"error: {message}", file=sys.stderr)
        _exit(store, int(code))


def _exit(store: Any, code: int) -> None:
    """Ends this process; process 0 first gives the others time to read the reason."""
    store.key_value_set(f"{SEEN}/{jax.process_index()}", "", allow_overwrite=True)
    deadline = time.monotonic() + PATIENCE
    while jax.process_index() == 0 and time.monotonic() < deadline:
        if len(store.key_value_dir_get(SEEN)) == jax.process_count():
            break
        time.sleep(0.1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
