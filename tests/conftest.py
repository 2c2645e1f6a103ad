"""Strictness for every test: eight virtual CPU devices, no silent broadcasting between ranks."""

import os
from collections.abc import Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64 arithmetic inside the test."""
    with jax.enable_x64(True):
        yield
