"""The 2-D convolution of all networks: XLA's, except where another form is faster on a CPU.

On CPUs, 1x1 convolutions are computed as matrix products, and depthwise ones, with one kernel per
channel, as sums of shifted products, 50 times as fast as XLA's. Accelerators run XLA's own
convolutions. Values and gradients agree to rounding; `benchmarks/backbones.py` compares the
networks with torch.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from itertools import product
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import Mesh, PartitionSpec

from dml_jax.numerics import at_least_float32, within

Convolution = Callable[[jax.Array, jax.Array], jax.Array]
Pair = tuple[int, int]
Padding = tuple[Pair, Pair]
Saved = tuple[jax.Array, jax.Array]

_PLAIN = ContextVar("plain", default=False)
_DEVICES: ContextVar[Mesh | None] = ContextVar("devices", default=None)


def plain() -> AbstractContextManager[None]:
    """Context in which XLA's convolutions and pooling are traced for every platform, for export.

    Only within it do convolutional networks have forward-mode derivatives, in float32 or float64.
    Elsewhere, convolutions, pooling and batch normalisation have custom gradients, which are faster
    and can be differentiated again, but only in reverse mode.
    """
    return within(_PLAIN, True)


def batches_over(mesh: Mesh) -> AbstractContextManager[None]:
    """Context in which batches are split over a mesh; see `_rounded` and `standardize`."""
    return within(_DEVICES, mesh)


def is_plain() -> bool:
    """Whether this is traced within `plain`."""
    return _PLAIN.get()


def devices_of(x: jax.Array) -> Mesh | None:
    """The mesh of `batches_over` if x is split evenly over more than one device."""
    mesh = _DEVICES.get()
    return None if mesh is None or mesh.size == 1 or len(x) % mesh.size else mesh


def convolve(
    inputs: jax.Array,
    kernel: jax.Array,
    strides: Pair,
    padding: Padding | Literal["SAME"],
    groups: int,
) -> jax.Array:
    """Inputs [B, H, W, C] convolved with a kernel [k, k, C / groups, C'] -> float [B, H', W', C'].

    The padding is (before, after) rows and columns, or "SAME". A kernel with a wider type than the
    inputs is rounded to theirs; its gradient is not.
    """
    if padding == "SAME":
        rows, columns = lax.padtype_to_pads(inputs.shape[1:3], kernel.shape[:2], strides, padding)
        padding = (int(rows[0]), int(rows[1])), (int(columns[0]), int(columns[1]))

    general = partial(
        lax.conv_general_dilated,
        window_strides=strides,
        padding=padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
        # Gradients are traced where `jax.default_matmul_precision` does not reach.
        precision=jax.default_matmul_precision.value,
    )

    per_channel = groups == inputs.shape[-1] == kernel.shape[-1]
    shiftable = per_channel and max(strides) <= min(kernel.shape[:2])
    if is_plain() or (groups > 1 and not shiftable):
        return general(inputs, kernel.astype(inputs.dtype))
    on_cpu: Convolution = general
    if groups > 1:
        on_cpu = partial(depthwise, strides, padding)
    elif kernel.shape[:2] == (1, 1) and not any(map(any, padding)):
        on_cpu = partial(_pointwise, strides)
    default: Convolution = partial(_rounded, general, devices_of(inputs))
    narrow = lambda x, k: on_cpu(x, k.astype(x.dtype))  # noqa: E731
    return lax.platform_dependent(inputs, kernel, cpu=narrow, default=default)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rounded(general: Convolution, mesh: Mesh | None, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """A convolution with the kernel rounded to the type of x.

    The devices' gradients of the kernel are summed in the kernel's type; the compiler would sum
    them in that of x, and cuDNN, asked for the wider type, would also widen the operands.
    """
    return general(x, kernel.astype(x.dtype))


def _rounded_backward(
    general: Convolution, mesh: Mesh | None, saved: Saved, grad: jax.Array
) -> Saved:
    x, kernel = saved
    narrow = kernel.astype(x.dtype)

    def local(x: jax.Array, narrow: jax.Array, grad: jax.Array) -> jax.Array:
        """The kernel's gradient from a device's part of the batch."""
        (gradient,) = jax.linear_transpose(lambda narrow: general(x, narrow), narrow)(grad)
        # In the kernel's layout: otherwise XLA would copy kernel and moments into cuDNN's layout,
        # update them, and copy them back. The barrier keeps XLA from fusing the transpose with the
        # update, after which it could not overwrite the kernel in place.
        layout = Layout(tuple(range(gradient.ndim)))
        stored = with_layout_constraint(gradient.astype(kernel.dtype), layout)
        return lax.optimization_barrier(stored)

    def summed(axis: str, x: jax.Array, narrow: jax.Array, grad: jax.Array) -> Saved:
        gradient = local(x, narrow, grad)
        if narrow.shape[:2] == (1, 1):
            # Otherwise XLA would fuse the rounded kernel, which the gradient of x needs, with the
            # update, and all layers below would wait for the sum over the devices. Larger kernels
            # are also transposed, which XLA does not fuse.
            gradient, narrow = lax.optimization_barrier((gradient, narrow))
        return lax.psum(gradient, axis), narrow

    if mesh is None:
        gradient = local(x, narrow, grad)
    else:
        axis, everywhere = mesh.axis_names[0], PartitionSpec()
        rows = PartitionSpec(axis)
        gradient, narrow = jax.shard_map(
            partial(summed, axis),
            mesh=mesh,
            in_specs=(rows, everywhere, rows),
            out_specs=everywhere,
            check_vma=False,  # otherwise JAX would sum the gradient of the replicated kernel itself
        )(x, narrow, grad)
    (x_gradient,) = jax.linear_transpose(lambda x: general(x, narrow), x)(grad)
    return x_gradient, gradient


_rounded.defvjp(lambda *arguments: (_rounded(*arguments), arguments[2:]), _rounded_backward)


def _pointwise(strides: Pair, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
    sampled = inputs[:, :: strides[0], :: strides[1]]
    # XLA computes the gradient of a product of matrices without transposing copies.
    product = sampled.reshape(-1, sampled.shape[-1]) @ kernel[0, 0]
    return product.reshape(*sampled.shape[:-1], -1)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def depthwise(strides: Pair, padding: Padding, images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolves every channel with a kernel, no side of which may be shorter than the stride.

    Images [B, H, W, C] and kernel [k, k', 1, C] -> float [B, H', W', C], accumulated in at least
    float32. The padding is (before, after) rows and columns.
    """
    return _sum_of_shifts(pad(images, padding), kernel, strides)


def _depthwise_forward(
    strides: Pair, padding: Padding, images: jax.Array, kernel: jax.Array
) -> tuple[jax.Array, Saved]:
    padded = pad(images, padding)
    return _sum_of_shifts(padded, kernel, strides), (padded, kernel)


def _depthwise_backward(strides: Pair, padding: Padding, saved: Saved, grad: jax.Array) -> Saved:
    padded, kernel = saved
    sides = padded.shape[1:3]
    padded_gradient = _depthwise_image_gradient(grad, kernel, sides, strides)
    interior = (slice(i, n - j) for n, (i, j) in zip(sides, padding, strict=True))
    return padded_gradient[:, *interior], _depthwise_kernel_gradient(padded, kernel, grad, strides)


def pad(images: jax.Array, padding: Sequence[Pair]) -> jax.Array:
    """Images [B, H, W, C] with zeros around them; XLA must not fuse the padding."""
    return lax.optimization_barrier(jnp.pad(images, ((0, 0), *padding, (0, 0))))


def shifts(padded: jax.Array, size: tuple[int, ...], strides: Pair) -> list[jax.Array]:
    """For each cell of a kernel of this size, the pixels that it multiplies: [B, H', W', C]."""
    rows, columns = (n - k + 1 for n, k in zip(padded.shape[1:3], size, strict=True))
    cells = product(range(size[0]), range(size[1]))
    return [padded[:, i : i + rows : strides[0], j : j + columns : strides[1]] for i, j in cells]


def _sum_of_shifts(padded: jax.Array, kernel: jax.Array, strides: Pair) -> jax.Array:
    weights = at_least_float32(kernel).reshape(-1, 1, 1, 1, kernel.shape[-1])
    windows = shifts(at_least_float32(padded), kernel.shape[:2], strides)
    products = [each * cell for each, cell in zip(windows, weights, strict=True)]
    return sum(products[1:], products[0]).astype(padded.dtype)


def _depthwise_image_gradient(
    grad: jax.Array, kernel: jax.Array, size: tuple[int, ...], strides: Pair
) -> jax.Array:
    """The gradient with respect to padded images of `size` pixels."""
    # For row o of the result, row i of the kernel multiplies row s o + i of the images. So rows
    # s q + r of the gradient are a convolution at stride 1 with rows i = r, r + s, … of the kernel,
    # and likewise for columns. The results of these convolutions are interleaved.
    needed = [-(-n // stride) for n, stride in zip(size, strides, strict=True)]
    before = [(k - 1) // stride for k, stride in zip(kernel.shape[:2], strides, strict=True)]
    after = [n - m for n, m in zip(needed, grad.shape[1:3], strict=True)]
    padded_grad = pad(grad, list(zip(before, after, strict=True)))

    def part(r: int, c: int) -> jax.Array:
        cells = kernel[r :: strides[0], c :: strides[1]][::-1, ::-1]
        # Kernels with fewer cells need fewer rows before.
        rows, columns = (b + 1 - k for b, k in zip(before, cells.shape[:2], strict=True))
        return _sum_of_shifts(padded_grad[:, rows:, columns:], cells, (1, 1))

    columns = range(strides[1])
    rows = [jnp.stack([part(r, c) for c in columns], axis=3) for r in range(strides[0])]
    parts = jnp.stack(rows, axis=2)  # [B, rows, s, columns, s', C]
    whole = parts.reshape(len(grad), needed[0] * strides[0], needed[1] * strides[1], -1)
    return whole[:, : size[0], : size[1]]


def _depthwise_kernel_gradient(
    padded: jax.Array, kernel: jax.Array, grad: jax.Array, strides: Pair
) -> jax.Array:
    """For each cell, the sum over all pixels of the shifted images times the result's gradient."""
    # One reduction with an accumulator per cell reads the images once. It sums a few neighbours
    # only, because XLA vectorises short sums; the partial sums are added afterwards.
    wide = at_least_float32(grad)
    few = max(n for n in range(1, 17) if grad.shape[2] % n == 0)
    windows = shifts(at_least_float32(padded), kernel.shape[:2], strides)
    products = tuple((each * wide).reshape(-1, few, grad.shape[3]) for each in windows)
    zeros = (np.zeros((), wide.dtype),) * len(products)
    sums = lax.reduce(products, zeros, lambda a, b: tuple(map(jnp.add, a, b)), (1,))
    return jnp.stack([each.sum(axis=0) for each in sums]).reshape(kernel.shape).astype(kernel.dtype)


depthwise.defvjp(_depthwise_forward, _depthwise_backward)
