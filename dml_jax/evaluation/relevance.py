"""Relevant and omitted gallery rows beyond one class per row: several classes, lists, functions and groups."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import jax
import numpy as np

from dml_jax.errors import DataError
from dml_jax.evaluation import check_inputs
from dml_jax.evaluation.check_inputs import ArrayLike

Labels: TypeAlias = jax.Array | np.ndarray | Sequence
Rows: TypeAlias = jax.Array | np.ndarray | Sequence | Callable[[int], Any]
Judge: TypeAlias = Callable[[int], np.ndarray]  # maps a query to bool [G], a value per gallery row


class Classes(NamedTuple):
    """Any number of classes for each of N rows."""

    values: np.ndarray  # integers or strings [M], the classes of row 0, then those of row 1, and so on
    start: np.ndarray  # int64 [N + 1], where each row begins in `values`
    columns: int | None = None  # width of the array they came from, None if they came from lists


def classes(values: Labels | Classes | None, rows: int, *, name: str, of: str) -> np.ndarray | Classes:
    """Validates one class per row ([N], see `check_inputs.labels`), or several: an array [N, C] or lists.

    Args:
      values: [N] integers or strings; or an array [N, C] of bool, or of 0 and 1, one column for each of C > 1 classes;
        or a sequence of N lists of integers or strings, which may be empty.
      name, of: what error messages call the labels and the rows.
    """
    if isinstance(values, Classes):
        return values
    if isinstance(values, (np.ndarray, jax.Array)) and values.ndim == 2 and values.shape[1] != 1:
        array = np.asarray(values)
        if array.dtype != bool and not (check_inputs.is_real(array.dtype) and np.isin(array, (0, 1)).all()):
            raise DataError(f"{name}: {array.dtype} {list(array.shape)}; several classes per row need bool, or 0 and 1")
        counts, found = np.count_nonzero(array, axis=1), np.nonzero(array)[1]
        columns = array.shape[1]
    elif not _holds_lists(values):
        return check_inputs.labels(np.asarray(values), rows, name=name, of=of)
    else:
        lists: list[list[Any]] = list(map(list, values))
        flat = np.asarray([item for value in lists for item in value])
        counts, columns = np.array([len(value) for value in lists], np.int64), None
        found = check_inputs.labels(flat, len(flat), name=name) if len(flat) else np.zeros(0, np.int64)
    if len(counts) != rows:
        raise DataError(f"{name}: has {len(counts)} entries for {rows} rows of {of}; give one per row")
    return Classes(found, np.concatenate([[0], np.cumsum(counts)]), columns)


def targets(
    labels: Labels | None,
    gallery_labels: Labels | None,
    relevant: Rows | None,
    queries: int,
    gallery: int,
    *,
    own_gallery: bool,
) -> tuple[np.ndarray, np.ndarray, Judge | None]:
    """The classes [Q] and [G] that make a gallery row relevant, or all 0 and a function that decides instead."""
    unused = np.zeros(queries, np.int64), np.zeros(gallery, np.int64)
    if relevant is not None:
        return *unused, judged_rows(relevant, queries, gallery, name="relevant")
    own = other = classes(labels, queries, name="labels", of="queries")
    if not own_gallery:
        other = classes(gallery_labels, gallery, name="gallery_labels", of="gallery")
    if isinstance(own, Classes) or isinstance(other, Classes):
        return *unused, with_a_common_class(own, other)
    check_inputs.check_same_kind(own, other)
    return own, other, None


def exclusions(exclude: Rows | None, queries: int, gallery: int) -> tuple[np.ndarray | None, Judge | None]:
    """The one row of each query's class to exclude, [Q], or a function that decides, or neither."""
    if exclude is None:
        return None, None
    if callable(exclude) or _holds_lists(exclude) or np.ndim(exclude) == 2:
        return None, judged_rows(exclude, queries, gallery, name="exclude")
    return np.asarray(exclude), None


def common_groups(
    groups: ArrayLike | None, gallery_groups: Any, queries: int, gallery: int, *, own_gallery: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """Groups of the queries and of the gallery, numbered from 0: int [Q] and int [G]; None if there are none."""
    if groups is None:
        return None
    own = other = check_inputs.labels(groups, queries, name="groups", of="queries")
    if not own_gallery:
        other = check_inputs.labels(gallery_groups, gallery, name="gallery_groups", of="gallery")
        check_inputs.check_same_kind(own, other, name="groups")
    numbers = np.unique(np.concatenate([own, other]), return_inverse=True)[1]
    return numbers[:queries], numbers[queries:]


def with_a_common_class(labels: np.ndarray | Classes, gallery: np.ndarray | Classes) -> Judge:
    """Maps a query to the gallery rows that share a class with it."""
    queries, candidates = (
        side if isinstance(side, Classes) else Classes(side, np.arange(len(side) + 1)) for side in (labels, gallery)
    )
    if queries.columns and candidates.columns and queries.columns != candidates.columns:
        raise DataError(
            f"labels: have {queries.columns} columns for the queries and {candidates.columns} for the gallery; give "
            "one column per class, the same ones on both sides"
        )
    if len(queries.values) and len(candidates.values):
        check_inputs.check_same_kind(queries.values, candidates.values)
    order = np.argsort(candidates.values, kind="stable")
    rows = np.repeat(np.arange(len(candidates.start) - 1), np.diff(candidates.start))
    members, ordered = rows[order], candidates.values[order]
    first = np.searchsorted(ordered, queries.values) if len(ordered) else np.zeros(len(queries.values), int)
    last = np.searchsorted(ordered, queries.values, side="right") if len(ordered) else first

    def relevant(query: int) -> np.ndarray:
        mask = np.zeros(len(candidates.start) - 1, bool)
        for i in range(queries.start[query], queries.start[query + 1]):
            mask[members[first[i] : last[i]]] = True
        return mask

    return relevant


def judged_rows(values: Rows, queries: int, gallery: int, *, name: str) -> Judge:
    """The function that `values` is, or the one that lists of gallery rows determine.

    Args:
      values: for each query a sequence of gallery rows, -1 for none; or a function from the query's index to bool [G].
      name: what error messages call them.
    """
    if callable(values):
        return values
    rows = [np.asarray(list(value)) for value in values]
    rows = [row if row.size else row.astype(np.int64) for row in rows]
    valid = len(rows) == queries and all(
        row.dtype.kind in "iu" and -1 <= row.min(initial=-1) <= row.max(initial=-1) < gallery for row in rows
    )
    if not valid:
        raise DataError(f"{name}: give a list of gallery rows, 0..{gallery - 1}, for each of {queries} queries")

    def listed(query: int) -> np.ndarray:
        result = np.zeros(gallery, bool)
        result[rows[query][rows[query] >= 0]] = True
        return result

    return listed


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset)) or (isinstance(value, np.ndarray) and value.ndim == 1)


def _holds_lists(values: Any) -> TypeGuard[Sequence]:
    if isinstance(values, (np.ndarray, jax.Array)) and values.dtype != object:
        return False
    return isinstance(values, Iterable) and any(map(_is_list, values))
