"""Samplers: the images in the batch of a step.

    from dml_jax.data import samplers

    sampler = samplers.balanced(labels, batch_size=64, images_per_class=4)
    for step in range(sampler.first_step(1)):  # the first epoch
        batch = sampler.batch(step)  # int64 [64], indices into labels

`balanced` is the default; `shuffled` and the functions in `published.py` reproduce the samplers of
published code. They take labels [N], integers or text, and raise `ConfigError` unless
`images_per_class` divides `batch_size` into two or more classes (see `Data`). `data.sampler` may
also be the import path of such a function, (labels, batch_size, images_per_class, seed) -> Sampler.
`images_per_class` is given to functions that have it, and the weights [C, C] of `data.relation` to
those that have `relation`, such as `related`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from dml_jax.config import Data
from dml_jax.config.modules import function, takes
from dml_jax.data.samplers.base import Sampler, balanced, from_batches, from_epochs, related
from dml_jax.data.samplers.published import (
    chunks,
    distinct_chunks,
    distinct_classes,
    redrawn_chunks,
    shuffled,
    with_replacement,
)
from dml_jax.errors import ConfigError

__all__ = [
    "SAMPLERS",
    "Sampler",
    "balanced",
    "build",
    "chunks",
    "distinct_chunks",
    "distinct_classes",
    "from_batches",
    "from_epochs",
    "redrawn_chunks",
    "related",
    "shuffled",
    "with_replacement",
]

OF_PAPERS = (shuffled, chunks, redrawn_chunks, distinct_classes, distinct_chunks, with_replacement)
SAMPLERS: dict[str, Callable[..., Sampler]] = {
    function.__name__: function for function in (balanced, related, *OF_PAPERS)
}


def build(data: Data, labels: np.ndarray, seed: int, relation: np.ndarray | None = None) -> Sampler:
    """The sampler `data.sampler` for labels int [N] in 0..C-1 of the training split, seed >= 0."""
    make = SAMPLERS.get(data.sampler) or function("data.sampler", data.sampler, data)
    options: dict[str, Any] = {}
    if takes(make, "images_per_class"):
        options["images_per_class"] = data.images_per_class
    if takes(make, "relation"):
        if relation is None:
            remedy = "needs data.relation, or another sampler"
            raise ConfigError(f"data.sampler={data.sampler!r}: {remedy}")
        options["relation"] = relation
    return make(labels, data.batch_size, **options, seed=seed)
