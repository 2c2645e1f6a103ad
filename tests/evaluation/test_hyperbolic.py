"""Evaluation by hyperbolic distance against its definition with Möbius addition."""

from typing import Any

import numpy as np
import pytest

from dml_jax.errors import DataError
from dml_jax.evaluation import protocol

RNG = np.random.default_rng(4)


def distance(p: np.ndarray, q: np.ndarray) -> float:
    """2 artanh |-p (+) q| in the ball of radius 1."""
    pq, pp, qq = -p @ q, p @ p, q @ q
    sum_ = ((1 + 2 * pq + qq) * -p + (1 - pp) * q) / (1 + 2 * pq + pp * qq)
    return float(2 * np.arctanh(np.linalg.norm(sum_)))


def points(count: int, spread: float) -> np.ndarray:
    """In the ball of radius 1, of all lengths, around a point at 0.8 of its radius where `spread` is small."""
    x = spread * RNG.normal(size=(count, 4)) + [0.9, 0.0, 0.0, 0.0]
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(np.tanh(1.2 * lengths) * x / lengths, np.float32)


@pytest.mark.parametrize("protocol_name", ["clean", "paper"])
@pytest.mark.parametrize("spread", [1.0, 1e-3])
@pytest.mark.parametrize("with_gallery", [False, True])
def test_ranking(with_gallery: bool, spread: float, protocol_name: Any) -> None:
    queries, labels = points(40, spread), np.arange(40) % 7
    gallery, of = (points(50, spread), np.arange(50) % 7) if with_gallery else (queries, labels)
    d = np.array([[distance(p, q) for q in gallery.astype(float)] for p in queries.astype(float)])
    ranks = []
    for i in range(40):
        order = np.argsort(d[i], kind="stable")
        order = order if with_gallery else order[order != i]
        ranks.append(1 + int(np.argmax(of[order] == labels[i])))
    given = {"gallery": gallery, "gallery_labels": of} if with_gallery else {}
    found = protocol.evaluate(
        queries, labels, metric="hyperbolic", protocol=protocol_name, cluster=False, per_query=True, **given
    )
    np.testing.assert_array_equal(found["rank"], ranks)
    euclidean = protocol.evaluate(queries, labels, metric="euclidean", cluster=False, per_query=True, **given)
    assert (euclidean["rank"] != found["rank"]).any() or spread < 1


def test_points_outside_of_the_ball() -> None:
    rows = np.eye(4, 3, dtype=np.float32)
    with pytest.raises(DataError, match="embeddings: row 0 is not in the ball of radius 1"):
        protocol.evaluate(rows, np.arange(4) // 2, metric="hyperbolic", cluster=False)
    with pytest.raises(DataError, match="metric='hyperbolic': takes neither judgements nor prefixes"):
        protocol.evaluate(0.5 * rows, np.arange(4) // 2, metric="hyperbolic", cluster=False, prefixes=(2,))
