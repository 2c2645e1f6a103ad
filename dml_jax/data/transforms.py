"""Resizing and cropping on the host: images get one size so that they can be stacked.

Boxes and pixels match torchvision's transforms on Pillow images, as in the papers' code. Pillow 13
swaps its two resizing passes, which changes some pixels by one level; the authors' did not.

Images whose longer side is more than `MAX_ASPECT` times the shorter are rejected: enlarging the
shorter side of a file of 100 bytes to 256 pixels would otherwise take gigabytes.
"""

from collections.abc import Callable
from dataclasses import replace
from math import exp, log, sqrt
from typing import Literal, assert_never

import numpy as np
from PIL import Image

from dml_jax.config import Data
from dml_jax.data import arrays, decode
from dml_jax.data.arrays import Shape
from dml_jax.errors import ConfigError, DataError

MAX_ASPECT = 100  # longer side / shorter side
Interpolation = Literal["bilinear", "bicubic"]
Box = tuple[int, int, int, int]  # top, left, height, width in pixels


def training(data: Data) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
    """The crop of training, (image uint8 [h, w, 3], rng) -> uint8 [H, W, 3]."""
    size, method = data.training_side, data.interpolation

    def random_resized(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if data.resize_first:
            image = resize_shorter(image, data.resize, method)
        height, width, _ = image.shape
        box = random_resized_box(height, width, data.crop_scale, data.crop_ratio, rng)
        return resize(crop(image, box), size, size, method)

    def random(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        image = resize_shorter(image, data.resize, method)
        top, left = rng.integers(image.shape[0] - size + 1), rng.integers(image.shape[1] - size + 1)
        return crop(image, (int(top), int(left), size, size))

    match data.crop:
        case "random_resized":
            return random_resized
        case "random":
            return random
        case "centre" | "none":
            deterministic = evaluation(replace(data, image_size=size))
            return lambda image, rng: deterministic(image)
        case _:
            assert_never(data.crop)


def evaluation(data: Data) -> Callable[[np.ndarray], np.ndarray]:
    """The deterministic crop of evaluation: image uint8 [h, w, 3] -> uint8 [H, W, 3]."""
    if data.crop == "none":
        return lambda image: image
    size, method = data.image_size, data.interpolation
    return lambda image: centre_crop(resize_shorter(image, data.resize, method), size)


def check_images_only(data: Data, shape: Shape) -> None:
    """Raises ConfigError for options of images with a data set of other arrays."""
    if arrays.is_image(shape):
        return
    for key in ("crop", "flip", "jitter", "greyscale", "erasing"):
        value = getattr(data, key)
        if value not in ("none", 0):
            what = f"the data set holds {arrays.describe(shape)}, and this option is for images"
            raise ConfigError(f"data.{key}={value!r}: {what}; remove it")


def fit_file(data: Data, shape: Shape, content: bytes) -> np.ndarray:
    """The content of an image file as the network sees it, uint8 [H, W, 3]."""
    with decode.decoded(content, upright=data.exif_rotation) as pixels:
        return fit_pixels(data, shape, pixels)


def fit_image(data: Data, shape: Shape, image: np.ndarray, name: str) -> np.ndarray:
    """An image or array as the network sees it; DataError with its name if it does not fit."""
    try:
        return fit_pixels(data, shape, image)
    except DataError as error:
        raise DataError(f"{name}: {error}") from error


def fit_pixels(data: Data, shape: Shape, image: np.ndarray) -> np.ndarray:
    """As `fit_image`, without the name."""
    pixels = evaluation(data)(image)
    if arrays.shape_of(pixels) != shape:
        size, takes = (arrays.describe(s) for s in (arrays.shape_of(image), shape))
        remedy = "give rows of this shape and type"
        if arrays.is_image(shape):
            takes = f"images of {takes.removesuffix(' pixels')} without cropping"
            remedy = "resize it, or train with data.crop"
        raise DataError(f"is {size}, but the model takes {takes}; {remedy}")
    return pixels


def resize(
    image: np.ndarray, height: int, width: int, method: Interpolation = "bilinear"
) -> np.ndarray:
    """Resizing by Pillow, antialiased when shrinking: uint8 [h, w, 3] -> [height, width, 3]."""
    if image.shape[:2] == (height, width):
        return image
    filter = Image.Resampling[method.upper()]
    return np.asarray(_pillow(image).resize((width, height), filter))


def _pillow(image: np.ndarray) -> Image.Image:
    """A Pillow image of pixels or a crop of them, without the copy that `Image.fromarray` makes."""
    if image.strides[0] < 0 or image.strides[1:] != (3, 1):
        image = np.ascontiguousarray(image)
    (height, width, _), stride = image.shape, image.strides[0]
    size = stride * (height - 1) + 3 * width
    flat = np.lib.stride_tricks.as_strided(image, (size,), (1,), writeable=False)
    return Image.frombuffer("RGB", (width, height), flat, "raw", "RGB", stride, 1)


def check_aspect(image: np.ndarray) -> None:
    """Raises DataError if the longer side exceeds `MAX_ASPECT` times the shorter."""
    height, width = image.shape[:2]
    if max(height, width) > MAX_ASPECT * min(height, width):
        what = f"one side is more than {MAX_ASPECT} times the other"
        raise DataError(f"{width}x{height} pixels: {what}; crop it")


def resize_shorter(image: np.ndarray, size: int, method: Interpolation = "bilinear") -> np.ndarray:
    """Resizes the shorter side to `size`, the longer one to floor(size * longer / shorter)."""
    check_aspect(image)
    height, width = image.shape[:2]
    if width <= height:
        return resize(image, int(size * height / width), size, method)
    return resize(image, size, int(size * width / height), method)


def crop(image: np.ndarray, box: Box) -> np.ndarray:
    """The pixels inside a box, uint8 [height, width, 3]: a view, not a copy."""
    top, left, height, width = box
    return image[top : top + height, left : left + width]


def centre_crop(image: np.ndarray, size: int) -> np.ndarray:
    """The central `size` x `size` pixels, rounded half to even; small images are padded with 0."""
    missing = [max(size - side, 0) for side in image.shape[:2]]
    if any(missing):
        image = np.pad(image, [(m // 2, (m + 1) // 2) for m in missing] + [(0, 0)])
    top, left = (round((side - size) / 2) for side in image.shape[:2])
    return crop(image, (top, left, size, size))


def random_resized_box(
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    rng: np.random.Generator,
) -> Box:
    """The box of torchvision's RandomResizedCrop: 10 random tries, then the largest central box.

    `scale` is the range of the box's share of the image's area, drawn uniformly, and `ratio` the
    range of its width / height, drawn log-uniformly.
    """
    area, logs = height * width, (log(ratio[0]), log(ratio[1]))
    for _ in range(10):
        target_area = area * rng.uniform(*scale)
        target_ratio = exp(rng.uniform(*logs))
        w, h = round(sqrt(target_area * target_ratio)), round(sqrt(target_area / target_ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
    w, h = width, height
    if width / height < ratio[0]:
        h = round(width / ratio[0])
    elif width / height > ratio[1]:
        w = round(height * ratio[1])
    return (height - h) // 2, (width - w) // 2, h, w
