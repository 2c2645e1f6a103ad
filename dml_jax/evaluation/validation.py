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
BLOCK_ELEMENTS = 1 << 25  # read at once: a memory-mapped array is never in memory as a whole


def load(path: str | Path, *, name: str = "file") -> np.ndarray:
    """Opens a `.npy` file memory-mapped and read-only; `name` stands for it in error messages.

    Pickled Python objects are never loaded.
    """
    path = Path(path).expanduser()
    remedy = "write one array of numbers or strings with numpy.save (text: array.astype(str))"
    with reading(path, remedy, option=name), np.errstate(over="raise"):
        return np.lib.format.open_memmap(path, "r")


def text_lines(path: Path, *, name: str = "file") -> list[str]:
    """The lines of a text file (see `text_of`); empty ones, too."""
    with reading(path, "write it as text in UTF-8", option=name):
        text = text_of(path.read_bytes()).replace("\r\n", "\n")
        return text.removesuffix("\n").split("\n")


def read_lines(path: Path, *, name: str = "file") -> np.ndarray:
    """Class names from a UTF-8 text file with one per line: strings [N], see `class_names`."""
    lines = [normalised(line) for line in text_lines(path, name=name)]
    for number, line in enumerate(lines, start=1):
        if not 0 < len(line) <= LONGEST_NAME:  # NumPy pads every string to the longest
            problem = f"line {number} has {len(line)} characters"
            raise DataError(f"{name}={path}: {problem}; give one class name per line")
    return np.array(lines)


def embeddings(values: ArrayLike, *, name: str = "embeddings") -> np.ndarray:
    """Validates embeddings, [N, D] finite real numbers; `name` stands for them in error messages.

    The result is a NumPy array; one that is given, also memory-mapped, is not copied.
    """
    array = as_numpy(name, values)
    if not (is_real(array.dtype) or array.dtype == bool) or array.ndim != 2 or 0 in array.shape:
        raise DataError(
            f"{name}: holds {array.dtype} of shape {list(array.shape)}; give real numbers [N, D]"
        )
    if not np.issubdtype(array.dtype, np.integer) and array.dtype != bool:
        parts = slices(*array.shape)
        bad = np.concatenate([~np.isfinite(array[part]).all(axis=1) for part in parts])
        if bad.any():
            raise DataError(
                f"{name}: {bad.sum()} of {len(array)} rows hold NaN or infinity, first row "
                f"{bad.argmax()}; remove or correct them"
            )
    return array


def choice(name: str, value: Any, known: Iterable[str], *, otherwise: str = "") -> None:
    """Raises ConfigError unless an option is a known word; `otherwise` says what else it may be."""
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        raise ConfigError(f"{name}={value!r}: must be one of {', '.join(names)}{otherwise}")


def metric(value: Any, *known: str) -> None:
    """Raises ConfigError unless a distance is a function or has one of the names."""
    if not callable(value):
        choice("metric", value, known, otherwise=", or a function of two blocks of rows")


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """A whole number from `least` to `most`; raises DataError for anything else."""
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
    """Validates one class per row, [N] integers or strings: int64 [N], or uint64, or strings.

    `name` and `of` stand for the labels and the rows in error messages.
    """
    array = as_numpy(name, as_labels(name, values))
    if array.dtype.kind not in "iuU" or array.shape != (rows,):
        raise DataError(
            f"{name}: holds {array.dtype} of shape {list(array.shape)} for {rows} rows of {of}; "
            "give one class, an integer or a string, per row"
        )
    exceeds_int64 = array.dtype == np.uint64 and array.max(initial=0) > np.iinfo(np.int64).max
    return array if array.dtype.kind == "U" or exceeds_int64 else array.astype(np.int64)


def check_same_kind(
    labels: np.ndarray, gallery_labels: np.ndarray, *, name: str = "labels"
) -> None:
    """Raises DataError if one side has strings and the other numbers, which never match."""
    if (labels.dtype.kind == "U") != (gallery_labels.dtype.kind == "U"):
        kinds = f"{labels.dtype} for the queries and {gallery_labels.dtype} for the gallery"
        raise DataError(f"{name}: are {kinds}; give both as strings or both as integers")


def numbered(
    labels: np.ndarray, gallery_labels: np.ndarray, *, name: str = "labels"
) -> tuple[np.ndarray, np.ndarray]:
    """Validated labels of both sides as int64, equal where the labels are, in their order.

    Raises DataError as `check_same_kind`.
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


def searched_pair(queries: ArrayLike, gallery: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Validates embeddings of queries and of a gallery; one array if they are the same object."""
    left = embeddings(queries, name="queries")
    right = left if gallery is queries else embeddings(gallery, name="gallery")
    if left.shape[1] != right.shape[1]:
        problem = f"has {right.shape[1]} columns and the queries {left.shape[1]}"
        raise DataError(f"gallery: {problem}; both must come from one model")
    return left, right


def candidates(gallery: np.ndarray, *, exclude_self: bool) -> int:
    """The number of rows that each query searches; DataError if there is none."""
    if (count := len(gallery) - exclude_self) < 1:
        raise DataError("gallery: a single row or image has nothing to search; give at least two")
    return count


def shared_rows(queries: np.ndarray, gallery: np.ndarray) -> int:
    """Number of queries [Q, D] that equal a gallery row [G, D]; each row counts for one query."""
    factors = np.random.default_rng(0).integers(2**63, size=queries.shape[1], dtype=np.uint64)

    def hashes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distinct hashes of the rows and their numbers; sums wrap around, -0.0 becomes 0.0."""
        blocks = (np.ascontiguousarray(x + 0.0, np.float64) for x in row_blocks(rows))
        bits = (block.view(np.uint64) for block in blocks)
        parts = [((each ^ (each >> np.uint64(32))) * factors).sum(axis=1) for each in bits]
        return np.unique(np.concatenate(parts), return_counts=True)

    (found, counts), (others, other_counts) = hashes(queries), hashes(gallery)
    _, mine, theirs = np.intersect1d(found, others, assume_unique=True, return_indices=True)
    return int(np.minimum(counts[mine], other_counts[theirs]).sum())


def equal_rows(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two matrices have equal values; stops at the first block that differs."""
    same_shape = a.shape == b.shape
    return a is b or (same_shape and all(map(np.array_equal, row_blocks(a), row_blocks(b))))


def recall_ks(ks: int | Sequence[int]) -> tuple[int, ...]:
    """The K of Recall@K as a tuple; a single integer becomes a tuple of one."""
    return tuple(whole("ks", k, 1) for k in np.atleast_1d(ks).tolist())


def is_real(dtype: np.dtype) -> bool:
    """Whether a dtype holds integers or floats, including extended types such as bfloat16."""
    return bool(np.issubdtype(dtype, np.integer) or jax.dtypes.issubdtype(dtype, np.floating))


def compute_dtype(array: np.ndarray) -> np.dtype:
    """float64 for float64 input if JAX allows it (`jax_enable_x64`), else float32."""
    use_float64 = array.dtype == np.float64 and jax.config.read("jax_enable_x64")
    return np.dtype(np.float64 if use_float64 else np.float32)


def slices(rows: int, elements: int) -> Iterator[slice]:
    """Consecutive slices of rows that have `elements` each, at most BLOCK_ELEMENTS in a slice."""
    step = max(1, BLOCK_ELEMENTS // elements)
    return (slice(start, min(rows, start + step)) for start in range(0, rows, step))


def row_blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Consecutive blocks of rows, float32 if the rows are, else float64."""
    dtype = np.float32 if rows.dtype == np.float32 else np.float64
    return (np.asarray(rows[part], dtype) for part in slices(len(rows), 8 * rows.shape[1]))


class Classes(NamedTuple):
    """Any number of classes for each of N rows."""

    values: np.ndarray  # integers or strings [M], the classes of row 0, then of row 1, and so on
    start: np.ndarray  # int64 [N + 1], where each row begins in `values`


def classes(
    values: Labels | Classes | None, rows: int, *, name: str, of: str
) -> np.ndarray | Classes:
    """One class per row (see `labels`), or several: N lists, or bool (or 0 and 1) [N, C > 1]; an
    entry that is not a list is the only class of its row.

    `name` and `of` stand for the labels and the rows in error messages.
    """
    if isinstance(values, Classes):
        return values
    if isinstance(values, (np.ndarray, jax.Array)) and values.ndim == 2 and values.shape[1] != 1:
        array = np.asarray(values)
        if array.dtype != bool and not (is_real(array.dtype) and np.isin(array, (0, 1)).all()):
            holds = f"{name}: {array.dtype} {list(array.shape)}"
            raise DataError(f"{holds}; several classes per row need bool, or 0 and 1")
        counts, found = np.count_nonzero(array, axis=1), np.nonzero(array)[1]
    elif isinstance(values, Sequence) and any(isinstance(x, list | tuple | set) for x in values):
        lists = [list(x) if isinstance(x, list | tuple | set) else [x] for x in values]
        flat = [item for value in lists for item in value]
        counts = np.array([len(value) for value in lists], np.int64)
        found = labels(flat, len(flat), name=name) if flat else np.zeros(0, np.int64)
    else:
        return labels(values, rows, name=name, of=of)  # type: ignore[arg-type]  # None: no labels
    if len(counts) != rows:
        problem = f"{name}: has {len(counts)} entries for {rows} rows of {of}"
        raise DataError(f"{problem}; give one per row")
    return Classes(found, np.concatenate([[0], np.cumsum(counts)]))


def targets(
    labels: Labels,
    gallery_labels: Labels | None,
    queries: int,
    gallery: int,
    *,
    alone: bool,
    relation: Relation | None = None,
) -> tuple[np.ndarray, np.ndarray, Judge | None]:
    """The classes [Q] and [G] that make a gallery row relevant, or zeros and a function that
    decides; if the queries are `alone`, they are their own gallery."""
    left = right = classes(labels, queries, name="labels", of="queries")
    if not alone:
        right = classes(gallery_labels, gallery, name="gallery_labels", of="gallery")
    if relation is not None or isinstance(left, Classes) or isinstance(right, Classes):
        no_class = np.zeros(queries, np.int64), np.zeros(gallery, np.int64)
        if relation is None:
            return *no_class, with_a_common_class(left, right)
        if isinstance(left, Classes) or isinstance(right, Classes):
            raise DataError("relation: needs one label per row; join several to one text")
        return *no_class, graded(relation, left, right)
    return *numbered(left, right), None


def common_groups(
    groups: ArrayLike | None, gallery_groups: Any, queries: int, gallery: int, *, alone: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """Groups of the queries and of the gallery, numbered from 0: int [Q] and int [G], if given."""
    if groups is None:
        return None
    left = right = labels(groups, queries, name="groups", of="queries")
    if not alone:
        right = labels(gallery_groups, gallery, name="gallery_groups", of="gallery")
    return numbered(left, right, name="groups")


def graded(relation: Relation, labels: np.ndarray, gallery: np.ndarray) -> Judge:
    """Maps a query to the grades of the gallery rows by a relation of labels [Q] and [G]."""
    (kinds, numbers), (others, among) = (
        np.unique(side, return_inverse=True) for side in (labels, gallery)
    )

    @functools.lru_cache(256)
    def grades(kind: int) -> np.ndarray:
        found = np.asarray(relation(kinds[kind : kind + 1], others), np.float64)
        if found.shape != (1, len(others)) or np.any(found < 0) or np.isinf(found).any():
            rule = f"give [1, {len(others)}], grades from 0 on, or NaN"
            raise DataError(
                f"relation: returns {list(found.shape)} for {str(kinds[kind])!r} and the "
                f"{len(others)} labels of the gallery; {rule}"
            )
        return found[0]

    return lambda query: grades(int(numbers[query]))[among]


def with_a_common_class(labels: np.ndarray | Classes, gallery: np.ndarray | Classes) -> Judge:
    """Maps a query to the gallery rows that share a class with it."""
    sides = [
        side if isinstance(side, Classes) else Classes(side, np.arange(len(side) + 1))
        for side in (labels, gallery)
    ]
    values = [side.values for side in sides]
    if not all(map(len, values)):  # nothing is relevant, whatever the types
        values = [np.arange(len(each)) for each in values]
    most = sum(map(len, values))  # numbers of classes are below this
    wanted, held = (
        sparse.csr_array((np.ones_like(numbers, np.int32), numbers, start), (len(start) - 1, most))
        for numbers, (_, start) in zip(numbered(*values), sides, strict=True)
    )
    return lambda query: held @ wanted[[query]].toarray()[0] > 0
