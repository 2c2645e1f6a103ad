"""What a method asks of a backbone: pure functions around the last feature map."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Backbone(NamedTuple):
    """A convolutional network or transformer without its classifier.

    Attributes:
      init: (key, image_shape) -> (params, stats). `image_shape` is (height, width) in pixels; `stats` holds
        running statistics (an empty dict where there are none). Both are nested dicts of float32 arrays.
      apply: (params, stats, inputs, *, train, key) -> (features [B, h, w, channels], stats). `inputs` is what
        `preprocess` returned, float [B, H, W, 3]. With `train=True` batch statistics are used (unless the
        configuration freezes them) and the running ones come back updated; with `train=False` the running ones
        are used and come back as they were. `key` drives stochastic depth; None where there is none.
      channels: length of the last axis of the feature map.
      preprocess: uint8 [B, H, W, 3] RGB -> float32 [B, H, W, 3], normalised the way the weights expect; runs on
        the device, inside the jitted step.
    """

    init: Callable[..., tuple[Any, Any]]
    apply: Callable[..., tuple[jax.Array, Any]]
    channels: int
    preprocess: Callable[[jax.Array], jax.Array]
