"""Backbones small enough to compile quickly, with and without batch statistics, and images for them."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.backbones import functional
from dml_jax.backbones.batch_norm import BatchNorm
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.layers import Dense
from dml_jax.config import Data
from dml_jax.data.formats import digits
from dml_jax.data.split import Split, take
from dml_jax.methods.contract import Batch, Method, TrainingSet

SIDE, PATCH = 8, 4


class Patches(nn.Module):
    """Patches of 4x4 pixels through a linear layer, batch normalisation and a ReLU."""

    channels: int
    dtype: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        """float [B, S, S, 3] -> [B, S / 4, S / 4, channels]."""
        count, side = x.shape[0], x.shape[1] // PATCH
        x = x.reshape(count, side, PATCH, side, PATCH, 3).transpose(0, 1, 3, 2, 4, 5).reshape(count, side, side, -1)
        kernel = self.param("kernel", nn.initializers.normal(0.2), (x.shape[-1], self.channels))
        dtype = self.dtype or kernel.dtype
        return jax.nn.relu(BatchNorm(name="bn")(x.astype(dtype) @ kernel.astype(dtype), train))


def backbone(channels: int = 12, dtype: Any = None) -> Backbone:
    """`Patches` as a backbone.

    Args:
      channels: of the feature map.
      dtype: of the computation; None for that of the parameters.
    """
    network = Patches(channels, dtype)

    def init(key: jax.Array, shape: tuple[int, int]) -> tuple[Any, Any]:
        return functional.init(network, key, functional.struct(1, *shape, 3), False)

    def apply(params: Any, stats: Any, inputs: jax.Array, /, *, train: bool, key: Any = None) -> tuple[jax.Array, Any]:
        features, stats = functional.apply(network, params, stats, inputs, train, mutable=train)
        return features, stats

    return Backbone(init, apply, channels, preprocess=lambda images: images.astype(float) / 255)


def linear(channels: int = 7, dtype: Any = jnp.float32) -> Backbone:
    """One linear layer applied to every pixel, without batch statistics, whose feature maps are of type `dtype`."""
    layer = Dense(channels)

    def apply(params: Any, stats: Any, inputs: jax.Array, /, *, train: bool, key: Any = None) -> tuple[jax.Array, Any]:
        features: Any = layer.apply({"params": params}, inputs)
        return features.astype(dtype), stats

    return Backbone(
        init=lambda key, shape: functional.init(layer, key, functional.struct(1, 3)),
        apply=apply,
        channels=channels,
        preprocess=lambda images: images.astype(jnp.float32) / 255 - 0.5,
    )


def drawn(method: Method, views: int = 1, size: int = 16) -> tuple[Any, Any]:
    """Parameters drawn with NumPy, because compiling a method's own initial values takes longer, and its state."""
    examples, rng = batch(views, size=size), np.random.default_rng(0)
    shapes, _ = jax.eval_shape(method.init, jax.random.key(0), examples)
    params = jax.tree.map(lambda leaf: 0.3 * rng.normal(size=leaf.shape).astype(leaf.dtype), shapes)
    return params, jax.jit(lambda key: method.init(key, examples)[1])(jax.random.key(0))


def training_set(classes: int, images: int = 64) -> TrainingSet:
    return TrainingSet(classes, images)


def batch(views: int, *, size: int = 16, classes: int = 4, seed: int = 0) -> Batch:
    """Noise around one picture per class, `size / classes` images of each."""
    rng = np.random.default_rng(seed)
    pictures = np.random.default_rng(1).integers(0, 256, (classes, SIDE, SIDE, 3))
    labels = np.repeat(np.arange(classes), size // classes)
    images = pictures[labels][None] * 0.7 + rng.integers(0, 76, (views, size, SIDE, SIDE, 3))
    numbers = np.arange(size, dtype=np.int32)
    return Batch(jnp.asarray(images.astype(np.uint8)), jnp.asarray(labels.astype(np.int32)), jnp.asarray(numbers))


def few_digits(one_in: int) -> Callable[[Data], dict[str, Split]]:
    """In place of `digits.load`: one in so many images of each split."""
    load = digits.load
    return lambda data: {name: take(s, np.arange(0, len(s.labels), one_in)) for name, s in load(data).items()}
