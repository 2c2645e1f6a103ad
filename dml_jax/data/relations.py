"""How related two classes are: a function of their names, for training, sampling and evaluation.

    def shared_tags(names, others):
        \"""Weights [N, M] of pairs of class names [N] and [M].\"""

A weight above 0 makes a pair positive and, in evaluation, is the grade of a relevant row; 0 makes
it negative and the row irrelevant; with NaN, the pair is not compared and the row not ranked.
Weights need not be symmetric: the first name is the class of the anchor or query.
"""

from collections.abc import Callable, Sequence

import numpy as np

from dml_jax.config.modules import function
from dml_jax.errors import ConfigError

MOST = 4096  # classes; their weights are a constant of the compiled step
Relation = Callable[[np.ndarray, np.ndarray], np.ndarray]


def find_relation(path: str) -> Relation | None:
    """The function at the import path `data.relation`; None without one."""
    return function("data.relation", path) if path else None


def class_weights(path: str, classes: Sequence[str]) -> np.ndarray | None:
    """Weights of all pairs of training classes, float32 [C, C]; None without a relation."""
    relation = find_relation(path)
    if relation is None:
        return None
    where, count = f"data.relation={path!r}", len(classes)
    if count > MOST:
        rule = f"at most {MOST:,} training classes have weights"
        raise ConfigError(f"{where}: {rule}, the data has {count:,}; join classes of one meaning")
    names = np.array(list(map(str, classes)))
    weights = np.asarray(relation(names, names))
    fits = weights.shape == (count, count) and weights.dtype.kind in "biuf"
    if not fits or not np.all(np.isnan(weights) | ((weights >= 0) & np.isfinite(weights))):
        what = f"returns {weights.dtype} {list(weights.shape)}"
        rule = f"give [{count}, {count}] for {count} names, weights from 0 on or NaN"
        raise ConfigError(f"{where}: {what}; {rule}")
    return weights.astype(np.float32)
