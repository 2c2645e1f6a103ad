"""Metrics of every single test query, for comparing runs query by query."""

from pathlib import Path
from typing import Any

import numpy as np

from dml_jax import files

# By key of `metrics.retrieval(per_query=True)`: the name in `queries.npz`.
ARRAYS = {"rank": "rank", "r_precision_per_query": "r_precision", "map@r_per_query": "map@r"}


def split_off(results: dict[str, Any]) -> dict[str, np.ndarray]:
    """Moves the per-query arrays out of the results, so that these can be written as JSON."""
    return {name: np.asarray(results.pop(key)) for key, name in ARRAYS.items() if key in results}


def write(directory: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes `queries.npz`: "rank" (int [N], of the nearest relevant image, 0 if none), "r_precision" and "map@r"."""
    small: dict[str, Any] = {
        name: array.astype(np.int32 if name == "rank" else np.float32) for name, array in arrays.items()
    }
    with files.atomic_write(directory / "queries.npz") as draft, draft.open("wb") as file:
        np.savez(file, **small)
