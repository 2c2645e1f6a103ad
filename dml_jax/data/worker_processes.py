"""Reading in grain's worker processes, which do not share Python's lock."""

import copyreg
import functools
import gc
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.connection import wait
from typing import Any, TypeVar

import numpy as np

from dml_jax.errors import ConfigError, PeerError

T = TypeVar("T", bound=tuple[object, ...])  # a batch
KILLED = re.compile(r"terminated unexpectedly with exit code -?(\d+)")  # grain's message


class WorkerReader(AbstractContextManager[Any], Iterator[T]):
    """The batches `start` to `stop` - 1 in their order, each read by one of `workers` processes.

    The processes start at once and run until the end of the `with` statement. Each holds a few
    batches in shared memory. Raises what `make` raises; PeerError if a process was killed;
    ConfigError if `make` cannot be sent to processes.
    """

    def __init__(
        self, make: Callable[[int], T], start: int, stop: int, workers: int, threads: int
    ) -> None:
        import grain
        from absl import flags

        if not flags.FLAGS.is_parsed():  # grain reads its own
            flags.FLAGS.mark_as_parsed()
        copyreg.pickle(functools._lru_cache_wrapper, _without_cache)
        self._workers, self._count = workers, 0
        batches = grain.MapDataset.range(start, stop).map(lambda step: make(int(step)))
        reading = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads)
        self._iterator: Any = iter(
            batches.to_iter_dataset(reading).mp_prefetch(
                grain.MultiprocessingOptions(num_workers=workers), _initialise
            )
        )
        self._iterator.get_state()  # makes the iterators of all processes, which are started next
        self._iterator.start_prefetch()

    def __next__(self) -> T:
        try:
            batch = next(self._iterator)
        except Exception as error:
            self._explain(error)
            raise
        self._count += 1
        # Views, because results of computations would inherit grain's class of arrays.
        return tuple(np.asarray(array) for array in batch)  # type: ignore[return-value]

    def _explain(self, error: Exception) -> None:
        if match := KILLED.search(str(error)):
            name = f"worker {self._count % self._workers + 1} of data.workers={self._workers}"
            number = int(match[1])
            cause = signal.Signals(number).name if number in [*signal.Signals] else f"code {number}"
            why = "memory or /dev/shm may be full; use fewer workers, or repeat the command"
            raise PeerError(f"{name}, which reads batches, was ended by {cause}: {why}") from error
        if any("cannot be pickled" in note for note in getattr(error, "__notes__", ())):
            what = "the data set or sampler cannot be sent to other processes"
            raise ConfigError(
                f"data.workers={self._workers}: {what} ({error}); set it to 0"
            ) from error

    def __exit__(self, *exception: object) -> None:
        self._iterator.close()
        self._iterator = None
        gc.collect()  # the last batches, in cycles of exceptions, still have shared memory


def _initialise(index: int, workers: int) -> None:
    """Runs in each process. It ignores the signals that end a run, which all processes of its group
    get, because the main process still needs batches for the current step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this process when its parent is gone, which grain would not notice."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)  # the shared memory is removed by Python's resource tracker, which goes last


def _without_cache(cached: Any) -> Any:
    """Pickles functions with a cache, also local ones, for other processes."""
    if "<locals>" not in cached.__qualname__:
        return cached.__qualname__
    return _with_cache, (cached.__wrapped__, cached.cache_parameters())


def _with_cache(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)
