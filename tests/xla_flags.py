"""Options of XLA that only save time: they are tried before they are used, because versions of XLA differ in them."""

import os
import subprocess
import sys

UNOPTIMIZED = "--xla_backend_optimization_level=0"  # compiling a small program takes longer than running it
PARSE = "from jaxlib import xla_client; xla_client.CompileOptions()"


def known(*flags: str) -> bool:
    """Whether XLA knows all flags. Another process tries them, for half a second, because an unknown one aborts it."""
    environment = os.environ | {"XLA_FLAGS": " ".join(flags)}
    return subprocess.run([sys.executable, "-c", PARSE], env=environment, capture_output=True).returncode == 0


def with_known(*flags: str) -> str:
    """The value of XLA_FLAGS that adds those of `flags` that XLA knows to its present value."""
    present = os.environ.get("XLA_FLAGS", "").split()
    new = [flag for flag in flags if flag not in present]
    if new and not known(*new):
        new = [flag for flag in new if known(flag)]
    return " ".join(present + new)
