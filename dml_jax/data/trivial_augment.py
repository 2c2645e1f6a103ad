"""TrivialAugment (Müller and Hutter, ICCV 2021, "Wide"): one random operation of random strength per image.

Operations and strengths are those of torchvision's TrivialAugmentWide on Pillow images, which rounds strengths to
float32: some pixels differ by one level, and its middle translation is 15 pixels instead of 16. Geometric operations
take the nearest pixel, black outside of the image.
"""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

LEVELS = 31  # strengths, from none to the greatest, at equal distances


class Operation(NamedTuple):
    """An operation: `change` of an image by a strength, in -greatest..greatest if `signed`, else in 0..greatest."""

    change: Callable[[Image.Image, float], Image.Image]
    greatest: float = 0
    signed: bool = False


def augment(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random operation on an image uint8 [h, w, 3] -> uint8 [h, w, 3]."""
    name = list(OPERATIONS)[rng.integers(len(OPERATIONS))]
    return apply(image, name, int(rng.integers(LEVELS)), bool(rng.integers(2)))


def apply(image: np.ndarray, name: str, level: int, negative: bool = False) -> np.ndarray:
    """An operation by its name, of a level in 0..`LEVELS` - 1; `negative` reverses those with a direction."""
    change, greatest, signed = OPERATIONS[name]
    strength = level * greatest / (LEVELS - 1)
    return np.asarray(change(Image.fromarray(image), -strength if negative and signed else strength))


def _affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


def _enhanced(kind: Any, image: Image.Image, strength: float) -> Image.Image:
    result: Image.Image = kind(image).enhance(1 + strength)
    return result


OPERATIONS = {
    "identity": Operation(lambda image, _: image),
    "shear_x": Operation(lambda image, s: _affine(image, 1, s, 0, 0, 1, 0), 0.99, True),
    "shear_y": Operation(lambda image, s: _affine(image, 1, 0, 0, s, 1, 0), 0.99, True),
    "translate_x": Operation(lambda image, s: _affine(image, 1, 0, -int(s), 0, 1, 0), 32, True),  # pixels
    "translate_y": Operation(lambda image, s: _affine(image, 1, 0, 0, 0, 1, -int(s)), 32, True),
    "rotate": Operation(lambda image, s: image.rotate(s), 135, True),  # degrees
    "brightness": Operation(partial(_enhanced, ImageEnhance.Brightness), 0.99, True),
    "color": Operation(partial(_enhanced, ImageEnhance.Color), 0.99, True),
    "contrast": Operation(partial(_enhanced, ImageEnhance.Contrast), 0.99, True),
    "sharpness": Operation(partial(_enhanced, ImageEnhance.Sharpness), 0.99, True),
    "posterize": Operation(lambda image, s: ImageOps.posterize(image, 8 - round(s)), 6),  # bits fewer
    "solarize": Operation(lambda image, s: ImageOps.solarize(image, ceil(255 - s)), 255),
    "autocontrast": Operation(lambda image, _: ImageOps.autocontrast(image)),
    "equalize": Operation(lambda image, _: ImageOps.equalize(image)),
}
