"""What the training loop asks of a method: pure functions over the global batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Teaching(NamedTuple):
    """What a trained model says of the images of a batch, for another to learn from.

    Attributes:
      embeddings: float [B, D], of unit length.
      logits: float [B, C] over the training classes, without margins; None where the method has no classifier.
    """

    embeddings: jax.Array
    logits: jax.Array | None = None


class Batch(NamedTuple):
    """A global batch, rows sharded over the devices.

    Attributes:
      images: uint8 [V, B, H, W, 3], V views of each sample.
      labels: int32 [B], in 0..C-1.
      index: int32 [B], position of each sample in its split.
      teacher: (images uint8 [B, H, W, 3]) -> Teaching; a pytree with the variables of a trained model as its leaves, so
        that they are an argument of the step. None where the method asks for none.
    """

    images: jax.Array
    labels: jax.Array
    index: jax.Array  # type: ignore[assignment]  # hides tuple.index
    teacher: Callable[[jax.Array], Teaching] | None = None


def keep_state(params: Any, state: Any, terms: Any) -> Any:
    """The default `after`: nothing follows the update."""
    return state


class Refresh(NamedTuple):
    """What a method learns anew from all training images, before the first step and every few epochs.

    Attributes:
      epochs: from one to the next, warm-up epochs counted.
      features: (params, state, images uint8 [B, H, W, 3]) -> [B, K].
      update: (params, state, features float32 [N, K] of the training images as evaluation sees them, key) ->
        (params, state), on the host.
    """

    epochs: int
    features: Callable[..., jax.Array]
    update: Callable[..., tuple[Any, Any]]


class Method(NamedTuple):
    """A deep metric learning method.

    `params` and `state` are nested dicts: `params` is trained; `state` is what else the method remembers (batch
    statistics, queue, momentum encoder). Both hold a key "backbone".

    Attributes:
      init: (key, batch) -> (params, state).
      loss: (params, state, batch, key) -> (scalar, (state, terms)). Terms are a dict; its scalars are logged.
      embed: (params, state, images uint8 [B, H, W, 3]) -> [B, D], normalised as the paper does.
      groups: names of the optimizer's parameter groups.
      group: path of a parameter, a tuple of dict keys -> its group's name.
      after: (params, state, terms) -> state, once the parameters have been updated.
      fill: (params, state, batches) -> state, before the first step; None where nothing has to be filled.
      refine: (params, state, queries [Q, D], gallery [G, D] or None, groups=None) -> the queries refined [Q, D'], at
        test time; without a gallery the queries are one another's. Given `groups` (`evaluation.grouping.Groups` of the
        queries) take the place of the method's own, and of the gallery. None where the paper has none.
      views: images per sample.
      refresh: None where nothing is learnt from all training images at once.
      sized: number of training images N -> this method with a state for N; None where the state does not depend on it.
      teach: (params, state, images uint8 [B, H, W, 3]) -> Teaching, as a student gets it from the trained model; None
        where that is `embed` alone.
      teacher: work directory of the run whose model `loss` finds in `batch.teacher`; empty where it asks for none.
        `loss` raises ConfigError, when it is traced, where that model does not fit.
    """

    init: Callable[..., tuple[Any, Any]]
    loss: Callable[..., tuple[jax.Array, tuple[Any, dict[str, jax.Array]]]]
    embed: Callable[..., jax.Array]
    groups: tuple[str, ...]
    group: Callable[[tuple[str, ...]], str]
    after: Callable[..., Any] = keep_state
    fill: Callable[..., Any] | None = None
    refine: Callable[..., Any] | None = None
    views: int = 1
    refresh: Refresh | None = None
    sized: Callable[[int], "Method"] | None = None
    teach: Callable[..., Teaching] | None = None
    teacher: str = ""
