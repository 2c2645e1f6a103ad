"""Distances that a user writes: functions of two blocks of rows, [N, D] and [M, D] -> [N, M].

    def manhattan(a, b):
        return jnp.abs(a[:, None] - b[None]).sum(axis=2)

They are computed in float64 and rounded to float32, so that equal distances are equal in any order
of summation; ties go to the lower index. They must be finite, and symmetric within a set.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Literal, TypeAlias

import jax
import numpy as np

from dml_jax.errors import DataError

Function: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]
Metric: TypeAlias = Literal["cosine", "euclidean"] | Function
ROWS, COLUMNS = 128, 1024  # in a block; smaller ones are padded to have the same rounding
PAIRS = 4096  # compared at once by `pairs`
ASYMMETRY = 1e-5  # largest difference between d(x, y) and d(y, x), relative to the largest distance

_compiled = cache(jax.jit)


def name_of(metric: Metric) -> str:
    """The name of a distance, or its import path."""
    return metric if isinstance(metric, str) else f"{metric.__module__}.{metric.__qualname__}"


def blocks(
    distance: Function, queries: np.ndarray, gallery: np.ndarray
) -> Iterator[tuple[slice, np.ndarray]]:
    """Slices of the queries, and their distances to the whole gallery, float32 [B, G]."""
    if queries is gallery:
        _check_symmetric(distance, queries[:ROWS])
    for start in range(0, len(queries), ROWS):
        part = slice(start, min(start + ROWS, len(queries)))
        columns = [
            _block(distance, queries[part], gallery[first : first + COLUMNS])
            for first in range(0, len(gallery), COLUMNS)
        ]
        yield part, np.concatenate(columns, axis=1)


def pairs(distance: Function, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distances of at most PAIRS rows [n, D] to the corresponding rows [n, D]: float32 [n]."""
    with jax.enable_x64(True):
        found = _of_pairs(distance)(_padded(a, PAIRS), _padded(b, PAIRS))
    return np.asarray(found)[: len(a)].astype(np.float32)


@cache
def _of_pairs(distance: Function) -> Callable[..., jax.Array]:
    return jax.jit(jax.vmap(lambda a, b: distance(a[None], b[None])[0, 0]))


def _block(distance: Function, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        found = np.asarray(_compiled(distance)(_padded(a, ROWS), _padded(b, COLUMNS)))
    if found.shape != (ROWS, COLUMNS):
        result = f"returns {list(found.shape)} for {ROWS} and {COLUMNS} rows"
        raise DataError(f"{name_of(distance)}: {result}; give [N, M]")
    found = found[: len(a), : len(b)].astype(np.float32)
    if not np.isfinite(found).all():
        i, j = np.argwhere(~np.isfinite(found))[0]
        rows = f"rows of lengths {np.linalg.norm(a[i]):g} and {np.linalg.norm(b[j]):g}"
        result = f"{name_of(distance)}: is {found[i, j]} between {rows}"
        raise DataError(f"{result}; it must be finite")
    return found


def _check_symmetric(distance: Function, rows: np.ndarray) -> None:
    there = _block(distance, rows, rows)
    wrong = np.abs(there - there.T) > ASYMMETRY * np.abs(there).max()
    if wrong.any():
        i, j = np.argwhere(wrong)[0]
        back_and_forth = f"{there[i, j]:g} from row {i} to row {j} and {there[j, i]:g} back"
        result = f"{name_of(distance)}: is {back_and_forth}"
        raise DataError(f"{result}; it must be symmetric among rows of one set")


def _padded(rows: np.ndarray, count: int) -> np.ndarray:
    """Rows in float64, the last one repeated up to `count`."""
    repeated = np.repeat(rows[-1:], count - len(rows), axis=0)
    return np.concatenate([rows, repeated]).astype(np.float64)
