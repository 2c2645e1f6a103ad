"""Depthwise convolution on a CPU: one kernel per channel.

XLA computes it one channel at a time. As a sum over the cells of the kernel of shifted images, each weighted per
channel, it is one loop over contiguous channels, which XLA vectorises; so is the gradient with respect to the images.
The images must be padded in a loop of their own, hence the barriers: otherwise every shift would test for the border.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dml_jax.numerics import at_least_float32

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]
Saved = tuple[jax.Array, jax.Array]

WIDE = 28  # columns from which the kernel's gradient is first summed along each row, so that its inputs stay cached


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def depthwise(strides: Pair, padding: Padding, images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolves every channel with its own kernel; no side of a kernel may be shorter than the stride.

    Images [B, H, W, C] and kernel [k, k', 1, C] -> float [B, H', W', C], accumulated in at least float32. The padding
    is (before, after) rows and columns.
    """
    return _convolve(pad(images, padding), kernel, strides)


def _forward(strides: Pair, padding: Padding, images: jax.Array, kernel: jax.Array) -> tuple[jax.Array, Saved]:
    padded = pad(images, padding)
    return _convolve(padded, kernel, strides), (padded, kernel)


def _backward(strides: Pair, padding: Padding, saved: Saved, grad: jax.Array) -> Saved:
    padded, kernel = saved
    around = _image_gradient(grad, kernel, padded.shape[1:3], strides)
    inside = (slice(before, n - after) for n, (before, after) in zip(padded.shape[1:3], padding, strict=True))
    return around[:, *inside], _kernel_gradient(padded, kernel, grad, strides)


def pad(images: jax.Array, padding: Sequence[Pair]) -> jax.Array:
    """Images [B, H, W, C] with zeros around them, computed before anything that uses them."""
    return lax.optimization_barrier(jnp.pad(images, ((0, 0), *padding, (0, 0))))


def shifts(padded: jax.Array, size: tuple[int, ...], strides: Pair) -> list[jax.Array]:
    """For each cell of a kernel of this size, the pixels that it multiplies: [B, H', W', C]."""
    rows, columns = (n - k + 1 for n, k in zip(padded.shape[1:3], size, strict=True))
    cells = product(range(size[0]), range(size[1]))
    return [padded[:, i : i + rows : strides[0], j : j + columns : strides[1]] for i, j in cells]


def _convolve(padded: jax.Array, kernel: jax.Array, strides: Pair) -> jax.Array:
    weights = at_least_float32(kernel).reshape(-1, 1, 1, 1, kernel.shape[-1])
    moved = shifts(at_least_float32(padded), kernel.shape[:2], strides)
    products = [each * cell for each, cell in zip(moved, weights, strict=True)]
    return sum(products[1:], products[0]).astype(padded.dtype)


def _image_gradient(grad: jax.Array, kernel: jax.Array, size: tuple[int, ...], strides: Pair) -> jax.Array:
    """The gradient with respect to padded images of `size` pixels."""
    # Row i of the kernel multiplies row s o + i of the images for row o of the result. So the rows s q + r of the
    # gradient are those of a convolution at stride 1 with the rows i = r, r + s, r + 2 s … of the kernel, and likewise
    # for columns; these convolutions are interleaved.
    needed = [-(-n // stride) for n, stride in zip(size, strides, strict=True)]
    before = [(k - 1) // stride for k, stride in zip(kernel.shape[:2], strides, strict=True)]
    after = [n - m for n, m in zip(needed, grad.shape[1:3], strict=True)]
    surrounded = pad(grad, list(zip(before, after, strict=True)))

    def part(r: int, c: int) -> jax.Array:
        cells = kernel[r :: strides[0], c :: strides[1]][::-1, ::-1]
        rows, columns = (b + 1 - k for b, k in zip(before, cells.shape[:2], strict=True))  # not all need b rows before
        return _convolve(surrounded[:, rows:, columns:], cells, (1, 1))

    parts = jnp.stack([jnp.stack([part(r, c) for c in range(strides[1])], 3) for r in range(strides[0])], 2)
    # [B, rows, s, columns, s', C]
    return parts.reshape(len(grad), needed[0] * strides[0], needed[1] * strides[1], -1)[:, : size[0], : size[1]]


def _kernel_gradient(padded: jax.Array, kernel: jax.Array, grad: jax.Array, strides: Pair) -> jax.Array:
    """The sums over all pixels of the products of the shifted images with the gradient of the result."""
    # One reduction with an accumulator per cell reads the images once; sums of each row or image are added afterwards.
    wide = at_least_float32(grad)
    products = tuple(each * wide for each in shifts(at_least_float32(padded), kernel.shape[:2], strides))
    zeros = (np.zeros((), wide.dtype),) * len(products)
    axes = (2,) if grad.shape[2] >= WIDE else (1, 2)
    sums = lax.reduce(products, zeros, lambda a, b: tuple(map(jnp.add, a, b)), axes)
    cells = jnp.stack([each.reshape(-1, each.shape[-1]).sum(axis=0) for each in sums])
    return cells.reshape(kernel.shape).astype(kernel.dtype)


depthwise.defvjp(_forward, _backward)
