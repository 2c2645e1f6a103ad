"""Samplers: which images make up the batch of a step.

`balanced` is the default; `hard_classes` follows the model; `shuffled` and those in `papers.py` reproduce the samplers
of published code. A new sampler is a function (data, class_indices, seed) -> Sampler, an entry in `SAMPLERS`, and its
name in `Sampler` of `config/data.py`.
"""

from collections.abc import Callable

import numpy as np

from dml_jax.config import Data
from dml_jax.data.samplers.balanced import balanced
from dml_jax.data.samplers.base import Sampler
from dml_jax.data.samplers.hard_classes import hard_classes
from dml_jax.data.samplers.papers import diva, hist_balanced, mpn, mpn_redraw, ms, shuffled
from dml_jax.errors import DataError

__all__ = ["SAMPLERS", "Sampler", "build", "indices_by_class"]

SAMPLERS: dict[str, Callable[[Data, list[np.ndarray], int], Sampler]] = {
    "balanced": balanced,
    "shuffled": shuffled,
    "mpn": mpn,
    "mpn_redraw": mpn_redraw,
    "hist_balanced": hist_balanced,
    "diva": diva,
    "ms": ms,
    "hard_classes": hard_classes,
}


def build(data: Data, labels: np.ndarray, seed: int) -> Sampler:
    """The sampler that `data.sampler` names, for labels int [N] in 0..C-1 of the training split and a seed >= 0.

    Raises:
      ConfigError: the split has too few classes or images for such a batch.
      DataError: a class without images, or fewer than two classes.
    """
    return SAMPLERS[data.sampler](data, indices_by_class(labels), seed)


def indices_by_class(labels: np.ndarray) -> list[np.ndarray]:
    """Groups image indices by class: labels int [N] in 0..C-1 -> C arrays int64; all classes must have images."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.size == 0 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"training labels are {labels.dtype} {list(labels.shape)}: must be integers [N] with N > 0")
    if labels.min() < 0:
        raise DataError(f"training label {labels.min()}: labels must not be negative")
    counts = np.bincount(labels)
    if len(counts) < 2:
        raise DataError(f"the training split has one class of {labels.size} images: at least two classes are needed")
    if counts.min() == 0:
        raise DataError(f"training class {counts.argmin()} of 0..{len(counts) - 1} has no images")
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
