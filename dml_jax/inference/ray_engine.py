"""Embeds chunks of images, and searches blocks of queries, on the machines of a Ray cluster.

Chunks are the rows of a data set of Ray, which the actors of a pool map: each holds the model,
embeds a chunk by the code of one machine and writes it itself, so rows are equal on equal
processors, and no images or embeddings pass through Ray. Ray starts an actor that dies again, and
repeats its chunk.
"""

import json
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import dml_jax
from dml_jax.data.cores import usable_cores
from dml_jax.errors import ConfigError, DataError, UserError
from dml_jax.inference import bulk_embedding
from dml_jax.inference.bulk_embedding import Chunk, Engine
from dml_jax.inference.inputs import Item
from dml_jax.seal import Identity

T = TypeVar("T")
CORES = 8  # per actor without a GPU, or all cores of a smaller machine
DEATHS = 3  # processes that may die of the same work

Loading = tuple[str, str, dict[str, Any], str]  # arguments of `dml_jax.load`, and the version


def load(model: str, checkpoint: str, options: dict[str, Any], version: str) -> Any:
    """A model on a machine of the cluster; DataError if its dml_jax is another version."""
    if version != dml_jax.__version__:
        problem = f"has dml_jax {dml_jax.__version__}; install {version} on each machine"
        raise DataError(f"{os.uname().nodename}: {problem}")
    return dml_jax.load(model, checkpoint, **options)


def describe(loading: Loading) -> tuple[Identity, bool]:
    """The identity of a model, and whether its run has finished."""
    model = load(*loading)
    return model.identity, model.finished


class Embedder:
    """An actor: a model in a process of its own, which maps rows with a `chunk`."""

    def __init__(self, loading: Loading):
        self._model = load(*loading)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Writes the chunk; "problem" is what the user has to fix, or ""."""
        directory, root = Path(row["chunk"]), Path(row["root"])
        items = [Item(name, root / name) for name in json.loads(row["names"])]
        tries = _tries(directory)
        try:
            if tries.exists() and tries.stat().st_size >= DEATHS:
                problem = f"{DEATHS} processes died of this chunk"
                raise DataError(f"{items[0].name} to {items[-1].name}: {problem}")
            with tries.open("a") as file:
                file.write(".")
            for _ in bulk_embedding.write_chunks(self._model, [(directory, items)]):
                tries.unlink()
        except (UserError, OSError) as error:
            return {"chunk": str(directory), "problem": _message(error)}
        return {"chunk": str(directory), "problem": ""}


def _tries(chunk: Path) -> Path:
    """The file with a dot for each process that has begun a chunk."""
    return chunk.with_name(f".{chunk.name}.tries")


def _message(error: Exception) -> str:
    """What a user reads of an error on another machine."""
    if isinstance(error, OSError):
        reason = f"cannot be used on a machine of the cluster ({error.strerror})"
        return f"{error.filename}: {reason}; give paths that all of them share"
    return str(error)


def resources(nodes: list[dict[str, Any]]) -> tuple[int, dict[str, float]]:
    """The number of actors and the needs of each, from `ray.nodes()`: one per GPU, or else one per
    `CORES` cores."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    counts = [(int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in alive]
    machines = [each for each in counts if each[1]] or [each for each in counts if each[0]]
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
    loading: Loading = name, checkpoint, options, dml_jax.__version__
    with connect(address) as ray:
        count, needs = resources(ray.nodes())
        ((identity, finished),) = _run(ray, describe, needs, [(loading,)], "the model")

        def embed(chunks: Iterable[Chunk]) -> Iterator[Path]:
            rows = []
            for directory, items in chunks:
                directory.parent.mkdir(parents=True, exist_ok=True)
                _tries(directory).unlink(missing_ok=True)  # of a command that was killed
                names = json.dumps([item.name for item in items])  # need not be UTF-8
                rows.append({"chunk": str(directory), "root": os.getcwd(), "names": names})
            if not rows:
                return
            pool = ray.data.ActorPoolStrategy(size=min(count, len(rows)))
            mapped = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
                Embedder, fn_constructor_args=(loading,), compute=pool, **needs
            )
            for row in mapped.iter_rows():
                if row["problem"]:
                    raise DataError(row["problem"])
                yield Path(row["chunk"])

        yield Engine(identity, finished, embed, [])


def run(
    address: str | None, function: Callable[..., T], shared: Any, items: Iterable[tuple[Any, ...]]
) -> Iterator[T]:
    """The results of `function(shared, *item)`, in any order, by tasks on the machines of a Ray
    cluster; Ray repeats a task whose process died."""
    with connect(address) as ray:
        _, needs = resources(ray.nodes())
        reference = ray.put(shared)
        arguments = [(reference, *item) for item in items]
        yield from _run(ray, function, needs, arguments, "a block of queries")


def _run(
    ray: Any, function: Callable[..., T], needs: Any, items: list[tuple[Any, ...]], name: str
) -> Iterator[T]:
    task = ray.remote(max_retries=DEATHS - 1, **needs)(function)
    running = [task.remote(*item) for item in items]
    while running:
        ready, running = ray.wait(running)
        try:
            yield ray.get(ready[0])
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError | OSError):
                raise DataError(_message(error.cause)) from None
            raise
        except ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:300]
            raise DataError(f"{name}: {DEATHS} processes died of it ({reason})") from None


@contextmanager
def connect(address: str | None) -> Iterator[Any]:
    """The package ray, connected to a cluster, or without an address to a new one of this machine
    alone."""
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
    os.environ.update(quiet | os.environ)
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
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
