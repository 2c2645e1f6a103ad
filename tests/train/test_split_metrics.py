"""Metrics of a sample of the training classes."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dml_jax.config import Evaluation
from dml_jax.data.split import Split
from dml_jax.train import evaluations

OPTIONS = Evaluation(cluster=False, ks=(1,))


def split(classes: int, each: int) -> Split:
    labels = np.repeat(np.arange(classes), each)
    read = lambda i, rng: np.full((1, 1, 3), labels[i], np.uint8)  # noqa: E731
    return Split(labels, [str(i) for i in range(len(labels))], read, [str(c) for c in range(classes)])


@pytest.mark.parametrize(
    ("train", "like", "classes"),
    [((40, 5), (10, 5), 10), ((40, 5), (80, 5), 40), ((40, 100), (30, 100), 20), ((40, 5), (30, 2), 12)],
)
def test_a_sample_of_training_classes(train: tuple[int, int], like: tuple[int, int], classes: int) -> None:
    """Whole classes, no more than there are to compare with, and about 2,000 images at most."""
    sampled: list[Split] = []

    def embed_split(model: Any, part: Split, on_progress: Any) -> np.ndarray:
        sampled.append(part)
        rows = np.eye(train[0], dtype=np.float32)[[part.read(i, None)[0, 0, 0] for i in range(len(part.labels))]]
        rows[0] = rows[-1]  # an image like those of another class
        return rows

    none: Any = None
    embedder: Any = SimpleNamespace(embed_split=embed_split)
    found = evaluations.of_training_classes(OPTIONS, "cosine", embedder, none, split(*train), split(*like), none)
    (part,) = sampled
    assert len(np.unique(part.labels)) == classes
    assert set(np.bincount(part.labels)) <= {0, train[1]}
    assert set(found) == {"train/recall@1", "train/map@r"}
    # That image is wrong and, as the first of equals, the nearest of all of the other class.
    assert found["train/recall@1"] == pytest.approx(1 - (1 + train[1]) / len(part.labels), abs=1e-9)


def test_the_distance_of_the_method_ranks() -> None:
    rows = np.array([[1.0, 0.0], [9.0, 0.0], [1.0, 1.0], [9.0, 1.0]], np.float32)
    by_second, by_first = split(2, 2), split(2, 2)._replace(labels=np.array([0, 1, 0, 1]))
    for part, cosine, euclidean in ((by_second, 0.75, 0.0), (by_first, 0.0, 1.0)):
        for distance, expected in (("cosine", cosine), ("euclidean", euclidean)):
            found = evaluations.metrics(OPTIONS, distance, part, {"test": rows}, cluster=False)  # type: ignore[arg-type]
            assert found["recall@1"] == expected, distance
