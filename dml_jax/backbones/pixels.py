"""Normalisation of uint8 images as published weights expect it."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from dml_jax.config.fields import Positive, section

__all__ = ["CAFFE", "Pixels", "preprocess"]


@section
class Pixels:
    """(x - mean) / std, where x are pixels rescaled to [0, top], with their channels in `order`."""

    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # in `order`, in [0, top]
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    top: Positive = 1.0  # value of the pixel 255: 1 or 255
    order: Literal["rgb", "bgr"] = "rgb"


CAFFE = Pixels(mean=(104.0, 117.0, 128.0), std=(1.0, 1.0, 1.0), top=255.0, order="bgr")  # of BN-Inception's weights


def preprocess(pixels: Pixels) -> Callable[[jax.Array], jax.Array]:
    """uint8 [B, H, W, 3] RGB -> float [B, H, W, 3], normalised: float64 where JAX is told to use it, else float32."""

    def normalise(images: jax.Array) -> jax.Array:
        values = jnp.asarray(images, float) * (pixels.top / 255.0)
        if pixels.order == "bgr":
            values = values[..., ::-1]
        mean, std = jnp.asarray(pixels.mean, values.dtype), jnp.asarray(pixels.std, values.dtype)
        return (values - mean[None, None, None, :]) / std[None, None, None, :]

    return normalise
