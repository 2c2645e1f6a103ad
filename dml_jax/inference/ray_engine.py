"""Embeds units of images on the machines of a Ray cluster, by actors that each hold the model.

An actor embeds one unit at a time by the code of one machine and writes its part itself, so rows
are equal on equal processors, and no images or embeddings pass through Ray. Units are given only to
actors that have loaded the model: a cluster with fewer free devices than actors is slower, but
never waits for itself. Ray starts an actor that dies again, and repeats its unit.
"""

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import dml_jax
from dml_jax.data.pipeline import usable_cores
from dml_jax.errors import ConfigError, DataError, UserError
from dml_jax.inference import embedding_shards, unit_embedding
from dml_jax.inference.bulk_embedding import Engine
from dml_jax.inference.embedding_shards import Source
from dml_jax.inference.inputs import Unit

T = TypeVar("T")
CORES = 8  # per actor without a GPU, or all cores of a smaller machine
PATIENCE = 60.0  # seconds without a free actor, after which a line says so
DEATHS = 3  # processes that may die of the same work before Ray gives up


class Embedder:
    """An actor: a model in a process of its own."""

    def __init__(self, directory: str, checkpoint: str, options: dict[str, Any]):
        # Loaded by the first call.
        self._model = cache(partial(dml_jax.load, directory, checkpoint, **options))

    def identity(self) -> tuple[Source, str]:
        """The identity of the model, and the machine's name with the version of this package."""
        machine = f"{os.uname().nodename} ({dml_jax.__version__})"
        return embedding_shards.source(self._model()), machine

    def embed(self, file: Path | str, unit: Unit) -> Path | str:
        """Writes a part, see `unit_embedding.embed`."""
        Path(file).parent.stat()  # OSError if this machine does not see the directory
        (written,) = unit_embedding.embed(self._model(), [(file, unit)])
        return written


def resources(nodes: list[dict[str, Any]]) -> tuple[int, dict[str, float]]:
    """The number of actors and the needs of each, from `ray.nodes()`: one per GPU, or else one per
    `CORES` cores."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    found = [(int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in alive]
    machines = [each for each in found if each[1]] or [each for each in found if each[0]]
    if not machines:
        raise ConfigError("--engine=ray: the cluster has neither GPUs nor CPUs for this command")
    if gpus := sum(count for _, count in machines):
        return gpus, {"num_gpus": 1, "num_cpus": 0}
    each = min(CORES, *(cores for cores, _ in machines))
    return sum(cores // each for cores, _ in machines), {"num_cpus": each}


@contextmanager
def start(address: str | None, model: str, checkpoint: str, **options: Any) -> Iterator[Engine]:
    """A model (see `dml_jax.load`) on the machines of a Ray cluster, which must all see its
    directory."""
    # Packaged weights and models of the hub have names instead of directories.
    name = os.path.abspath(model) if Path(model).exists() else model
    with connect(address) as ray:
        count, needs = resources(ray.nodes())
        pool = _Pool(ray, needs, count, (name, checkpoint, options))
        yield Engine(pool.identity(), pool.embed, [])


class _Pool:
    """Actors: free ones, and those at work."""

    def __init__(
        self, ray: Any, needs: dict[str, float], count: int, model: tuple[str, str, dict[str, Any]]
    ):
        self._ray, self._directory = ray, model[0]
        kind = ray.remote(max_restarts=-1, max_task_retries=DEATHS - 1, **needs)(Embedder)
        actors = [kind.remote(*model) for _ in range(count)]
        self._free: list[Any] = []
        # Reference to the result -> actor and its unit, which is None while the model is loaded.
        self._busy: dict[Any, tuple[Any, tuple[Path | str, Unit] | None]] = {
            actor.identity.remote(): (actor, None) for actor in actors
        }
        self._identity: Source | None = None

    def identity(self) -> Source:
        """The identity of the model, once the first actor has loaded it."""
        while self._identity is None:
            self._wait()
        return self._identity

    def embed(self, units: Iterable[tuple[Path | str, Unit]]) -> Iterator[Path | str]:
        """Like `unit_embedding.embed`, in any order."""
        left = list(reversed(list(units)))
        while left or any(unit for _, unit in self._busy.values()):
            while left and self._free:
                actor, unit = self._free.pop(), left.pop()
                self._busy[actor.embed.remote(*unit)] = (actor, unit)
            if done := self._wait():
                yield done

    def _wait(self) -> Path | str | None:
        """Waits for an actor; returns the part that it has written."""
        ready, _ = self._ray.wait(list(self._busy), timeout=PATIENCE)
        if not ready:
            if not any(unit for _, unit in self._busy.values()):
                print("waiting for free GPUs or CPUs of the cluster", flush=True)
            return None
        actor, unit = self._busy.pop(ready[0])
        found = _result(self._ray, ready[0], unit[1].names[0] if unit else "the model")
        self._free.append(actor)
        if unit:
            return found
        identity, machine = found
        if self._identity not in (None, identity) or not machine.endswith(
            f"({dml_jax.__version__})"
        ):
            raise DataError(
                f"{self._directory}: is another model or version on {machine}; give a path that "
                f"all machines share, and install dml_jax {dml_jax.__version__} on each"
            )
        self._identity = identity
        return None


def _result(ray: Any, reference: Any, name: str) -> Any:
    """The result of an actor or a task with the work `name`."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, OSError):
            reason = (
                f"cannot be used on a machine of the cluster ({cause.strerror}); give paths that "
                "all of them share"
            )
            raise DataError(f"{cause.filename}: {reason}") from None
        raise (cause if isinstance(cause, UserError | MemoryError) else error) from None
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{name}: {DEATHS} processes died of it ({reason})") from None


def run(
    address: str | None, function: Callable[..., T], shared: Any, items: Iterable[tuple[Any, ...]]
) -> Iterator[T]:
    """The results of `function(shared, *item)`, in any order, by tasks on the machines of a Ray
    cluster.

    Each has the resources of an actor; Ray repeats a task whose process died.
    """
    with connect(address) as ray:
        _, needs = resources(ray.nodes())
        task, reference = ray.remote(max_retries=DEATHS - 1, **needs)(function), ray.put(shared)
        running = [task.remote(reference, *item) for item in items]
        while running:
            ready, running = ray.wait(running)
            yield _result(ray, ready[0], "a block of queries")


@contextmanager
def connect(address: str | None) -> Iterator[Any]:
    """The ray package, connected to a cluster, or without an address to a new one of this machine
    alone."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        if address and address.count(":") == 1:  # Ray would try for minutes
            host, _, port = address.partition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        if not address:
            options |= {"num_cpus": usable_cores(), "object_store_memory": 100 * 2**20}
            options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        ray.init(address or "local", namespace="dml_jax", **options)
    except Exception as error:  # a time-out of its processes has no class of its own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"--address={address or 'local'}: cannot be used ({reason})") from None
    try:
        yield ray
    finally:
        ray.shutdown()
