"""Embeddings at test time that are averaged over flips and scales of an image."""

import jax
import jax.numpy as jnp

from dml_jax.backbones.contract import PyTree
from dml_jax.methods.contract import Embed
from dml_jax.numerics import unit


def averaged(embed: Embed, *, flip: bool, scales: tuple[float, ...]) -> Embed:
    """The mean of the unit embeddings of several versions of each image, scaled to unit length.

    Args:
      embed: see `Method`; for scales other than 1 its network must take images of any size.
      flip: also embeds the mirror image at each scale.
      scales: factors of the image's sides; resizing is bilinear, with antialiasing where images shrink.
    """
    if not flip and scales == (1.0,):
        return embed

    def call(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        total = jnp.zeros(())
        for scale in scales:
            size = tuple(max(1, round(scale * side)) for side in images.shape[1:3])
            shape = (len(images), *size, 3)
            resized = images
            if size != images.shape[1:3]:
                smooth = jax.image.resize(images.astype(jnp.float32), shape, "linear")
                resized = jnp.clip(jnp.round(smooth), 0, 255).astype(jnp.uint8)
            for version in (resized, resized[:, :, ::-1]) if flip else (resized,):
                total += unit(embed(params, model_state, version))
        return unit(total)

    return call
