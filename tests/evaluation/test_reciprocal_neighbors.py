"""Batches of reciprocal neighbours against an implementation with Python sets."""

import numpy as np
import pytest

from dml_jax.evaluation import refinement_batches


def clustered(rows: int, dim: int, seed: int, noise: float = 0.5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(max(rows // 12, 1), dim))[rng.integers(0, max(rows // 12, 1), rows)]
    points = points + noise * rng.normal(size=(rows, dim))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def ranked(queries: np.ndarray, gallery: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distances = ((queries[:, None] - gallery[None]) ** 2).sum(-1)
    return distances, np.argsort(distances, axis=1, kind="stable")


def by_sets(points: np.ndarray, k: int, size: int, rule: str) -> list[list[int]]:
    """Batches by the definitions, for queries that search each other."""
    distances, order = ranked(points, points)
    paper = rule == "paper"

    def near(q: int, k: int) -> list[int]:
        return [g for g in order[q] if g != q][:k] if paper else list(order[q][: k + 1])

    def mutual(q: int, k: int) -> set[int]:
        return {g for g in near(q, k) if q in near(g, k)}

    batches = []
    for q in range(len(points)):
        original = mutual(q, k)
        expanded = set(original)
        for g in original:
            half = mutual(g, round(k / 2))
            shared, bound = len(half & original), 2 / 3 * len(half)
            if shared >= bound if paper else shared > bound:
                expanded |= half
        chosen = [q, *sorted(expanded - {q}, key=lambda g: distances[q, g])]
        batches.append((chosen + [g for g in order[q] if g not in chosen])[:size])
    return batches


@pytest.mark.parametrize("rule", ["authors", "paper"])
@pytest.mark.parametrize(("rows", "k", "size"), [(150, 10, 7), (131, 5, 20), (40, 7, 3)])
def test_self_retrieval(
    rows: int, k: int, size: int, rule: refinement_batches.Rule, x64: None
) -> None:
    points = clustered(rows, 6, seed=k)
    found = refinement_batches.reciprocal_sets(points, k=k, size=size, rule=rule)
    np.testing.assert_array_equal(found.batches, by_sets(points, k, size, rule))


def test_fewer_images_than_neighbours(x64: None) -> None:
    points = clustered(4, 3, seed=0)
    order = ranked(points, points)[1]
    np.testing.assert_array_equal(
        refinement_batches.reciprocal_sets(points, k=30, size=7).batches, order
    )
    found = refinement_batches.reciprocal_sets(points[:1], points[1:], k=30, size=7)
    assert found.batches.shape == (1, 4)
