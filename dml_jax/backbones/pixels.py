"""Normalisation of uint8 images as published weights expect it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dml_jax.options.backbones import CAFFE, Pixels

__all__ = ["CAFFE", "Pixels", "preprocess"]


def preprocess(pixels: Pixels) -> Callable[[jax.Array], jax.Array]:
    """uint8 [B, H, W, 3] RGB -> float [B, H, W, 3], normalised: float64 where JAX is told to use it, else float32."""

    def normalise(images: jax.Array) -> jax.Array:
        values = jnp.asarray(images, float) * (pixels.top / 255.0)
        if pixels.order == "bgr":
            values = values[..., ::-1]
        mean, std = jnp.asarray(pixels.mean, values.dtype), jnp.asarray(pixels.std, values.dtype)
        return (values - mean[None, None, None, :]) / std[None, None, None, :]

    return normalise
