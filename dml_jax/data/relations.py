"""How related two classes are: one function of their names, for training, sampling and evaluation.

    def shared_tags(names, others):
        \"""Weights [N, M] of pairs of class names [N] and [M].\"""

A weight above 0 is that of a positive pair and, in evaluation, the grade of a relevant row; 0 makes
a negative pair and an irrelevant row; NaN neither: the pair is not compared and the row not ranked.
Weights need not be symmetric: the first name is that of the anchor or query.
"""

from collections.abc import Callable, Sequence

import numpy as np

from dml_jax.config.modules import function
from dml_jax.errors import ConfigError

MOST = 4096  # classes; their weights are a constant of the compiled step
Relation = Callable[[np.ndarray, np.ndarray], np.ndarray]


def named(path: str) -> Relation | None:
    """The function at the import path `data.relation`; None without one."""
    return function("data.relation", path) if path else None


def between_classes(path: str, classes: Sequence[str]) -> np.ndarray | None:
    """Weights of all pairs of training classes, float32 [C, C]; None without a relation."""
    relation = named(path)
    if relation is None:
        return None
    where, count = f"data.relation={path!r}", len(classes)
    if count > MOST:
        rule = f"at most {MOST:,} training classes have weights"
        raise ConfigError(f"{where}: {rule}, the data has {count:,}; join classes of one meaning")
    names = np.array(list(map(str, classes)))
    weights = np.asarray(relation(names, names))
    real = weights.shape == (count, count) and weights.dtype.kind in "biuf"
    if not real or not np.all(np.isnan(weights) | ((weights >= 0) & np.isfinite(weights))):
        found = f"returns {weights.dtype} {list(weights.shape)}"
        rule = f"give [{count}, {count}] for {count} names, weights from 0 on or NaN"
        raise ConfigError(f"{where}: {found}; {rule}")
    return weights.astype(np.float32)
