"""The papers' losses, forward and backward, compared with independent PyTorch versions on the same
number of threads.

Each module of this folder has the rows of one method, and its cases for
`benchmarks/training_step.py`. The peers raise ImportError if torch is not installed.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

from benchmarks.timing import Row


def modules() -> list[Any]:
    """The modules of the methods that are there."""
    names = [found.name for found in pkgutil.iter_modules(__path__)]
    return [importlib.import_module(f"{__name__}.{name}") for name in names]


def rows() -> Iterator[Row]:
    """One row per case, see `timing.row`."""
    for module in modules():
        yield from module.rows()
