"""What a caller hands in, checked before any long work: one sentence says what is wrong and how to mend it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dml_jax.errors import DataError

ROWS_AT_ONCE = 1 << 25  # numbers looked at in one go, so that a memory-mapped array is never read whole


def load(path: str | Path, *, name: str = "file") -> np.ndarray:
    """Opens a `.npy` file memory-mapped and read-only; pickled objects are never loaded.

    Raises:
      DataError: no such file, not a `.npy` file, an array of objects, a file cut short or damaged.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise DataError(f"{name}={path}: there is no such file")
    with path.open("rb") as file:
        start = file.read(6)
    if start != np.lib.format.MAGIC_PREFIX:
        raise DataError(f"{name}={path}: is not a .npy file; write one with numpy.save")
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError, SyntaxError) as problem:
        reason = str(problem)
    if "bject" in reason:
        raise DataError(f"{name}={path}: holds Python objects, which are never loaded; save an array of numbers")
    if "empty file" in reason:
        return np.load(path, allow_pickle=False)
    raise DataError(f"{name}={path}: is cut short or damaged ({reason}); write or copy it again")


def embeddings(values: Any, *, name: str = "embeddings") -> np.ndarray:
    """Checks a matrix of embeddings and leaves it where it is.

    Args:
      values: [N, D] real numbers, NumPy (memory-mapped too) or JAX.
      name: what messages call it.

    Returns:
      The same numbers as a NumPy array, not copied where they already are one.

    Raises:
      DataError: not a matrix, no rows or columns, not real numbers, or rows that are not finite.
    """
    try:
        array = np.asarray(values)
    except ValueError:
        raise DataError(f"{name}: has rows of different lengths; give [N, D], one row an embedding") from None
    if array.dtype == object:
        raise DataError(f"{name}: holds Python objects; give an array of real numbers [N, D]")
    if array.ndim != 2:
        raise DataError(f"{name}: has shape {list(array.shape)}; give [N, D], one row an embedding")
    if 0 in array.shape:
        raise DataError(f"{name}: is empty, shape {list(array.shape)}; give at least one row and one column")
    if not (real(array.dtype) or array.dtype == bool):
        raise DataError(f"{name}: holds {array.dtype}; give real numbers")
    if not np.issubdtype(array.dtype, np.integer) and array.dtype != bool:
        step = max(1, ROWS_AT_ONCE // array.shape[1])
        bad = np.concatenate([~np.isfinite(array[i : i + step]).all(axis=1) for i in range(0, len(array), step)])
        if bad.any():
            count, first = int(bad.sum()), int(np.argmax(bad))
            raise DataError(f"{name}: {count} of {len(array)} rows hold NaN or infinity, first row {first}; mend them")
    return array


def blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """The rows, some thousands at a time; other numbers than float32 in float64."""
    step = max(1, ROWS_AT_ONCE // (8 * rows.shape[1]))
    dtype = np.float32 if rows.dtype == np.float32 else np.float64
    for start in range(0, len(rows), step):
        yield np.asarray(rows[start : start + step], dtype)


def real(dtype: np.dtype) -> bool:
    """Whether a dtype holds real numbers; bfloat16 and its kin count."""
    return bool(np.issubdtype(dtype, np.integer) or jax.dtypes.issubdtype(dtype, np.floating))


def labels(values: Any, rows: int, *, name: str = "labels", of: str = "embeddings") -> np.ndarray:
    """Checks the class of every row.

    Args:
      values: [N] integers, any values.
      rows: N.
      name: what messages call them.
      of: what the rows are called.

    Returns:
      int64 [N] (uint64 where that is what came in).

    Raises:
      DataError: not a vector, not integers, or of another length.
    """
    array = np.asarray(values)
    if array.dtype == object or not np.issubdtype(array.dtype, np.integer):
        raise DataError(f"{name}: holds {array.dtype}; give integers, one class number a row")
    if array.ndim != 1:
        raise DataError(f"{name}: has shape {list(array.shape)}; give [N], one class number a row")
    if len(array) != rows:
        raise DataError(f"{name}: {len(array)} for {rows} rows of {of}; give one for each row")
    return array if array.dtype == np.uint64 else array.astype(np.int64)


def same_width(queries: np.ndarray, gallery: np.ndarray) -> None:
    """Raises DataError unless both have as many columns."""
    if queries.shape[1] != gallery.shape[1]:
        raise DataError(
            f"gallery: has {gallery.shape[1]} columns and the queries {queries.shape[1]}; both must come from one model"
        )


def precision() -> type:
    """float64 where JAX computes in it (`jax_enable_x64`), else float32."""
    return np.float64 if jax.config.read("jax_enable_x64") else np.float32


def working(array: np.ndarray) -> np.dtype:
    """The dtype to compute in: float64 for float64 input where JAX allows it, else float32."""
    return np.dtype(precision() if array.dtype == np.float64 else np.float32)
