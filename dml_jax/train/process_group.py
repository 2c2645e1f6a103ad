"""The processes of a run end together: an error or a signal that one has alone ends the others, which would wait."""

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

FAILED, KNOWN = "dml_jax/failed", "dml_jax/known"
PATIENCE = 10.0  # seconds that process 0, which keeps the notes, waits for the others to have read them


@contextmanager
def ending_together() -> Iterator[Callable[[int], None]]:
    """Where one process of several leaves with an exception, the others say so and end, wherever they are.

    Gives what ends this process at once on a signal, from any thread, with the exit code it is called with.
    """
    if jax.process_count() == 1:
        yield os._exit
        return
    from jax._src import distributed  # the notes that processes leave each other have no public name

    notes: Any = distributed.global_state.client
    over, ending = threading.Event(), threading.Lock()

    def note(code: int, reason: str) -> None:
        notes.key_value_set(FAILED, f"{code} process {jax.process_index()} has stopped: {reason}", allow_overwrite=True)

    def leave(code: int) -> None:
        note(code, signal.Signals(code - 128).name)
        _leave(notes, code)

    threading.Thread(target=_watch, args=(notes, over, ending), daemon=True).start()
    try:
        yield leave
    except Exception as error:
        if isinstance(error, Interrupted) and not error.alone:  # they have agreed to stop
            raise
        over.set()
        _follow(notes, ending)  # the end of another may be what has gone wrong here
        code = error.code if isinstance(error, Interrupted) else 2 if isinstance(error, UserError | OSError) else 1
        note(code, " ".join(str(error).split()) or type(error).__name__)
        register(_leave, notes, code)  # once the error is on the screen, and before JAX waits for the others
        raise
    finally:
        over.set()


def _watch(notes: Any, over: threading.Event, ending: threading.Lock) -> None:
    while not over.wait(1.0):
        _follow(notes, ending)


def _follow(notes: Any, ending: threading.Lock) -> None:
    """Ends this process, once, where another has noted that it ends."""
    with ending:
        try:
            code, _, message = notes.key_value_try_get(FAILED).partition(" ")
        except jax.errors.JaxRuntimeError:  # there is no such note
            return
        print(f"error: {message}", file=sys.stderr)
        _leave(notes, int(code))


def _leave(notes: Any, code: int) -> None:
    """Ends this process without waiting for the others, but for those that still have to read why."""
    notes.key_value_set(f"{KNOWN}/{jax.process_index()}", "", allow_overwrite=True)
    deadline = time.monotonic() + PATIENCE
    while jax.process_index() == 0 and time.monotonic() < deadline:
        if len(notes.key_value_dir_get(KNOWN)) == jax.process_count():
            break
        time.sleep(0.1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
