"""Positions of the patches of vision transformers: resizing learned ones, and rotary ones."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.numerics import at_least_float32

Interpolation = Literal["antialiased", "bicubic", "offset"]


def resizing_weights(old: int, new: int, interpolation: Interpolation) -> np.ndarray:
    """Weights float64 [new, old] with which torch resizes one axis (bicubic, `align_corners=False`).

    "antialiased" widens the kernel (Keys, a = -0.5) when it shrinks, and leaves out what is beyond the edge; the others
    (a = -0.75) repeat the edge, and "offset" scales by (new + 0.1) / old, as the code of DINO does.
    """
    antialiased = interpolation == "antialiased"
    a, overhang = (-0.5, 0) if antialiased else (-0.75, 3)
    step = old / (new + 0.1 if interpolation == "offset" else new)
    sources = np.arange(-overhang, old + overhang)
    d = np.abs((np.arange(new)[:, None] + 0.5) * step - (sources + 0.5))
    d /= max(step, 1.0) if antialiased else 1.0
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * (d**3 - 5 * d**2 + 8 * d - 4)
    taps = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
    weights = np.zeros((new, old))
    np.add.at(weights.T, sources.clip(0, old - 1), taps.T)
    return weights / weights.sum(axis=1, keepdims=True)


def patch_angles(cells: tuple[int, ...], channels: int) -> np.ndarray:
    """Angles of rotary positions along two axes, as in DINOv3 (Siméoni et al., 2025).

    The centre of cell i of n has the coordinate (2 i + 1) / n - 1, and the angles of an axis are 2 pi times its
    coordinate times 100^(-4 k / d), k = 0, 1, ...: the same range for images of any size.

    The cells are (rows, columns) of patches; d, the channels of a head, is a multiple of 4. The result is float64
    [rows * columns, d / 2], patches by rows; the first d / 4 angles are those of the row.
    """
    frequencies = 2 * np.pi * 100.0 ** -np.arange(0, 1, 4 / channels)
    rows, columns = (((2 * np.arange(n) + 1) / n - 1)[:, None] * frequencies for n in cells)
    return np.concatenate([np.repeat(rows, cells[1], axis=0), np.tile(columns, (cells[0], 1))], axis=1)


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotates the pairs of channels (k, k + d / 2) of the last P tokens by angles [P, d / 2]; others have no position.

    x, queries or keys, is float [B, N, heads, d].
    """
    before = x.shape[1] - angles.shape[0]
    first, second = jnp.split(at_least_float32(x[:, before:]), 2, axis=-1)
    angles = angles.astype(first.dtype)[None, :, None, :]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return jnp.concatenate([x[:, :before], rotated.astype(x.dtype)], axis=1)
