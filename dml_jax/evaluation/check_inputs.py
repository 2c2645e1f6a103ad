"""Validation of arrays and `.npy` files before any long computation, and reading them in blocks."""

import operator
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from dml_jax.errors import DataError
from dml_jax.files import reading

ArrayLike = jax.Array | np.ndarray

LONGEST_NAME = 1000  # characters per class name
NEARLY_ALL = 0.9  # fraction of the queries that find duplicates when they were not removed from the gallery

BLOCK_ELEMENTS = 1 << 25  # read at once, so that a memory-mapped array is never in memory as a whole


def load(path: str | Path, *, name: str = "file") -> np.ndarray:
    """Opens a `.npy` file memory-mapped and read-only; `name` is what error messages call it.

    Pickled Python objects are never loaded.
    """
    path = Path(path).expanduser()
    with reading(f"{name}={path}"), path.open("rb") as file, np.errstate(over="raise"):
        # `numpy.load` would take a file without this prefix for a pickle or an archive.
        if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
            raise DataError("is not a .npy file; write one with numpy.save")
        file.seek(0)
        first_version = np.lib.format.read_magic(file) == (1, 0)
        read_header = np.lib.format.read_array_header_1_0 if first_version else np.lib.format.read_array_header_2_0
        # An empty array cannot be memory-mapped.
        array: np.ndarray = np.load(path, None if 0 in read_header(file)[0] else "r", allow_pickle=False)
        return array


def text_lines(path: Path, *, name: str = "file") -> list[str]:
    """The lines of a UTF-8 text file; empty ones, too."""
    with reading(f"{name}={path}"):
        return path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")


def read_lines(path: Path, *, name: str = "file") -> np.ndarray:
    """Class names from a UTF-8 text file with one per line: strings [N], stripped of surrounding spaces."""
    lines = [line.strip() for line in text_lines(path, name=name)]
    for number, line in enumerate(lines, start=1):
        if not 0 < len(line) <= LONGEST_NAME:  # NumPy pads every string to the longest
            raise DataError(f"{name}={path}: line {number} has {len(line)} characters; give one class name per line")
    return np.array(lines)


def embeddings(values: ArrayLike, *, name: str = "embeddings") -> np.ndarray:
    """Validates embeddings, [N, D] finite real numbers; `name` is what error messages call them.

    The result is a NumPy array; one that is given, also memory-mapped, is not copied.
    """
    array = np.asarray(values)
    if not (is_real(array.dtype) or array.dtype == bool) or array.ndim != 2 or 0 in array.shape:
        raise DataError(f"{name}: holds {array.dtype} of shape {list(array.shape)}; give real numbers [N, D]")
    if not np.issubdtype(array.dtype, np.integer) and array.dtype != bool:
        step = max(1, BLOCK_ELEMENTS // array.shape[1])
        bad = np.concatenate([~np.isfinite(array[i : i + step]).all(axis=1) for i in range(0, len(array), step)])
        if bad.any():
            count, first = int(bad.sum()), int(np.argmax(bad))
            raise DataError(
                f"{name}: {count} of {len(array)} rows hold NaN or infinity, first row {first}; remove or correct them"
            )
    return array


def prefixes(values: Sequence[int], width: int) -> tuple[int, ...]:
    """The distinct lengths of the prefixes of embeddings with `width` columns; raises DataError for other lengths."""
    lengths = tuple(dict.fromkeys(map(operator.index, values)))
    for length in lengths:
        if not 0 < length <= width:
            raise DataError(f"prefixes: {length}, but the embeddings have {width} columns; give 1..{width}")
    return lengths


def labels(values: ArrayLike, rows: int, *, name: str = "labels", of: str = "embeddings") -> np.ndarray:
    """Validates one class label per row, [N] integers or strings: int64 [N], or uint64 or strings if the input is.

    `name` and `of` are what error messages call the labels and the rows.
    """
    array = np.asarray(values)
    if array.dtype == object and all(isinstance(value, str) for value in array.flat):  # pandas' strings
        array = array.astype(str)
    if array.dtype.kind not in "iuU" or array.shape != (rows,):
        raise DataError(
            f"{name}: holds {array.dtype} of shape {list(array.shape)} for {rows} rows of {of}; give one class, an "
            "integer or a string, per row"
        )
    return array if array.dtype == np.uint64 or array.dtype.kind == "U" else array.astype(np.int64)


def check_same_kind(labels: np.ndarray, gallery_labels: np.ndarray, *, name: str = "labels") -> None:
    """Raises DataError if one side's labels are strings and the other's numbers, which never match."""
    if (labels.dtype.kind == "U") != (gallery_labels.dtype.kind == "U"):
        raise DataError(
            f"{name}: are {labels.dtype} for the queries and {gallery_labels.dtype} for the gallery; give both as "
            "strings or both as integers"
        )


def check_same_width(queries: np.ndarray, gallery: np.ndarray) -> None:
    """Raises DataError unless queries and gallery have equally many columns."""
    if queries.shape[1] != gallery.shape[1]:
        raise DataError(
            f"gallery: has {gallery.shape[1]} columns and the queries {queries.shape[1]}; both must come from one model"
        )


def equal_rows(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two matrices are the same array or have equal values; stops at the first block that differs."""
    if a is b:
        return True
    return a.shape == b.shape and all(map(np.array_equal, row_blocks(a), row_blocks(b)))


def duplicates_warning(queries: np.ndarray, gallery: np.ndarray) -> str:
    """A warning if nearly every query has an exact duplicate in the gallery; otherwise an empty string."""
    if not 1 < len(queries) <= len(gallery):
        return ""
    of_queries, of_gallery = (
        [hash(row.tobytes()) for block in row_blocks(rows) for row in block.astype(np.float64)]
        for rows in (queries, gallery)
    )
    found = int(np.isin(of_queries, of_gallery).sum())
    if found < NEARLY_ALL * len(queries):
        return ""
    return (
        f"gallery: {found:,} of {len(queries):,} queries have an exact duplicate in the gallery and find themselves; "
        "remove the queries from the gallery, or give each query's own row as exclude"
    )


def excluded_rows(values: ArrayLike, labels: np.ndarray, gallery_labels: np.ndarray, *, name: str) -> np.ndarray:
    """Validates the gallery row, -1 for none, that each query excludes, which must be of its class: int64 [Q]."""
    rows = np.asarray(values).astype(np.int64)
    inside = (rows >= 0) & (rows < len(gallery_labels))
    bad = (rows != -1) & ~(inside & (gallery_labels[np.where(inside, rows, 0)] == labels))
    if bad.any():
        raise DataError(
            f"{name}: {rows[bad][0]} for query {int(np.argmax(bad))}; must be a gallery row of the query's class, or "
            "-1 for none"
        )
    return rows


def recall_ks(ks: int | Sequence[int]) -> tuple[int, ...]:
    """The K of Recall@K as a tuple; a single integer becomes a tuple of one."""
    return tuple(map(operator.index, np.atleast_1d(ks)))


def is_real(dtype: np.dtype) -> bool:
    """Whether a dtype holds integers or floating-point numbers, including extended types such as bfloat16."""
    return bool(np.issubdtype(dtype, np.integer) or jax.dtypes.issubdtype(dtype, np.floating))


def compute_dtype(array: np.ndarray) -> np.dtype:
    """The dtype to compute in: float64 for float64 input if JAX allows it (`jax_enable_x64`), else float32."""
    use_float64 = array.dtype == np.float64 and jax.config.read("jax_enable_x64")
    return np.dtype(np.float64 if use_float64 else np.float32)


def row_blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Consecutive blocks of rows, float32 if the rows are, else float64."""
    step = max(1, BLOCK_ELEMENTS // (8 * rows.shape[1]))
    dtype = np.float32 if rows.dtype == np.float32 else np.float64
    for start in range(0, len(rows), step):
        yield np.asarray(rows[start : start + step], dtype)
