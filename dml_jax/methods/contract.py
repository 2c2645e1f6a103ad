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
    """Facts about the training data from which a method is built.

    Attributes:
      classes: number of classes C.
      images: number of images N.
      labels: int [N], in 0..C-1; None without training.
      relation: float32 [C, C], weights of pairs of classes that replace equality (see
        `data.relations`), or None. `Config.compares_pairs` is true for methods that use it.
    """

    classes: int
    images: int
    labels: np.ndarray | None = None
    relation: np.ndarray | None = None

    def check_classes(self, least: int, key: str) -> None:
        """Raises `ConfigError` if there are fewer training classes than the option `key` needs."""
        if self.classes < least:
            rule = f"needs at least {least} training classes"
            raise ConfigError(f"{key} {rule}, but the data has {self.classes}")


class Teaching(NamedTuple):
    """Outputs of a trained model on the images of a batch, for a student to learn from.

    Attributes:
      embeddings: float [B, D], of unit length.
      logits: float [B, C] over the training classes, without margins; None without a classifier.
    """

    embeddings: Array
    logits: Array | None = None


class Batch(NamedTuple):
    """A global batch, with its rows sharded over the devices.

    Attributes:
      images: uint8 [V, B, H, W, 3], V views of each image; or other arrays [V, B, ...].
      labels: int32 [B], in 0..C-1.
      index: int32 [B], position of each image in its split.
      teacher: (images uint8 [B, H, W, 3]) -> Teaching; a pytree whose leaves are the variables of
        the teacher, so that the compiled step takes them as arguments. None unless the method has a
        `teacher`.
    """

    images: Array
    labels: Array
    index: Array  # type: ignore[assignment]  # hides tuple.index
    teacher: Callable[[Array], Teaching] | None = None


def input_shape(batch: Batch) -> tuple[int, ...]:
    """(H, W) of the images in a batch; for other arrays, their shape."""
    images = batch.images
    is_images = images.dtype == np.uint8 and images.ndim == 5 and images.shape[-1] == 3
    return images.shape[2:4] if is_images else images.shape[2:]


def zeros(size: int, shape: Shape, views: int = 1) -> Batch:
    """A batch of `size` zero rows of `shape` (see `data.arrays`), used for its shapes only."""
    images: Any = arrays.blank(shape, views, size)  # NumPy, because JAX would compile a program
    numbers: Any = np.zeros((size,), np.int32)
    return Batch(images, numbers, numbers)


class Aux(NamedTuple):
    """Further results of a loss.

    Attributes:
      model_state: the state after the forward pass.
      metrics: float scalars to log: the unweighted terms of the loss.
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
    """A computation on all training images, before the first step and every few epochs.

    Attributes:
      epochs: number of epochs between two refreshes, including warm-up epochs; 0: a single refresh.
      features: (params, model_state, images uint8 [B, H, W, 3]) -> [B, K].
      update: (params, model_state, features float32 [N, K], key) -> (params, model_state), on the
        host. The features are those of all training images, transformed as for evaluation.
      head: (params, features [B, K]) -> embeddings [B, D] of `Method.embed`, if these depend on the
        features only; required for `train.select="folds"`.
    """

    epochs: int
    features: Embed
    update: Callable[..., tuple[PyTree, PyTree]]
    head: Callable[[PyTree, Array], Array] | None = None


class Hooks(NamedTuple):
    """Optional parts of a method, by default None or empty. Functions take `params` first.

    Attributes:
      after: (params, model_state, carry of the loss) -> model_state, called after the update of the
        parameters.
      fill: (params, model_state, batches) -> model_state, called before the first step.
      refine: test-time refinements: pairs of a name in `evaluation.refine` and a function (params,
        model_state, embeddings of the queries and perhaps of a "gallery", configuration of the run)
        -> (refined embeddings [N, D'], numbers for the results).
      check_refine: (configuration of the run, number of tested images); raises ConfigError if there
        are too many images for a refinement.
      refresh: computation from all training images every few epochs.
      published: (params, model_state) -> (params, model_state) whose embedding is the backbone's
        pooled features; required for `train.select="folds"`.
      teach: (params, model_state, encoded) -> Teaching, the outputs of this method's trained model
        that a student learns from; None for `embed` alone.
      diagnose: (params, model_state, images uint8 [1, B, H, W, 3], labels int32 [B]) -> numbers by
        name that show whether the mechanism of the method has an effect in a training batch; runs
        on the host.
      views: images per sample.
      whole_maps: whether `encode` needs whole feature maps, not only their mean and maximum.
      parts: parts of the embedding [B, D] to be analysed separately: name, first and end column.
      history: names of the entries of `model_state` that depend on past batches, such as a queue; a
        run that starts from the weights of a previous run resets them.
      teacher: work directory of the run whose model is `batch.teacher`. While it is traced, `loss`
        raises ConfigError if that model does not fit.
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
    """A deep metric learning method: required functions, and optional hooks.

    `params` and `model_state` are nested dicts: gradients train `params`; `model_state` is
    everything else (batch statistics, queue, momentum encoder). Both have a key "backbone".

    Attributes:
      init: (key, batch) -> (params, model_state). Only the shapes of the batch matter.
      encode: backbone and head, applied to each image. Only batch statistics connect the rows.
      loss: (params, model_state, encoded, batch, step, key) -> (scalar, Aux), from the encoded
        global batch; `step` is the number of updates so far, for schedules of coefficients.
      embed: (params, model_state, images uint8 [B, H, W, 3]) -> [B, D], normalised as in the paper.
      groups: names of the optimizer's parameter groups.
      group: path of a parameter, a tuple of dict keys -> name of its group, by default the first
        key. Entries of `model_state` outside `history` also have a group: batch statistics belong
        to the group of their layer.
      distance: distance with which evaluation compares embeddings: a name, or a function of two
        blocks of rows, [N, D] and [M, D] -> [N, M] (see `evaluation.user_distances`).
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
    """Wraps each function (params, …) of a method with `wrap`."""
    wrapped: Method = jax.tree.map(
        lambda leaf: wrap(leaf) if callable(leaf) else leaf, method, is_leaf=callable
    )
    hooks = wrapped.hooks._replace(check_refine=method.hooks.check_refine)
    return wrapped._replace(
        init=method.init, group=method.group, distance=method.distance, hooks=hooks
    )


def teaching(method: Method) -> Callable[[PyTree, PyTree, Array], Teaching]:
    """A function (params, model_state, images uint8 [B, H, W, 3]) -> Teaching of a method."""

    def outputs(params: PyTree, model_state: PyTree, images: Array) -> Teaching:
        if method.hooks.teach is None:
            return Teaching(method.embed(params, model_state, images))
        encoded, _ = method.encode(params, model_state, images[None], train=False)
        return method.hooks.teach(params, model_state, encoded)

    return outputs
