"""Samplers: the images in the batch of a step.

    from dml_jax.data import samplers

    sampler = samplers.balanced(labels, batch_size=64, images_per_class=4)
    for step in range(sampler.first_step(1)):  # the first epoch
        batch = sampler.batch(step)  # int64 [64], indices into labels

`balanced` is the default; `shuffled` and the functions in `published.py` reproduce the samplers of
published code. They take labels [N], integers or text, and raise `ConfigError` unless
`images_per_class` divides `batch_size` into two or more classes (see `Data`). `data.sampler` may
also be the import path of such a function, (labels, batch_size, images_per_class, seed) -> Sampler.
"""

from collections.abc import Callable

import numpy as np

from dml_jax.config import Data, sections
from dml_jax.config.modules import function
from dml_jax.data.samplers.base import Sampler, balanced, from_batches, from_epochs
from dml_jax.data.samplers.published import (
    chunks,
    distinct_chunks,
    distinct_classes,
    redrawn_chunks,
    shuffled,
    with_replacement,
)

__all__ = ["SAMPLERS", "Sampler", "build", "from_batches", "from_epochs", *sections.SAMPLERS]

OF_PAPERS = (shuffled, chunks, redrawn_chunks, distinct_classes, distinct_chunks, with_replacement)
SAMPLERS: dict[str, Callable[..., Sampler]] = {
    function.__name__: function for function in (balanced, *OF_PAPERS)
}


def build(data: Data, labels: np.ndarray, seed: int) -> Sampler:
    """The sampler `data.sampler` for labels int [N] in 0..C-1 of the training split, seed >= 0."""
    make = SAMPLERS.get(data.sampler) or function("data.sampler", data.sampler)
    by_class = data.sampler not in sections.WITHOUT_CLASSES
    options = {"images_per_class": data.images_per_class} if by_class else {}
    return make(labels, data.batch_size, **options, seed=seed)
