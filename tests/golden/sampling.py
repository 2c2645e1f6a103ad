"""Reading the files of transforms, and batches to compare with those of the authors' samplers."""

from typing import Any

import numpy as np

from dml_jax.config import Data
from dml_jax.data import samplers
from tests.golden import fixtures


def files(kind: str) -> list[str]:
    return [name for name in fixtures.names("transforms") if name.startswith(kind)]


def keys(arrays: dict[str, np.ndarray], prefix: str, depth: int = 1) -> list[str]:
    """The distinct sequences of `depth` path components that follow a prefix."""
    parts = [key.split("/") for key in arrays if key.startswith(prefix + "/")]
    return sorted({"/".join(part[1 : 1 + depth]) for part in parts})


def build(name: str, sizes: np.ndarray, batch_size: int, images: int, seed: int = 0) -> samplers.Sampler:
    """A sampler of classes with the given numbers of images, int [C]."""
    data = Data(sampler=name, batch_size=batch_size, images_per_class=images)  # type: ignore[arg-type]
    return samplers.build(data, np.repeat(np.arange(len(sizes)), sizes), seed)


def epoch(sampler: samplers.Sampler, number: int) -> np.ndarray:
    """The batches of one epoch, int [steps, B]."""
    return np.stack([sampler.batch(step) for step in range(sampler.first_step(number), sampler.first_step(number + 1))])


def repeats(rows: np.ndarray) -> float:
    """Share of rows that contain a number more than once."""
    return float(np.mean([len(set(row)) < len(row) for row in rows.tolist()]))


def cases(name: str, family: str) -> list[tuple[str, dict[str, Any]]]:
    arrays, _ = fixtures.load("transforms", name)
    facts = []
    for case in keys(arrays, family):
        prefix = f"{family}/{case}/"
        facts.append((case, {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}))
    return facts


def assert_uniform(drawn: np.ndarray, classes: int) -> None:
    """All classes are drawn equally often, within five standard deviations."""
    counts = np.bincount(drawn, minlength=classes)
    mean = len(drawn) / classes
    assert np.abs(counts - mean).max() < 5 * np.sqrt(mean)
