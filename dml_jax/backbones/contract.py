"""The interface between backbones and methods, and the normalisation of uint8 images."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from dml_jax.config.fields import Dtype, Positive, section

PyTree = Any  # nested dicts of arrays
ImageShape = tuple[int, ...]  # (height, width) in pixels, or the shape of other arrays


@section
class Pixels:
    """Normalisation (x - mean) / std of pixels x in [0, top], with the channels in `order`.

    Attributes:
      mean: Mean of each channel, in `order`, on the scale [0, top].
      std: Standard deviation of each channel, in `order`, on the scale [0, top].
      top: Value of the brightest pixel, which is 255 in a file: 1 or 255.
      order: Order of the channels.
    """

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    top: Positive = 1.0
    order: Literal["rgb", "bgr"] = "rgb"


# The normalisation for BN-Inception's weights.
CAFFE = Pixels(mean=(104.0, 117.0, 128.0), std=(1.0, 1.0, 1.0), top=255.0, order="bgr")


@section
class Config:
    """Options of all networks in this package. A user's network needs only `name` and `pretrained`,
    and `pixels` if its inputs are images; a network with `pixels` cannot be used for other arrays.

    A network for images of a single size has the attribute `fixed_size`, which is true. A network
    of blocks has the method `layer` for `train.layer_decay`: (first name of a parameter's path) ->
    0 for the embeddings, i + 1 for block i from 0, None for everything else.

    Attributes:
      name: Module of dml_jax/backbones, or an import path.
      pretrained: Directory of weights that `dml-jax convert` wrote, or "none" for random initial
        weights.
      pixels: Normalisation of pixels.
      remat: Recomputes the blocks in the backward pass, which saves memory and takes more time.
      dtype: Type of the activations; `train.precision` sets it for the heads as well.
    """

    name: str = ""
    pretrained: str = "none"
    pixels: Pixels = Pixels()
    remat: bool = False
    dtype: Dtype = "float32"


class Backbone(NamedTuple):
    """A convolutional network or vision transformer without its classifier, as pure functions.

    Attributes:
      init: (key, image shape) -> (params, stats), nested dicts of float32 arrays. `stats` contains
        the statistics of batch normalisation, if any.
      apply: (params, stats, inputs, *, train, key) -> (features [B, h, w, channels], stats).
        `inputs` is the output of `preprocess`, float [B, H, W, 3]. With `train=True`, batch
        statistics normalise (unless the configuration freezes them) and the updated running
        statistics are returned; with `train=False`, the running statistics normalise and are
        returned unchanged. Stochastic depth needs a `key`, without which it is off.
      channels: number of channels of the feature map.
      preprocess: uint8 RGB images [B, H, W, 3] -> float [B, H, W, 3], normalised as the weights
        expect; runs on the device, inside the jitted step. A network for other arrays gets them
        unchanged from the data set, [B, ...], such as int32 tokens [B, T].
    """

    init: Callable[[jax.Array, ImageShape], tuple[PyTree, PyTree]]
    apply: Callable[..., tuple[jax.Array, PyTree]]
    channels: int
    preprocess: Callable[[jax.Array], jax.Array]


def preprocess(pixels: Pixels) -> Callable[[jax.Array], jax.Array]:
    """A function uint8 RGB [B, H, W, 3] -> normalised [B, H, W, 3] of JAX's default float type."""

    def normalise(images: jax.Array) -> jax.Array:
        values = jnp.asarray(images, float) * (pixels.top / 255.0)
        if pixels.order == "bgr":
            values = values[..., ::-1]
        mean, std = jnp.asarray(pixels.mean, values.dtype), jnp.asarray(pixels.std, values.dtype)
        return (values - mean[None, None, None, :]) / std[None, None, None, :]

    return normalise
