"""Augmentation of training images on the device: flips, colour jitter, greyscale, random erasing.

Pure functions of a key, called inside the jitted step; images are augmented independently.
"""

import jax
import jax.numpy as jnp

from dml_jax.config import Data

LUMA = (0.299, 0.587, 0.114)  # weights of red, green, blue (ITU-R BT.601), as in Pillow's greyscale
ERASED = (0.4914, 0.4822, 0.4465)  # erased pixel, normalised, in the network's channel order
TRIES = 100  # random boxes that are tried until one fits into the image
AREA = (0.02, 0.4)  # range of an erased box's share of the image's area
RATIO = (0.3, 1 / 0.3)  # range of its height / width


def apply(images: jax.Array, key: jax.Array, data: Data) -> jax.Array:
    """The flips, colour jitter and greyscale that `data` enables, on images uint8 [..., H, W, 3].

    Random erasing is separate (`erase`) because it follows the normalisation.
    """
    flip, colour, grey = jax.random.split(key, 3)
    each = (*images.shape[:-3], 1, 1, 1)
    if data.flip:
        flipped = jax.random.bernoulli(flip, data.flip, each)
        images = jnp.where(flipped, images[..., ::-1, :], images)
    if not data.jitter and not data.greyscale:
        return images
    values = images.astype(float)
    if data.jitter:
        low, high = 1 - data.jitter, 1 + data.jitter
        values = jitter(values, *jax.random.uniform(colour, (3, *each), minval=low, maxval=high))
    if data.greyscale:
        values = jnp.where(jax.random.bernoulli(grey, data.greyscale, each), luma(values), values)
    return jnp.clip(jnp.round(values), 0, 255).astype(jnp.uint8)


def jitter(
    values: jax.Array, brightness: jax.Array, contrast: jax.Array, saturation: jax.Array
) -> jax.Array:
    """Scales brightness, contrast about the image's mean grey, saturation about each pixel's.

    Values float [..., H, W, 3] in 0..255, factors float [..., 1, 1, 1]; 1 changes nothing.
    """
    values = jnp.clip(values * brightness, 0, 255)
    mean = jnp.mean(luma(values), axis=(-3, -2), keepdims=True)
    values = jnp.clip(mean + contrast * (values - mean), 0, 255)
    grey = luma(values)
    return jnp.clip(grey + saturation * (values - grey), 0, 255)


def luma(values: jax.Array) -> jax.Array:
    """The greyscale value of each pixel: [..., H, W, 3] -> [..., H, W, 1]."""
    weights = jnp.asarray(LUMA, values.dtype).reshape((1,) * (values.ndim - 1) + (3,))
    return jnp.sum(values * weights, -1, keepdims=True)


def erase(inputs: jax.Array, key: jax.Array, probability: float) -> jax.Array:
    """Random erasing in normalised images [B, H, W, 3] as in MPN's code, with a uniformly drawn
    height / width."""
    count, height, width, _ = inputs.shape
    boxes = erased_boxes(key, probability, count, height, width)
    top, left, box_height, box_width = (value[:, None, None] for value in boxes)
    rows, columns = jnp.arange(height)[None, :, None], jnp.arange(width)[None, None, :]
    in_rows = (rows >= top) & (rows < top + box_height)
    erased = in_rows & (columns >= left) & (columns < left + box_width)
    fill = jnp.asarray(ERASED, inputs.dtype)[None, None, None, :]
    return jnp.where(erased[..., None], fill, inputs)


def erased_boxes(
    key: jax.Array, probability: float, count: int, height: int, width: int
) -> tuple[jax.Array, ...]:
    """(top, left, height, width) of a random box in each image, int [count] each, in pixels.

    An image has a box with this probability; otherwise, the height is 0.
    """
    chance, *draws = jax.random.split(key, 4)
    shares = jax.random.uniform(draws[0], (count, TRIES), minval=AREA[0], maxval=AREA[1])
    ratios = jax.random.uniform(draws[1], (count, TRIES), minval=RATIO[0], maxval=RATIO[1])
    corners = jax.random.uniform(draws[2], (count, TRIES, 2))
    boxes = jax.vmap(erased_box, (0, 0, 0, None, None))(shares, ratios, corners, height, width)
    top, left, box_height, box_width = boxes
    has_box = jax.random.bernoulli(chance, probability, (count,))
    return top, left, jnp.where(has_box, box_height, 0), box_width


def erased_box(
    shares: jax.Array, ratios: jax.Array, corners: jax.Array, height: int, width: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The first of T boxes that fits: int (top, left, height, width); height 0 if none fits.

    `shares` float [T] are shares of the area, `ratios` float [T] height / width, and `corners`
    float [T, 2] in [0, 1) the top left corners relative to the range in which the box fits.
    """
    area = shares * (height * width)
    heights = jnp.round(jnp.sqrt(area * ratios)).astype(jnp.int32)
    widths = jnp.round(jnp.sqrt(area / ratios)).astype(jnp.int32)
    fits = (heights < height) & (widths < width)
    first = jnp.argmax(fits)
    box_height, box_width = jnp.where(fits.any(), heights[first], 0), widths[first]
    largest = jnp.stack([height - box_height, width - box_width])
    top, left = jnp.minimum(jnp.floor(corners[first] * (largest + 1)).astype(jnp.int32), largest)
    return top, left, box_height, box_width
