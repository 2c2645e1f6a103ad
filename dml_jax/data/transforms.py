"""Geometry of the images, on the host: what must be done before images have one size and can be stacked."""

from collections.abc import Callable

import numpy as np

from dml_jax.config import Data


def training(data: Data) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
    """(image uint8 [h, w, 3], rng) -> uint8 [H, W, 3], as the training sees it."""
    return lambda image, rng: image


def testing(data: Data) -> Callable[[np.ndarray], np.ndarray]:
    """image uint8 [h, w, 3] -> uint8 [H, W, 3], as the evaluation sees it."""
    return lambda image: image
