"""The papers' losses, forward and backward, compared with independent PyTorch versions on the same
number of threads.

Each module of this folder has the rows of one method. The peers raise ImportError if torch is not
installed.
"""

import importlib
import pkgutil
from collections.abc import Iterator

from benchmarks.timing import Row


def rows() -> Iterator[Row]:
    """One row per case, see `timing.row`."""
    for found in pkgutil.iter_modules(__path__):
        yield from importlib.import_module(f"{__name__}.{found.name}").rows()
