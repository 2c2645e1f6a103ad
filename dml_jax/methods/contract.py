"""The interface between a method and the training loop: pure functions over the global batch."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Protocol

import jax
import numpy as np
from jax import Array

from dml_jax.backbones.contract import PyTree
from dml_jax.config import Config
from dml_jax.data import arrays
from dml_jax.data.arrays import Shape
from dml_jax.errors import ConfigError


class TrainingSet(NamedTuple):
    """Facts about the training data for building a method.

    Attributes:
      classes: number of classes C.
      images: number of images N.
      labels: int [N], in 0..C-1; None where nothing is trained.
      relation: float32 [C, C], weights of pairs of classes in place of equal or not (see
        `data.relations`), or None. A method that uses it says so: `Config.compares_pairs` is true.
    """

    classes: int
    images: int
    labels: np.ndarray | None = None
    relation: np.ndarray | None = None

    def check_classes(self, needed: int, key: str) -> None:
        """Raises `ConfigError` if there are fewer training classes than the option `key` needs."""
        if self.classes < needed:
            found = f"the data has {self.classes}"
            raise ConfigError(f"{key}: needs {needed} training classes, {found}")


class Teaching(NamedTuple):
    """Outputs of a trained model on the images of a batch, for a student to learn from.

    Attributes:
      embeddings: float [B, D], of unit length.
      logits: float [B, C] over the training classes, without margins; None where the method has no
        classifier.
    """

    embeddings: Array
    logits: Array | None = None


class Batch(NamedTuple):
    """A global batch, with its rows sharded over the devices.

    Attributes:
      images: uint8 [V, B, H, W, 3], V views of each image; or other arrays [V, B, ...].
      labels: int32 [B], in 0..C-1.
      index: int32 [B], position of each image in its split.
      teacher: (images uint8 [B, H, W, 3]) -> Teaching; a pytree whose leaves are the variables of a
        trained model, so that they are arguments of the compiled step. None unless the method has a
        `teacher`.
    """

    images: Array
    labels: Array
    index: Array  # type: ignore[assignment]  # hides tuple.index
    teacher: Callable[[Array], Teaching] | None = None


def input_shape(batch: Batch) -> tuple[int, ...]:
    """(H, W) of the images of a batch, or the shape of its other arrays."""
    images = batch.images
    of_images = images.dtype == np.uint8 and images.ndim == 5 and images.shape[-1] == 3
    return images.shape[2:4] if of_images else images.shape[2:]


def zeros(size: int, shape: Shape, views: int = 1) -> Batch:
    """A batch of `size` rows of zeros of `shape` (see `data.arrays`), for its shapes only."""
    images: Any = arrays.blank(shape, views, size)  # NumPy compiles nothing
    numbers: Any = np.zeros((size,), np.int32)
    return Batch(images, numbers, numbers)


class Aux(NamedTuple):
    """Results of a loss besides its value.

    Attributes:
      model_state: the state after the forward pass.
      metrics: float scalars that are logged: the terms of the loss, before their weights.
      carry: input of `Hooks.after`; never logged.
    """

    model_state: PyTree
    metrics: dict[str, Array]
    carry: PyTree = None


class Encode(Protocol):
    """(params, model_state, images uint8 [V, B, H, W, 3]) -> (pytree of rows, model_state)."""

    def __call__(
        self,
        params: PyTree,
        model_state: PyTree,
        images: Array,
        *,
        train: bool,
        key: Array | None = None,
    ) -> tuple[PyTree, PyTree]: ...


Loss = Callable[[PyTree, PyTree, PyTree, Batch, Array, Array], tuple[Array, Aux]]
Embed = Callable[[PyTree, PyTree, Array], Array]
Teach = Callable[[PyTree, PyTree, PyTree], Teaching]
Embeddings = dict[str, np.ndarray]  # float32 [N, D] by name of the split, the queries first
Distance = Literal["cosine", "euclidean"] | Callable[[Array, Array], Array]


class Refresh(NamedTuple):
    """A computation of a method on all training images, before the first step and every few epochs.

    Attributes:
      epochs: number of epochs between two refreshes, including warm-up epochs; 0: only one.
      features: (params, model_state, images uint8 [B, H, W, 3]) -> [B, K].
      update: (params, model_state, features float32 [N, K] of all training images, transformed as
        for evaluation, key) -> (params, model_state), on the host.
      head: (params, features [B, K]) -> embeddings [B, D] as of `Method.embed`, where these depend
        on nothing else; needed for `train.select="folds"`.
    """

    epochs: int
    features: Embed
    update: Callable[..., tuple[PyTree, PyTree]]
    head: Callable[[PyTree, Array], Array] | None = None


class Hooks(NamedTuple):
    """Optional parts of a method; an unused one is None or empty. Functions take `params` first.

    Attributes:
      after: (params, model_state, carry of the loss) -> model_state, once the parameters have been
        updated.
      fill: (params, model_state, batches) -> model_state, before the first step.
      refine: test-time refinements, each its name in `evaluation.refine` and (params, model_state,
        embeddings of the queries and perhaps of a "gallery", configuration of the run) -> (those
        [N, D'], numbers about them for the results).
      check_refine: (configuration of the run, number of tested images); raises ConfigError if a
        refinement cannot handle so many.
      refresh: computation from all training images every few epochs.
      published: (params, model_state) -> (params, model_state) whose embedding is the backbone's
        pooled features; needed for `train.select="folds"`.
      teach: (params, model_state, encoded) -> Teaching, what a student learns from this method's
        trained model; None where that is `embed` alone.
      diagnose: (params, model_state, images uint8 [1, B, H, W, 3], labels int32 [B]) -> numbers by
        name that tell whether the mechanism of the method is at work in a training batch; called on
        the host.
      views: images per sample.
      whole_maps: whether `encode` needs whole feature maps, instead of their mean and maximum.
      parts: parts of the embedding [B, D] that are also analysed separately: name, first column,
        column after the last.
      history: names of the entries of `model_state` left by past batches, such as a queue; a run
        that starts from the weights of another does not take them over.
      teacher: work directory of the run whose model `loss` finds in `batch.teacher`. `loss` raises
        ConfigError, when it is traced, where that model does not fit.
    """

    after: Callable[[PyTree, PyTree, PyTree], PyTree] | None = None
    fill: Callable[..., PyTree] | None = None
    refine: tuple[tuple[str, Callable[..., tuple[Embeddings, dict[str, int]]]], ...] = ()
    check_refine: Callable[[Config, int], None] = lambda run, images: None
    refresh: Refresh | None = None
    published: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]] | None = None
    teach: Teach | None = None
    diagnose: Callable[..., dict[str, float]] | None = None
    views: int = 1
    whole_maps: bool = False
    parts: tuple[tuple[str, int, int], ...] = ()
    history: tuple[str, ...] = ()
    teacher: str = ""


class Method(NamedTuple):
    """A deep metric learning method: the parts of every method, and hooks.

    `params` and `model_state` are nested dicts: `params` is trained by gradients; `model_state` is
    everything else (batch statistics, queue, momentum encoder). Both have a key "backbone".

    Attributes:
      init: (key, batch) -> (params, model_state). The batch gives the shapes only.
      encode: backbone and head, applied to each image. Only batch statistics connect the rows.
      loss: (params, model_state, encoded, batch, step, key) -> (scalar, Aux), from the encoded
        global batch; `step` is the number of updates so far, for schedules of coefficients.
      embed: (params, model_state, images uint8 [B, H, W, 3]) -> [B, D], normalised as in the paper.
      groups: names of the optimizer's parameter groups.
      group: path of a parameter, a tuple of dict keys -> name of its group, by default the first
        key. Entries of `model_state` that are not `history` have a group, too: batch statistics
        belong to the group of their layer.
      distance: how evaluation compares embeddings: a name, or a function of two blocks of rows,
        [N, D] and [M, D] -> [N, M], as described in `evaluation.user_distances`.
      hooks: optional parts of the method.
    """

    init: Callable[[Array, Batch], tuple[PyTree, PyTree]]
    encode: Encode
    loss: Loss
    embed: Embed
    groups: tuple[str, ...]
    group: Callable[[tuple[str, ...]], str] = itemgetter(0)
    distance: Distance = "cosine"
    hooks: Hooks = Hooks()


def map_functions(wrap: Callable[[Any], Any], method: Method) -> Method:
    """The method with `wrap` around each of its functions of (params, …)."""
    wrapped: Method = jax.tree.map(
        lambda leaf: wrap(leaf) if callable(leaf) else leaf, method, is_leaf=callable
    )
    hooks = wrapped.hooks._replace(check_refine=method.hooks.check_refine)
    return wrapped._replace(
        init=method.init, group=method.group, distance=method.distance, hooks=hooks
    )


def teaching(method: Method) -> Callable[[PyTree, PyTree, Array], Teaching]:
    """(params, model_state, images uint8 [B, H, W, 3]) -> `Hooks.teach`, or the embedding."""

    def outputs(params: PyTree, model_state: PyTree, images: Array) -> Teaching:
        if method.hooks.teach is None:
            return Teaching(method.embed(params, model_state, images))
        encoded, _ = method.encode(params, model_state, images[None], train=False)
        return method.hooks.teach(params, model_state, encoded)

    return outputs
