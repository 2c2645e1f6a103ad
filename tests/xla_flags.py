"""Options of XLA that only save time: each is tried before it is used, because versions of XLA differ in them."""

import functools
import os
import subprocess
import sys

UNOPTIMIZED = "--xla_backend_optimization_level=0"  # compiling a small program takes longer than running it
PARSE = "from jaxlib import xla_client; xla_client.CompileOptions()"


@functools.cache
def known(flag: str) -> bool:
    """Whether XLA knows a flag. Another process tries it, half a second long, because an unknown flag aborts it."""
    environment = os.environ | {"XLA_FLAGS": flag}
    return subprocess.run([sys.executable, "-c", PARSE], env=environment, capture_output=True).returncode == 0


def with_known(*flags: str) -> str:
    """The value of XLA_FLAGS that adds those of `flags` that XLA knows to its present value."""
    present = os.environ.get("XLA_FLAGS", "").split()
    return " ".join([*present, *(flag for flag in flags if flag not in present and known(flag))])
