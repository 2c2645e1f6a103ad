"""A backbone small enough to compile in no time, and images to feed it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.backbones.contract import Backbone
from dml_jax.methods.contract import Batch

SIDE, PATCH = 8, 4


def backbone(channels: int = 12, dtype: Any = None) -> Backbone:
    """Patches of 4x4 pixels through one linear layer and a ReLU: feature map [B, 2, 2, channels].

    Args:
      channels: of the feature map.
      dtype: of the feature map; None for that of the parameters.
    """

    def init(key: jax.Array, shape: tuple[int, int]) -> tuple[Any, Any]:
        return {
            "kernel": jax.random.normal(key, (PATCH * PATCH * 3, channels)) * 0.2,
            "bias": jnp.zeros(channels),
        }, {}

    def apply(params: Any, stats: Any, inputs: jax.Array, *, train: bool, key: Any) -> tuple[jax.Array, Any]:
        count, side = inputs.shape[0], SIDE // PATCH
        patches = inputs.reshape(count, side, PATCH, side, PATCH, 3).transpose(0, 1, 3, 2, 4, 5)
        patches = patches.reshape(count, side, side, -1).astype(params["kernel"].dtype)
        features = jax.nn.relu(patches @ params["kernel"] + params["bias"][None, None, None])
        return features if dtype is None else features.astype(dtype), stats

    return Backbone(init, apply, channels, preprocess=lambda images: images.astype(jnp.float32) / 255)


def batch(views: int, *, size: int = 16, classes: int = 4, seed: int = 0) -> Batch:
    """Noise around one picture a class, `size / classes` images of each."""
    rng = np.random.default_rng(seed)
    pictures = np.random.default_rng(1).integers(0, 256, (classes, SIDE, SIDE, 3))
    labels = np.repeat(np.arange(classes), size // classes)
    images = pictures[labels][None] * 0.7 + rng.integers(0, 76, (views, size, SIDE, SIDE, 3))
    return Batch(
        jnp.asarray(images.astype(np.uint8)),
        jnp.asarray(labels, jnp.int32),
        jnp.arange(size, dtype=jnp.int32),
    )
