"""Validates arrays and `.npy` files before long computations; the rows relevant to a query."""

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from scipy import sparse

from dml_jax.class_names import normalised
from dml_jax.errors import ConfigError, DataError
from dml_jax.files import reading, text_of
from dml_jax.numerics import as_labels, as_numpy

ArrayLike = jax.Array | np.ndarray
Labels: TypeAlias = jax.Array | np.ndarray | Sequence
Judge: TypeAlias = Callable[[int], np.ndarray]  # query -> bool or grades [G], see `Task.judge`
# Labels [n] and [m] -> grades [n, m], see `metrics.retrieval`.
Relation: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]

LONGEST_NAME = 1000  # characters per class name
BLOCK_ELEMENTS = 1 << 25  # read at once, so that a memory-mapped array never fills the memory


def load(path: str | Path, *, name: str = "file") -> np.ndarray:
    """Opens a `.npy` file memory-mapped and read-only; error messages call it `name`.

    Pickled Python objects are never loaded.
    """
    path = Path(path).expanduser()
    remedy = "write one array of numbers or strings with numpy.save (text: array.astype(str))"
    with reading(path, remedy, option=name), np.errstate(over="raise"):
        return np.lib.format.open_memmap(path, "r")


def text_lines(path: Path, *, name: str = "file") -> list[str]:
    """The lines of a text file (see `text_of`), including empty ones."""
    with reading(path, "write it as text in UTF-8", option=name):
        text = text_of(path.read_bytes()).replace("\r\n", "\n")
        return text.removesuffix("\n").split("\n")


def read_lines(path: Path, *, name: str = "file") -> np.ndarray:
    """Reads class names from a UTF-8 text file, one per line: strings [N], see `class_names`."""
    lines = [normalised(line) for line in text_lines(path, name=name)]
    for number, line in enumerate(lines, start=1):
        if not 0 < len(line) <= LONGEST_NAME:  # NumPy pads every string to the longest
            problem = f"line {number} has {len(line)} characters"
            raise DataError(f"{name}={path}: {problem}; give one class name per line")
    return np.array(lines)


def embeddings(values: ArrayLike, *, name: str = "embeddings") -> np.ndarray:
    """Validates embeddings, [N, D] finite real numbers; error messages call them `name`.

    Returns a NumPy array; a NumPy array, also memory-mapped, is not copied.
    """
    array = as_numpy(name, values)
    if not (is_real(array.dtype) or array.dtype == bool) or array.ndim != 2 or 0 in array.shape:
        rule = "must be real numbers [N, D]"
        raise DataError(f"{name} {rule}; got {array.dtype} {list(array.shape)}")
    if not np.issubdtype(array.dtype, np.integer) and array.dtype != bool:
        parts = slices(*array.shape)
        bad = np.concatenate([~np.isfinite(array[part]).all(axis=1) for part in parts])
        if bad.any():
            rows = f"{bad.sum()} of {len(array)} rows contain NaN or infinity"
            raise DataError(f"{name}: {rows}, first row {bad.argmax()}; remove or correct them")
    return array


def check_choice(name: str, value: Any, choices: Iterable[str], *, otherwise: str = "") -> None:
    """Raises ConfigError unless an option is one of the choices; `otherwise` names other types."""
    names = tuple(choices)
    if not isinstance(value, str) or value not in names:
        raise ConfigError(f"{name}={value!r}: must be one of {', '.join(names)}{otherwise}")


def check_metric(value: Any, *names: str) -> None:
    """Raises ConfigError unless a distance is a function or has one of the names."""
    if not callable(value):
        check_choice("metric", value, names, otherwise=", or a function of two blocks of rows")


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Returns a whole number from `least` to `most`; raises DataError for anything else."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        rule = f"of at least {least}" if most is None else f"in {least}..{most}"
        raise DataError(f"{name}={value!r}: must be a whole number {rule}")
    return number


def labels(
    values: Labels, rows: int, *, name: str = "labels", of: str = "embeddings"
) -> np.ndarray:
    """Validates one class per row, [N] integers or strings, as int64, uint64 or strings.

    Error messages call the labels `name` and the rows `of`.
    """
    array = as_numpy(name, as_labels(name, values))
    if array.dtype.kind not in "iuU" or array.shape != (rows,):
        rule = f"must be one integer or string for each of the {rows} rows of {of}"
        raise DataError(f"{name} {rule}; got {array.dtype} {list(array.shape)}")
    exceeds_int64 = array.dtype == np.uint64 and array.max(initial=0) > np.iinfo(np.int64).max
    return array if array.dtype.kind == "U" or exceeds_int64 else array.astype(np.int64)


def check_same_kind(
    labels: np.ndarray, gallery_labels: np.ndarray, *, name: str = "labels"
) -> None:
    """Raises DataError if one side has strings and the other numbers, which never match."""
    if (labels.dtype.kind == "U") != (gallery_labels.dtype.kind == "U"):
        types = f"{labels.dtype} for the queries and {gallery_labels.dtype} for the gallery"
        raise DataError(f"{name} must be strings on both sides or integers on both; got {types}")


def number_labels(
    labels: np.ndarray, gallery_labels: np.ndarray, *, name: str = "labels"
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers validated labels of both sides, int64, equal where the labels are, in their order.

    Raises DataError if one side has strings and the other numbers.
    """
    if labels is gallery_labels:
        numbers = np.unique(labels, return_inverse=True)[1].astype(np.int64)
        return numbers, numbers
    check_same_kind(labels, gallery_labels, name=name)
    both = [labels, gallery_labels]
    if labels.dtype.kind != gallery_labels.dtype.kind:
        both = [side.astype(object) for side in both]  # int64 and uint64 would become float64
    numbers = np.unique(np.concatenate(both), return_inverse=True)[1].astype(np.int64)
    return numbers[: len(labels)], numbers[len(labels) :]


def check_pair(queries: ArrayLike, gallery: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Validates queries and gallery; returns the same array twice if they are the same object."""
    left = embeddings(queries, name="queries")
    right = left if gallery is queries else embeddings(gallery, name="gallery")
    if left.shape[1] != right.shape[1]:
        columns = f"has {right.shape[1]} columns, but the queries have {left.shape[1]}"
        raise DataError(f"gallery {columns}; embed both with the same model")
    return left, right


def count_candidates(gallery: np.ndarray, *, exclude_self: bool) -> int:
    """The number of rows that each query searches; DataError if it is 0."""
    if (count := len(gallery) - exclude_self) < 1:
        raise DataError("gallery: a single row or image has no neighbours; provide at least two")
    return count


def shared_rows(queries: np.ndarray, gallery: np.ndarray) -> int:
    """Number of queries [Q, D] that equal a gallery row [G, D]; each row matches one query."""
    factors = np.random.default_rng(0).integers(2**63, size=queries.shape[1], dtype=np.uint64)

    def hashes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distinct hashes of the rows and their counts; sums wrap around, -0.0 becomes 0.0."""
        blocks = (np.ascontiguousarray(x + 0.0, np.float64) for x in row_blocks(rows))
        bits = (block.view(np.uint64) for block in blocks)
        parts = [((word ^ (word >> np.uint64(32))) * factors).sum(axis=1) for word in bits]
        return np.unique(np.concatenate(parts), return_counts=True)

    (left, left_counts), (right, right_counts) = hashes(queries), hashes(gallery)
    _, i, j = np.intersect1d(left, right, assume_unique=True, return_indices=True)
    return int(np.minimum(left_counts[i], right_counts[j]).sum())


def equal_rows(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two matrices have equal values; stops at the first block that differs."""
    same_shape = a.shape == b.shape
    return a is b or (same_shape and all(map(np.array_equal, row_blocks(a), row_blocks(b))))


def recall_ks(ks: int | Sequence[int]) -> tuple[int, ...]:
    """The K of Recall@K as a tuple; a single integer becomes a tuple of one."""
    return tuple(check_whole("ks", k, 1) for k in np.atleast_1d(ks).tolist())


def is_real(dtype: np.dtype) -> bool:
    """Whether a dtype is integer or float, including extended types such as bfloat16."""
    return bool(np.issubdtype(dtype, np.integer) or jax.dtypes.issubdtype(dtype, np.floating))


def compute_dtype(array: np.ndarray) -> np.dtype:
    """float64 for float64 input if JAX allows it (`jax_enable_x64`), else float32."""
    use_float64 = array.dtype == np.float64 and jax.config.read("jax_enable_x64")
    return np.dtype(np.float64 if use_float64 else np.float32)


def slices(rows: int, elements: int) -> Iterator[slice]:
    """Consecutive slices of rows with `elements` each, at most BLOCK_ELEMENTS per slice."""
    step = max(1, BLOCK_ELEMENTS // elements)
    return (slice(start, min(rows, start + step)) for start in range(0, rows, step))


def row_blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Consecutive blocks of rows as float32 if the rows are float32, else as float64."""
    dtype = np.float32 if rows.dtype == np.float32 else np.float64
    return (np.asarray(rows[part], dtype) for part in slices(len(rows), 8 * rows.shape[1]))


class Classes(NamedTuple):
    """Any number of classes for each of N rows."""

    values: np.ndarray  # integers or strings [M], the classes of row 0, then of row 1, and so on
    start: np.ndarray  # int64 [N + 1], the position in `values` at which each row begins


def classes(
    values: Labels | Classes | None, rows: int, *, name: str, of: str
) -> np.ndarray | Classes:
    """Validates one class per row (see `labels`) or several: N entries, of which lists contain
    several classes, or bool (or 0 and 1) [N, C > 1].

    Error messages call the labels `name` and the rows `of`.
    """
    if isinstance(values, Classes):
        return values
    if isinstance(values, (np.ndarray, jax.Array)) and values.ndim == 2 and values.shape[1] != 1:
        array = np.asarray(values)
        if array.dtype != bool and not (is_real(array.dtype) and np.isin(array, (0, 1)).all()):
            rule = "with several classes per row must be bool, or 0 and 1"
            raise DataError(f"{name} {rule}; got {array.dtype} {list(array.shape)}")
        counts, flat = np.count_nonzero(array, axis=1), np.nonzero(array)[1]
    elif isinstance(values, Sequence) and any(isinstance(x, list | tuple | set) for x in values):
        lists = [list(x) if isinstance(x, list | tuple | set) else [x] for x in values]
        items = [item for value in lists for item in value]
        counts = np.array([len(value) for value in lists], np.int64)
        flat = labels(items, len(items), name=name) if items else np.zeros(0, np.int64)
    else:
        return labels(values, rows, name=name, of=of)  # type: ignore[arg-type]  # None: no labels
    if len(counts) != rows:
        rule = f"must have one entry for each of the {rows} rows of {of}"
        raise DataError(f"{name} {rule}; got {len(counts)}")
    return Classes(flat, np.concatenate([[0], np.cumsum(counts)]))


def find_relevance(
    labels: Labels,
    gallery_labels: Labels | None,
    queries: int,
    gallery: int,
    *,
    alone: bool,
    relation: Relation | None = None,
) -> tuple[np.ndarray, np.ndarray, Judge | None]:
    """The classes [Q] and [G] that a query shares with relevant gallery rows, or zeros and a
    function that finds these rows; if the queries are `alone`, they are their own gallery."""
    left = right = classes(labels, queries, name="labels", of="queries")
    if not alone:
        right = classes(gallery_labels, gallery, name="gallery_labels", of="gallery")
    if relation is not None or isinstance(left, Classes) or isinstance(right, Classes):
        no_class = np.zeros(queries, np.int64), np.zeros(gallery, np.int64)
        if relation is None:
            return *no_class, judge_by_class(left, right)
        if isinstance(left, Classes) or isinstance(right, Classes):
            raise DataError("relation needs one label per row; join several into one text")
        return *no_class, judge_by_relation(relation, left, right)
    return *number_labels(left, right), None


def common_groups(
    groups: ArrayLike | None, gallery_groups: Any, queries: int, gallery: int, *, alone: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """Numbers the groups of queries and gallery from 0: int [Q] and int [G], or None."""
    if groups is None:
        return None
    left = right = labels(groups, queries, name="groups", of="queries")
    if not alone:
        right = labels(gallery_groups, gallery, name="gallery_groups", of="gallery")
    return number_labels(left, right, name="groups")


def judge_by_relation(relation: Relation, labels: np.ndarray, gallery: np.ndarray) -> Judge:
    """Maps a query to the grades of the gallery rows by a relation of labels [Q] and [G]."""
    (left, query_numbers), (right, gallery_numbers) = (
        np.unique(side, return_inverse=True) for side in (labels, gallery)
    )

    @functools.lru_cache(256)
    def grade(i: int) -> np.ndarray:
        grades = np.asarray(relation(left[i : i + 1], right), np.float64)
        bad = grades[(grades < 0) | np.isinf(grades)]
        if grades.shape != (1, len(right)) or len(bad):
            rule = f"must return grades [1, {len(right)}], each NaN or at least 0"
            value = f"a grade of {bad[0]:g}" if len(bad) else f"shape {list(grades.shape)}"
            raise DataError(f"relation {rule}; got {value} for the label {str(left[i])!r}")
        return grades[0]

    return lambda query: grade(int(query_numbers[query]))[gallery_numbers]


def judge_by_class(labels: np.ndarray | Classes, gallery: np.ndarray | Classes) -> Judge:
    """Maps a query to the gallery rows that share one of its classes, bool [G]."""
    sides = [
        side if isinstance(side, Classes) else Classes(side, np.arange(len(side) + 1))
        for side in (labels, gallery)
    ]
    values = [side.values for side in sides]
    if not all(map(len, values)):  # no row is relevant, and the types may differ
        values = [np.arange(len(side)) for side in values]
    width = sum(map(len, values))  # upper bound of the class numbers
    query_classes, gallery_classes = (
        sparse.csr_array((np.ones_like(numbers, np.int32), numbers, start), (len(start) - 1, width))
        for numbers, (_, start) in zip(number_labels(*values), sides, strict=True)
    )
    return lambda query: gallery_classes @ query_classes[[query]].toarray()[0] > 0
