"""Labels of small classes, and samplers of them."""

import numpy as np

from dml_jax.config import Data
from dml_jax.data import samplers

SIZES = [5, 6, 9, 4, 3, 11, 2, 1, 8]
LABELS = np.repeat(np.arange(len(SIZES)), SIZES)
RELATION = np.random.default_rng(7).integers(0, 3, (9, 9)) / 2  # of classes


def build(sampler: str, batch_size: int, images: int, seed: int = 3, labels: np.ndarray = LABELS) -> samplers.Sampler:
    data = Data(sampler=sampler, batch_size=batch_size, images_per_class=images)  # type: ignore[arg-type]
    return samplers.build(data, labels, seed, RELATION)


def check_small_classes(name: str) -> None:
    """Class 7 has one image, which fills its K = 3 places in a batch."""
    sampler = build(name, 12, 3)
    batches = np.concatenate([sampler.batch(s) for s in range(30)])
    assert np.sum(batches == np.flatnonzero(LABELS == 7)[0]) >= 3
