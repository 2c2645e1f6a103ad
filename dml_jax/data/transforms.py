"""Geometry of the images, on the host: what must be done before images have one size and can be stacked.

Rules and pixels are those of torchvision's transforms on Pillow images, which the papers' codes use. Pillow changed the
order of its two resizing passes in version 13, which moves some values by one level; the authors ran older ones.
"""

from collections.abc import Callable
from math import exp, log, sqrt

import numpy as np
from PIL import Image

from dml_jax.config import Data

Box = tuple[int, int, int, int]  # top, left, height, width in pixels


def training(data: Data) -> Callable[[np.ndarray, np.random.Generator], np.ndarray]:
    """(image uint8 [h, w, 3], rng) -> uint8 [H, W, 3], as the training sees it but for what the device does."""
    size = data.image_size

    def random_resized(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if data.resize_first:
            image = resize_shorter(image, data.resize)
        box = random_resized_box(image.shape[0], image.shape[1], data.crop_scale, data.crop_ratio, rng)
        return resize(cut(image, box), size, size)

    def random(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        image = resize_shorter(image, data.resize)
        top, left = rng.integers(image.shape[0] - size + 1), rng.integers(image.shape[1] - size + 1)
        return cut(image, (int(top), int(left), size, size))

    same = testing(data)
    crops = {"random_resized": random_resized, "random": random}
    return crops.get(data.crop, lambda image, rng: same(image))


def testing(data: Data) -> Callable[[np.ndarray], np.ndarray]:
    """image uint8 [h, w, 3] -> uint8 [H, W, 3], as the evaluation sees it."""
    if data.crop == "none":
        return lambda image: image
    return lambda image: centre_crop(resize_shorter(image, data.resize), data.image_size)


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Pillow's bilinear resizing, antialiased where it shrinks: uint8 [h, w, 3] -> uint8 [height, width, 3]."""
    if image.shape[:2] == (height, width):
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))


def resize_shorter(image: np.ndarray, size: int) -> np.ndarray:
    """Resizes so that the shorter side has `size` pixels and the longer floor(size * longer / shorter)."""
    height, width = image.shape[:2]
    if width <= height:
        return resize(image, int(size * height / width), size)
    return resize(image, size, int(size * width / height))


def cut(image: np.ndarray, box: Box) -> np.ndarray:
    """The pixels inside a box, uint8 [height, width, 3]: a view, as whoever resizes or stacks it copies it anyway."""
    top, left, height, width = box
    return image[top : top + height, left : left + width]


def centre_crop(image: np.ndarray, size: int) -> np.ndarray:
    """The middle `size` x `size` pixels; offsets round half to even; images too small are padded with zeros first."""
    missing = [max(size - side, 0) for side in image.shape[:2]]
    if any(missing):
        image = np.pad(image, [(m // 2, (m + 1) // 2) for m in missing] + [(0, 0)])
    top, left = (round((side - size) / 2) for side in image.shape[:2])
    return cut(image, (top, left, size, size))


def random_resized_box(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], rng: np.random.Generator
) -> Box:
    """Where RandomResizedCrop cuts: torchvision's rule, 10 tries and then the largest box of allowed shape.

    Args:
      height, width: of the image in pixels.
      scale: least and greatest share of the image's area; uniform between them.
      ratio: least and greatest width / height; log-uniform between them.
    """
    area, logs = height * width, (log(ratio[0]), log(ratio[1]))
    for _ in range(10):
        wanted = area * rng.uniform(*scale)
        shape = exp(rng.uniform(*logs))
        w, h = round(sqrt(wanted * shape)), round(sqrt(wanted / shape))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
    w, h = width, height
    if width / height < ratio[0]:
        h = round(width / ratio[0])
    elif width / height > ratio[1]:
        w = round(height * ratio[1])
    return (height - h) // 2, (width - w) // 2, h, w
