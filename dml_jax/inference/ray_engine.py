"""Embeds units of images on the machines of a Ray cluster, by actors that each hold the model.

An actor embeds one unit at a time by the code of one machine and writes its part itself, so rows agree up to rounding
and no images or embeddings pass through Ray. Units are given only to actors that have loaded the model: a cluster with
fewer free devices than actors is slower, but never waits for itself. A unit whose actor dies goes to another one.
"""

import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dml_jax
from dml_jax.errors import ConfigError, DataError, UserError
from dml_jax.inference import parts
from dml_jax.inference.batches import usable_cores
from dml_jax.inference.inputs import Unit

CORES = 8  # of an actor without a GPU, or all of a smaller machine
DEATHS = 3  # of actors with the same unit, after which it is given up
PATIENCE = 60.0  # seconds without a free actor, after which a line says so


class Embedder:
    """An actor: a model in a process of its own."""

    def load(self, directory: str, checkpoint: str, trust_code: bool) -> tuple[parts.Facts, str]:
        """Loads the model; returns what is known of it and the name of the machine."""
        self._model = dml_jax.load(directory, checkpoint, trust_code=trust_code)
        return parts.facts(self._model), os.uname().nodename

    def embed(self, file: Path | str, unit: Unit, key: str) -> Path | str:
        """Writes a part, see `parts.embed`."""
        Path(file).parent.stat()  # OSError if this machine does not see the directory
        (written,) = parts.embed(self._model, [(file, unit)], key)
        return written


@contextmanager
def connect(address: str | None) -> Iterator[Any]:
    """The ray package, connected to a cluster, or without an address to a new one of this machine alone.

    Raises:
      ConfigError: there is no such cluster, or it does not have this version of this package.
    """
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "dml_jax"}
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        if address and address.count(":") == 1:  # Ray would try for minutes
            host, _, port = address.partition(":")
            socket.create_connection((host, int(port)), timeout=10).close()
        if address:
            ray.init(address, **quiet)
        else:
            ray.init(
                "local", num_cpus=usable_cores(), include_dashboard=False, _node_ip_address="127.0.0.1",
                object_store_memory=100 * 2**20, **quiet,
            )  # fmt: skip
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"--address={address or 'local'}: cannot be used ({str(error).splitlines()[0]})") from None
    try:
        _check_package(ray, address)
        yield ray
    finally:
        ray.shutdown()


def _check_package(ray: Any, address: str | None) -> None:
    def version(name: str) -> str | None:  # a local function, which Ray sends as code instead of importing it
        import importlib

        try:
            return str(importlib.import_module(name).__version__)
        except ImportError:
            return None

    package = dml_jax.__name__
    found = ray.get(ray.remote(num_cpus=0)(version).remote(package))
    if found != dml_jax.__version__:
        where = f"--address={address or 'local'}: the cluster"
        if found is None:
            raise ConfigError(f"{where} does not have {package}; install it on every machine")
        raise ConfigError(
            f"{where} has {package} {found}, but this command is {dml_jax.__version__}; install the same version"
        )


def resources(nodes: list[dict[str, Any]]) -> tuple[int, dict[str, float]]:
    """The number of actors and what each needs: one per GPU, or else one per `CORES` cores.

    Args:
      nodes: of `ray.nodes()`.

    Raises:
      ConfigError: no machine has a GPU or a core.
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    gpus = sum(int(node.get("GPU", 0)) for node in alive)
    if gpus:
        return gpus, {"num_gpus": 1, "num_cpus": 0}
    cores = [int(node.get("CPU", 0)) for node in alive if node.get("CPU", 0) >= 1]
    if not cores:
        raise ConfigError("--engine=ray: the cluster has neither GPUs nor CPUs for this command")
    each = min(CORES, *cores)
    return sum(count // each for count in cores), {"num_cpus": each}


@contextmanager
def start(address: str | None, model: str, checkpoint: str, *, trust_code: bool) -> Iterator[parts.Engine]:
    """A model on the machines of a Ray cluster.

    Args:
      address: see `connect`.
      model, checkpoint, trust_code: see `Model`; every machine must see the directory.

    Raises:
      UserError: the cluster or the model cannot be used.
    """
    name = os.path.abspath(model) if Path(model).exists() else model  # of packaged weights, or on the hub
    with connect(address) as ray:
        count, needs = resources(ray.nodes())
        pool = _Pool(ray, needs, (name, checkpoint, trust_code))
        for _ in range(count):
            pool.add()
        yield parts.Engine(pool.first(), pool.embed)


class _Pool:
    """Actors, those that are free, and what the others do."""

    def __init__(self, ray: Any, needs: dict[str, float], model: tuple[str, str, bool]):
        self._ray = ray
        self._actor = ray.remote(**needs)(Embedder)
        self._model = model
        self._free: list[Any] = []
        self._busy: dict[
            Any, tuple[Any, tuple[Path | str, Unit] | None]
        ] = {}  # by result: actor, its unit; none: it loads
        self._deaths: Counter[str] = Counter()
        self._facts: parts.Facts | None = None

    def add(self) -> None:
        """Starts an actor."""
        actor = self._actor.remote()
        self._busy[actor.load.remote(*self._model)] = (actor, None)

    def first(self) -> parts.Facts:
        """What is known of the model, once the first actor has loaded it."""
        while self._facts is None:
            self._wait()
        return self._facts

    def embed(self, units: Iterable[tuple[Path | str, Unit]], key: str) -> Iterator[Path | str]:
        """See `parts.embed`; in any order."""
        left = list(reversed(list(units)))
        while left or any(unit for _, unit in self._busy.values()):
            while left and self._free:
                actor, unit = self._free.pop(), left.pop()
                self._busy[actor.embed.remote(*unit, key)] = (actor, unit)
            done, again = self._wait()
            if again:
                left.append(again)
            if done:
                yield done

    def _wait(self) -> tuple[Path | str | None, tuple[Path | str, Unit] | None]:
        """Waits for an actor; returns the part that it has written, or the unit with which it died."""
        ready, _ = self._ray.wait(list(self._busy), timeout=PATIENCE)
        if not ready:
            if not any(unit for _, unit in self._busy.values()):
                print("waiting for free GPUs or CPUs of the cluster", flush=True)
            return None, None
        actor, unit = self._busy.pop(ready[0])
        name = unit[1].names[0] if unit else "the model"
        try:
            found = self._ray.get(ready[0])
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise error.cause from None
            if isinstance(error.cause, OSError):
                raise DataError(
                    f"{error.cause.filename}: cannot be used on a machine of the cluster ({error.cause.strerror}); "
                    "give paths that all of them share"
                ) from None
            raise
        except self._ray.exceptions.RayActorError as error:
            self._deaths[name] += 1
            if self._deaths[name] == DEATHS:
                reason = " ".join(str(error).split())[:300]
                raise DataError(f"{name}: {DEATHS} actors died of it ({reason})") from None
            self.add()
            return None, unit
        self._free.append(actor)
        if unit:
            return found, None
        facts, machine = found
        if self._facts not in (None, facts):
            raise DataError(f"{self._model[0]}: is another model on {machine}; give a path that all machines share")
        self._facts = facts
        return None, None
