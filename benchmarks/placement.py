"""Bytes that eight virtual devices receive and hold: the first state, nearest neighbours, retrieval.

    python -m benchmarks.placement

Copies from the host are counted as they are made. What the devices receive from each other is read from the compiled
programs, with loops as often as they say they run. As CPUs have no statistics of an allocator, the memory of a device
is the live arrays on it, and while a program runs, what the compiler plans for it besides.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}

import jax
import numpy as np

from benchmarks.collectives import collectives

DEVICES, CLASSES, DIM = 8, 200_000, 128
ROWS, QUERIES, WIDTH, NEIGHBORS = 60_000, 8_192, 128, 10  # of the gallery
TABLE_ROWS, PER_CLASS = 20_000, 5  # of retrieval
JIT = jax.jit
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
CALL = re.compile(r"(?:body|to_apply|calls)=%?([\w.\-]+)")
TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')


class Meter:
    """What was received and held since it was made.

    Attributes:
      copied: bytes from the host, on all devices together.
      exchanged: bytes from other devices, likewise.
      peak: bytes on the fullest device.
    """

    def __init__(self) -> None:
        self.copied = self.exchanged = self.peak = 0
        self._programs: dict[Any, tuple[int, int, set[Any]]] = {}

    def held(self, planned: int = 0, devices: set[Any] | None = None) -> None:
        """Notes the live arrays, and what a program on some devices needs besides."""
        live: Counter[Any] = Counter()
        for array in jax.live_arrays():
            if not jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
                size = int(np.prod(array.sharding.shard_shape(array.shape))) * array.dtype.itemsize
                live.update(dict.fromkeys(array.sharding.addressable_devices, size))
        live.update(dict.fromkeys(devices or (), planned))
        self.peak = max(self.peak, *live.values(), 0)

    def called(self, jitted: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Notes a call of a program."""
        leaves, structure = jax.tree.flatten((arguments, options))
        kinds = tuple((x.shape, x.dtype, getattr(x, "sharding", None)) if hasattr(x, "dtype") else x for x in leaves)
        if (key := (id(jitted), structure, kinds)) not in self._programs:
            compiled = jitted.lower(*arguments, **options).compile()
            memory = compiled.memory_analysis()
            planned = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
            devices = {device for put in jax.tree.leaves(compiled.output_shardings) for device in put.device_set}
            self._programs[key] = received(compiled.as_text(), len(devices)) * len(devices), planned, devices
        exchanged, planned, devices = self._programs[key]
        self.exchanged += exchanged
        self.held(planned, devices)


def received(text: str, devices: int) -> int:
    """Bytes that each of the devices receives from others in a run of a compiled program."""
    bodies: dict[str, list[str]] = {}
    name = entry = ""
    for line in text.splitlines():
        if start := COMPUTATION.match(line):
            name = start[1]
            bodies[name] = []
            entry = name if line.startswith("ENTRY") else entry
        elif line.strip():
            bodies.setdefault(name, []).append(line)
    share = {"all-reduce": 2 * (devices - 1) / devices, "reduce-scatter": devices - 1, "collective-permute": 1}

    def of(name: str) -> float:
        total = 0.0
        for line in bodies.get(name, []):
            for found in collectives(line):
                total += found.bytes * share.get(found.kind, (devices - 1) / devices)
            trips = int(count[1]) if (count := TRIPS.search(line)) else 1
            total += trips * sum(of(callee) for callee in CALL.findall(line))
        return total

    return int(of(entry))


@contextmanager
def metered() -> Iterator[Meter]:
    """Measures what functions do whose modules are imported inside."""
    meter = Meter()

    class Counted:
        def __init__(self, function: Callable[..., Any], **options: Any):
            self._jitted = JIT(function, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._jitted, name)

        def __call__(self, *arguments: Any, **options: Any) -> Any:
            if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((arguments, options))):
                meter.called(self._jitted, arguments, options)
            return self._jitted(*arguments, **options)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            made = function(*arguments, **options)
            for array in jax.tree.leaves(made):
                size = int(np.prod(array.sharding.shard_shape(array.shape))) * array.dtype.itemsize
                meter.copied += size * len(array.sharding.addressable_devices)
            meter.held()
            return made

        return run

    names = ("device_put", "make_array_from_callback", "make_array_from_process_local_data")
    originals = {name: getattr(jax, name) for name in names}
    jax.jit = Counted  # type: ignore[assignment, misc]
    for name, function in originals.items():
        setattr(jax, name, counted(function))
    try:
        yield meter
    finally:
        jax.jit = JIT  # type: ignore[misc]
        for name, function in originals.items():
            setattr(jax, name, function)


def initial_state() -> Any:
    """A small network with Proxy-Anchor and Adam, whose table of classes is spread over the devices."""
    from configs import digits_baseline
    from dml_jax import config as configs
    from dml_jax.methods.contract import TrainingSet
    from dml_jax.train import experiment
    from dml_jax.train.model import build_method

    given = digits_baseline.get_config("proxy_anchor")
    given.train.shard_classes, given.method.embedding_dim = True, DIM
    built = experiment.build(configs.resolve(given.to_dict()))
    method = build_method(built.config, TrainingSet(CLASSES, 1))
    return built._replace(method=method).initial_state()


def search() -> Any:
    """The nearest neighbours of some rows among others."""
    from dml_jax.evaluation import neighbors

    rows = np.random.default_rng(0).normal(size=(ROWS + QUERIES, WIDTH)).astype(np.float32)
    return neighbors.search(rows[ROWS:], rows[:ROWS], NEIGHBORS)


def retrieval() -> Any:
    """Recall and MAP@R of rows that are their own gallery."""
    from dml_jax.evaluation import metrics

    rows = np.random.default_rng(0).normal(size=(TABLE_ROWS, WIDTH)).astype(np.float32)
    return metrics.retrieval(rows, np.arange(TABLE_ROWS) // PER_CLASS)


def main() -> None:
    """Prints a table."""
    print("| MiB | from the host | from other devices | most on one device |\n|---|--:|--:|--:|")
    with metered() as meter:
        for work in (initial_state, search, retrieval):
            meter.__init__()  # type: ignore[misc]
            kept = work()
            sizes = (value / 2**20 for value in (meter.copied, meter.exchanged, meter.peak))
            print(f"| {work.__name__} | " + " | ".join(f"{size:,.0f}" for size in sizes) + " |", flush=True)
            del kept


if __name__ == "__main__":
    main()
