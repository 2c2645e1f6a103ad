"""Normalises rows to unit length and checks them."""

import numpy as np

LENGTH_TOLERANCE = 0.01  # wide enough for unit rows stored in half precision


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows [N, D] divided by their lengths; zero rows stay zero."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length > 0, length, 1)


def first_bad_row(rows: np.ndarray) -> tuple[int, str] | None:
    """Index and fault of the first row of [N, D] that is not finite or not of unit length."""
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(rows, axis=1)
    bad = ~(np.abs(lengths - 1) <= LENGTH_TOLERANCE)
    if not bad.any():
        return None
    first = int(bad.argmax())
    finite = np.isfinite(rows[first]).all()
    return first, f"has length {lengths[first]:.3g}" if finite else "is not finite"
