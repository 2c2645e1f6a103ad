"""Validation of the arguments of the losses; it reads shapes only, so it costs nothing in a compiled program."""

from typing import Any

import numpy as np

from dml_jax.errors import DataError
from dml_jax.losses.pairwise import Candidates


def check_batch(
    embeddings: Any, labels: Any, *, candidates: Candidates | None = None, **tables: tuple[Any, str]
) -> None:
    """Raises `DataError` unless the shapes of a batch fit each other.

    Args:
      embeddings: float [N, D].
      labels: int [N].
      candidates: positive and negative [N, M] over embeddings [M, D].
      tables: learned parameters with their axes, e.g. "CD" for [C, D].
    """
    shape = np.shape(embeddings)
    if len(shape) != 2:
        raise DataError(f"embeddings: have shape {list(shape)}; give [N, D], one embedding per row")
    rows, width = shape
    if np.shape(labels) != (rows,):
        raise DataError(f"labels: have shape {list(np.shape(labels))} for embeddings {list(shape)}; give [{rows}]")
    for name, (table, axes) in tables.items():
        found = np.shape(table)
        if len(found) != len(axes) or found[axes.index("D")] != width:
            wanted = ", ".join(str(width) if axis == "D" else axis for axis in axes)
            raise DataError(f"{name}: has shape {list(found)} for embeddings {list(shape)}; give [{wanted}]")
    if candidates is not None:
        among = np.shape(candidates.embeddings)
        if len(among) != 2 or among[1] != width:
            raise DataError(
                f"candidates.embeddings: have shape {list(among)} for embeddings {list(shape)}; give [M, {width}]"
            )
        for name in ("positive", "negative"):
            found = np.shape(getattr(candidates, name))
            if found != (rows, among[0]):
                raise DataError(
                    f"candidates.{name}: has shape {list(found)}; give [{rows}, {among[0]}], one row per embedding and "
                    "one column per candidate"
                )
