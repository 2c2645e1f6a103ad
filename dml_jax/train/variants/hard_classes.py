"""Which classes are confused, for batches of classes that are hard to tell apart (`data.sampler="hard_classes"`).

Every few epochs, the model embeds all training images. The classes whose mean embeddings have the highest cosines with
that of a class are its hard ones; the sampler draws them together. The table of them is part of `model_state`, and so
of each checkpoint: an interrupted run continues with the same batches.
"""

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.backbones.contract import PyTree
from dml_jax.config import Data
from dml_jax.errors import ConfigError
from dml_jax.evaluation import neighbors
from dml_jax.methods.contract import Batch, Method, Refresh, TrainingSet

NEAREST = "hard_classes"  # in `model_state`: int32 [C, k], nearest first


def mined(method: Method, data: Data, images: TrainingSet) -> Method:
    """The method with a refresh that keeps the table up to date; raises ConfigError if it has one of its own."""
    if method.hooks.refresh is not None:
        raise ConfigError("data.sampler='hard_classes': the method has a refresh of its own; choose another sampler")
    count = min(data.hard_classes, images.classes - 1)

    def init(key: jax.Array, batch: Batch) -> tuple[PyTree, PyTree]:
        params, model_state = method.init(key, batch)
        return params, {**model_state, NEAREST: jnp.zeros((images.classes, count), jnp.int32)}

    def update(params: PyTree, model_state: PyTree, features: np.ndarray, key: jax.Array) -> tuple[PyTree, PyTree]:
        assert images.labels is not None
        return params, {**model_state, NEAREST: nearest_classes(features, images.labels, count)}

    hooks = method.hooks._replace(
        refresh=Refresh(data.hard_epochs, method.embed, update), history=(*method.hooks.history, NEAREST)
    )
    return method._replace(init=init, hooks=hooks)


def nearest_classes(embeddings: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """The nearest other classes of each class, by the cosine of their means: int32 [C, count], count < C.

    Embeddings float [N, D] are of unit length; labels int [N] in 0..C-1, and every class has an image.
    """
    order = np.argsort(labels, kind="stable")
    sums = np.add.reduceat(embeddings[order].astype(np.float64), np.unique(labels[order], return_index=True)[1])
    return neighbors.search(sums, sums, count, exclude_self=True)[1]
