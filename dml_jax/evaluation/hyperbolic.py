"""Hyperbolic distances of points in the Poincaré ball of radius 1, ranked as Euclidean distances of other rows.

A point p has the coordinates t = (1 + |p|^2) / (1 - |p|^2) and s = 2 p / (1 - |p|^2) on the hyperboloid, where
cosh d(p, q) = t_p t_q - <s_p, s_q>. For a query p and a gallery row q, this is the inner product of (t_p, -s_p, 0) and
(t_q, s_q, h_q). Where h makes all gallery rows equally long, the row of the smallest cosh d is the one nearest to
(-t_p, s_p, 0).
"""

import numpy as np

from dml_jax.errors import DataError


def as_euclidean(queries: np.ndarray, gallery: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows float64 [Q, D + 2] and [G, D + 2] whose Euclidean distances rank each query's gallery as hyperbolic ones do.

    Raises:
      DataError: a row of `queries` [Q, D] or `gallery` [G, D] is outside of the ball.
    """
    left, right = _on_hyperboloid(queries, "embeddings"), _on_hyperboloid(gallery, "gallery")
    left[:, 0] *= -1
    squares = np.sum(right**2, axis=1)
    return np.pad(left, ((0, 0), (0, 1))), np.column_stack([right, np.sqrt(squares.max() - squares)])


def _on_hyperboloid(points: np.ndarray, name: str) -> np.ndarray:
    p = np.asarray(points, np.float64)
    squares = np.sum(p**2, axis=1, keepdims=True)
    if (squares >= 1).any():
        raise DataError(f"{name}: row {int(np.argmax(squares))} is not in the ball of radius 1 of hyperbolic distances")
    return np.hstack([1 + squares, 2 * p]) / (1 - squares)
