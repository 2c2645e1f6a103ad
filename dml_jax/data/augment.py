"""What becomes of the training images on the device: flips, colours, random erasing.

Pure functions of a key, to be called inside the jitted step. Every image of every view is drawn for itself.
"""

import jax
import jax.numpy as jnp

from dml_jax.config import Data

LUMA = (0.299, 0.587, 0.114)  # of red, green, blue (ITU-R BT.601), as Pillow's greyscale
ERASED = (
    0.4914,
    0.4822,
    0.4465,
)  # value of an erased pixel, in normalised units and the network's channel order
TRIES = 100
AREA, RATIO = (0.02, 0.4), (0.3, 1 / 0.3)  # of the erased box: share of the image, height / width


def images(pixels: jax.Array, key: jax.Array, data: Data) -> jax.Array:
    """Flips, jitters and greys training images as `data` says; returns them as they are where it says nothing.

    Args:
      pixels: uint8 [..., H, W, 3].
      key: of the step.

    Returns:
      uint8 [..., H, W, 3].
    """
    flip, colour, grey = jax.random.split(key, 3)
    each = (*pixels.shape[:-3], 1, 1, 1)
    if data.flip:
        pixels = jnp.where(jax.random.bernoulli(flip, data.flip, each), pixels[..., ::-1, :], pixels)
    if not data.jitter and not data.greyscale:
        return pixels
    values = pixels.astype(jnp.float32)
    if data.jitter:
        values = jitter(values, *jax.random.uniform(colour, (3, *each), minval=1 - data.jitter, maxval=1 + data.jitter))
    if data.greyscale:
        values = jnp.where(jax.random.bernoulli(grey, data.greyscale, each), luma(values), values)
    return jnp.clip(jnp.round(values), 0, 255).astype(jnp.uint8)


def jitter(values: jax.Array, brightness: jax.Array, contrast: jax.Array, saturation: jax.Array) -> jax.Array:
    """Scales brightness, then the distance to the image's mean grey, then that to each pixel's grey.

    Args:
      values: float [..., H, W, 3], levels 0..255.
      brightness, contrast, saturation: float [..., 1, 1, 1], 1 changes nothing.
    """
    values = jnp.clip(values * brightness, 0, 255)
    mean = jnp.mean(luma(values), axis=(-3, -2), keepdims=True)
    values = jnp.clip(mean + contrast * (values - mean), 0, 255)
    grey = luma(values)
    return jnp.clip(grey + saturation * (values - grey), 0, 255)


def luma(values: jax.Array) -> jax.Array:
    """Brightness of each pixel, float [..., H, W, 1]."""
    return jnp.sum(values * jnp.asarray(LUMA, values.dtype).reshape((1,) * (values.ndim - 1) + (3,)), -1, keepdims=True)


def erase(inputs: jax.Array, key: jax.Array, probability: float) -> jax.Array:
    """Random erasing as in the MPN authors' code: on normalised images, height / width drawn uniformly.

    Args:
      inputs: float [B, H, W, 3], normalised.
      key: of the step.
      probability: that an image loses a box.

    Returns:
      float [B, H, W, 3].
    """
    count, height, width, _ = inputs.shape
    boxes = erased_boxes(key, probability, count, height, width)
    top, left, tall, wide = (side[:, None, None] for side in boxes)
    rows, columns = jnp.arange(height)[None, :, None], jnp.arange(width)[None, None, :]
    gone = (rows >= top) & (rows < top + tall) & (columns >= left) & (columns < left + wide)
    return jnp.where(gone[..., None], jnp.asarray(ERASED, inputs.dtype)[None, None, None, :], inputs)


def erased_boxes(key: jax.Array, probability: float, count: int, height: int, width: int) -> tuple[jax.Array, ...]:
    """Draws a box for each of `count` images: int [count] top, left, height, width; height 0 where none is erased."""
    chance, *draws = jax.random.split(key, 4)
    shares = jax.random.uniform(draws[0], (count, TRIES), minval=AREA[0], maxval=AREA[1])
    ratios = jax.random.uniform(draws[1], (count, TRIES), minval=RATIO[0], maxval=RATIO[1])
    corners = jax.random.uniform(draws[2], (count, TRIES, 2))
    top, left, tall, wide = jax.vmap(erased_box, (0, 0, 0, None, None))(shares, ratios, corners, height, width)
    return top, left, jnp.where(jax.random.bernoulli(chance, probability, (count,)), tall, 0), wide


def erased_box(
    shares: jax.Array, ratios: jax.Array, corners: jax.Array, height: int, width: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The first box that fits, from numbers drawn beforehand, one row a try.

    Args:
      shares: float [T], share of the image's area.
      ratios: float [T], height / width.
      corners: float [T, 2] in [0, 1), where between its extremes the top left corner lies.
      height, width: of the image in pixels.

    Returns:
      int (top, left, height, width) of the box; height 0 where none fits.
    """
    area = shares * (height * width)
    tall = jnp.round(jnp.sqrt(area * ratios)).astype(jnp.int32)
    wide = jnp.round(jnp.sqrt(area / ratios)).astype(jnp.int32)
    fits = (tall < height) & (wide < width)
    first = jnp.argmax(fits)
    tall, wide = jnp.where(fits.any(), tall[first], 0), wide[first]
    room = jnp.stack([height - tall, width - wide])
    top, left = jnp.minimum(jnp.floor(corners[first] * (room + 1)).astype(jnp.int32), room)
    return top, left, tall, wide
