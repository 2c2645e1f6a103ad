"""Which images make up the batch of a step: the samplers by name."""

import numpy as np

from dml_jax.config import Data
from dml_jax.data.samplers.balanced import balanced
from dml_jax.data.samplers.base import Sampler
from dml_jax.data.samplers.papers import diva, hist_balanced, mpn, mpn_redraw, ms, shuffled
from dml_jax.errors import DataError

__all__ = ["Sampler", "build", "by_class"]

SAMPLERS = {s.__name__: s for s in (balanced, shuffled, hist_balanced, mpn, mpn_redraw, diva, ms)}


def build(data: Data, labels: np.ndarray, seed: int) -> Sampler:
    """The sampler that `data.sampler` names.

    Args:
      data: `sampler`, `batch_size` and `images_per_class` are read.
      labels: int [N], class ids 0..C-1 of the training split, every class present.
      seed: of the run, not negative.

    Raises:
      ConfigError: the batch cannot be made from this split; names the key and the counts.
      DataError: a class without an image, or fewer than two classes.
    """
    return SAMPLERS[data.sampler](data, by_class(labels), seed)


def by_class(labels: np.ndarray) -> list[np.ndarray]:
    """Indices of each class's images: C arrays int64, for labels int [N] in 0..C-1.

    Raises:
      DataError: no image, a class without one, or fewer than two classes.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.size == 0 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"training labels are {labels.dtype} {list(labels.shape)}: integers [N] with N > 0 are needed")
    if labels.min() < 0:
        raise DataError(f"training label {labels.min()}: class ids start at 0")
    counts = np.bincount(labels)
    if len(counts) < 2:
        raise DataError(f"the training split has one class, of {labels.size} images: at least two are needed")
    if counts.min() == 0:
        raise DataError(f"training class {counts.argmin()} of 0..{len(counts) - 1} has no image")
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
