"""User-defined distances: functions of two blocks of rows, [N, D] and [M, D] -> [N, M].

    def manhattan(a, b):
        return jnp.abs(a[:, None] - b[None]).sum(axis=2)

They are computed in float64 and rounded to float32, so that equal distances stay equal in any order
of summation; ties go to the lower index. Distances must be finite, and symmetric within a set.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Literal, TypeAlias

import jax
import numpy as np

from dml_jax.errors import DataError

Function: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]
Metric: TypeAlias = Literal["cosine", "euclidean"] | Function
ROWS, COLUMNS = 128, 1024  # of a block; smaller blocks are padded, so that they round equally
PAIRS = 4096  # rows of a call of `pairs`
ASYMMETRY = 1e-5  # allowed difference of d(x, y) and d(y, x), relative to the largest distance

_compiled = cache(jax.jit)


def name_of(metric: Metric) -> str:
    """The name of a distance, or its import path."""
    return metric if isinstance(metric, str) else f"{metric.__module__}.{metric.__qualname__}"


def blocks(
    distance: Function, queries: np.ndarray, gallery: np.ndarray
) -> Iterator[tuple[slice, np.ndarray]]:
    """Blocks of queries: a slice and the distances to the whole gallery, float32 [B, G]."""
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
    """Distances float32 [n] between corresponding rows [n, D], at most PAIRS."""
    with jax.enable_x64(True):
        values = _compile_pairs(distance)(_pad(a, PAIRS), _pad(b, PAIRS))
    return np.asarray(values)[: len(a)].astype(np.float32)


@cache
def _compile_pairs(distance: Function) -> Callable[..., jax.Array]:
    return jax.jit(jax.vmap(lambda a, b: distance(a[None], b[None])[0, 0]))


def _block(distance: Function, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        values = np.asarray(_compiled(distance)(_pad(a, ROWS), _pad(b, COLUMNS)))
    if values.shape != (ROWS, COLUMNS):
        shape = f"{list(values.shape)} for {ROWS} and {COLUMNS} rows"
        raise DataError(f"{name_of(distance)} must return distances [N, M]; got {shape}")
    values = values[: len(a), : len(b)].astype(np.float32)
    if not np.isfinite(values).all():
        i, j = np.argwhere(~np.isfinite(values))[0]
        rows = f"rows of lengths {np.linalg.norm(a[i]):g} and {np.linalg.norm(b[j]):g}"
        raise DataError(f"{name_of(distance)} must be finite; got {values[i, j]} between {rows}")
    return values


def _check_symmetric(distance: Function, rows: np.ndarray) -> None:
    values = _block(distance, rows, rows)
    asymmetric = np.abs(values - values.T) > ASYMMETRY * np.abs(values).max()
    if asymmetric.any():
        i, j = np.argwhere(asymmetric)[0]
        both = f"{values[i, j]:g} from row {i} to row {j}, but {values[j, i]:g} back"
        raise DataError(f"{name_of(distance)} must be symmetric within a set; got {both}")


def _pad(rows: np.ndarray, count: int) -> np.ndarray:
    """Rows in float64; the last row is repeated up to `count`."""
    repeated = np.repeat(rows[-1:], count - len(rows), axis=0)
    return np.concatenate([rows, repeated]).astype(np.float64)
