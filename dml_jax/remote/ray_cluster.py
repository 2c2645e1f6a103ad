"""A Ray cluster: connecting to it, and what its machines have."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dml_jax.errors import ConfigError

DEATHS = 3  # of processes with the same work, after which it is given up


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def connect(address: str | None) -> Iterator[Any]:
    """The ray package, connected to a cluster, or without an address to a new one of this machine alone.

    Raises ConfigError if there is no such cluster.
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
    except Exception as error:  # a time-out of its processes is no class of its own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"--address={address or 'local'}: cannot be used ({reason})") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def machines(nodes: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """The cores and GPUs of each of `ray.nodes()` that has a GPU, or if none has, of each that has a core."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    found = [(int(node.get("CPU", 0)), int(node.get("GPU", 0))) for node in alive]
    usable = [each for each in found if each[1]] or [each for each in found if each[0]]
    if not usable:
        raise ConfigError("--engine=ray: the cluster has neither GPUs nor CPUs for this command")
    return usable
