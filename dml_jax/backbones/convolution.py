"""The 2-D convolution of all networks: XLA's, except where another form is faster on a CPU.

On CPUs, 1x1 convolutions are matrix products, and depthwise convolutions, one kernel per channel,
are sums of shifted products; XLA's depthwise ones take 50 times as long. Accelerators always run
XLA's own convolutions. Values and gradients agree to rounding; `benchmarks/backbones.py` compares
the networks with torch.
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
    """Within this context, XLA's convolutions and pooling are traced for every platform, for
    export."""
    return within(_PLAIN, True)


def batches_over(mesh: Mesh) -> AbstractContextManager[None]:
    """Within this context, batches are split over the only axis of a mesh; see `_rounded` and
    `standardize`."""
    return within(_DEVICES, mesh)


def is_plain() -> bool:
    """Whether this is traced within `plain`."""
    return _PLAIN.get()


def devices_of(x: jax.Array) -> Mesh | None:
    """The mesh of `batches_over` if its devices, more than one, have equally many of the rows of
    x."""
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

    The padding is (before, after) rows and columns, or "SAME". A kernel that is wider than the
    inputs is rounded to their type, its gradient is not.
    """
    if padding == "SAME":
        rows, columns = lax.padtype_to_pads(inputs.shape[1:3], kernel.shape[:2], strides, padding)
        padding = (int(rows[0]), int(rows[1])), (int(columns[0]), int(columns[1]))

    def general(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        dimensions = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            lhs, rhs, strides, padding, dimension_numbers=dimensions, feature_group_count=groups
        )

    one_per_channel = groups == inputs.shape[-1] == kernel.shape[-1] and max(strides) <= min(
        kernel.shape[:2]
    )
    if is_plain() or (groups > 1 and not one_per_channel):
        return general(inputs, kernel.astype(inputs.dtype))
    on_cpu: Convolution = general
    if groups > 1:
        on_cpu = partial(depthwise, strides, padding)
    elif kernel.shape[:2] == (1, 1) and not any(map(any, padding)):
        on_cpu = partial(_pointwise, strides)
    if kernel.dtype == inputs.dtype:
        return lax.platform_dependent(
            inputs, kernel, cpu=on_cpu, default=lambda x, k: general(x, _stored(k))
        )
    rounded = partial(_rounded, general, devices_of(inputs))
    return lax.platform_dependent(
        inputs, kernel, cpu=lambda x, kernel: on_cpu(x, kernel.astype(x.dtype)), default=rounded
    )


@jax.custom_vjp
def _stored(kernel: jax.Array) -> jax.Array:
    """The kernel, with its gradient in the layout of the kernel.

    Left to itself, XLA brings the kernel and its moments into cuDNN's layout to update them there,
    and all three back.
    """
    return kernel


def _as_stored(gradient: jax.Array) -> jax.Array:
    # Fused with the update, the transpose would keep XLA from overwriting the kernel and its
    # moments.
    return lax.optimization_barrier(
        with_layout_constraint(gradient, Layout(tuple(range(gradient.ndim))))
    )


_stored.defvjp(lambda kernel: (kernel, None), lambda _, gradient: (_as_stored(gradient),))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rounded(general: Convolution, mesh: Mesh | None, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """A convolution with the kernel rounded to the type of x.

    The devices' gradients of the kernel are summed in the kernel's own type. Left to itself, the
    compiler sums them in that of x; and told to compute them in the wider type, cuDNN would also
    widen the operands.
    """
    return general(x, kernel.astype(x.dtype))


def _rounded_backward(
    general: Convolution, mesh: Mesh | None, saved: Saved, grad: jax.Array
) -> Saved:
    x, kernel = saved
    narrow = kernel.astype(x.dtype)
    (x_gradient,) = jax.linear_transpose(lambda x: general(x, narrow), x)(grad)

    def own(x: jax.Array, narrow: jax.Array, grad: jax.Array) -> jax.Array:
        """The gradient from a device's part of the batch."""
        (gradient,) = jax.linear_transpose(lambda narrow: general(x, narrow), narrow)(grad)
        return _as_stored(gradient.astype(kernel.dtype))

    if mesh is None:
        return x_gradient, own(x, narrow, grad)
    rows, axis = PartitionSpec(mesh.axis_names[0]), mesh.axis_names[0]
    summed = jax.shard_map(
        lambda *parts: lax.psum(own(*parts), axis),
        mesh=mesh, in_specs=(rows, PartitionSpec(), rows), out_specs=PartitionSpec(),
        check_vma=False,  # otherwise JAX would sum the gradient of the replicated kernel itself
    )  # fmt: skip
    return x_gradient, summed(x, narrow, grad)


_rounded.defvjp(lambda *arguments: (_rounded(*arguments), arguments[2:]), _rounded_backward)


def _pointwise(strides: Pair, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
    sampled = inputs[:, :: strides[0], :: strides[1]]
    # As a product of matrices, whose gradient with respect to the kernel XLA computes without
    # transposing copies.
    product = sampled.reshape(-1, sampled.shape[-1]) @ kernel[0, 0]
    return product.reshape(*sampled.shape[:-1], -1)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def depthwise(strides: Pair, padding: Padding, images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolves every channel with its own kernel; no side of a kernel may be shorter than the
    stride.

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
    around = _depthwise_image_gradient(grad, kernel, padded.shape[1:3], strides)
    inside = (
        slice(before, n - after)
        for n, (before, after) in zip(padded.shape[1:3], padding, strict=True)
    )
    return around[:, *inside], _depthwise_kernel_gradient(padded, kernel, grad, strides)


def pad(images: jax.Array, padding: Sequence[Pair]) -> jax.Array:
    """Images [B, H, W, C] with zeros around them, computed before anything that uses them."""
    return lax.optimization_barrier(jnp.pad(images, ((0, 0), *padding, (0, 0))))


def shifts(padded: jax.Array, size: tuple[int, ...], strides: Pair) -> list[jax.Array]:
    """For each cell of a kernel of this size, the pixels that it multiplies: [B, H', W', C]."""
    rows, columns = (n - k + 1 for n, k in zip(padded.shape[1:3], size, strict=True))
    cells = product(range(size[0]), range(size[1]))
    return [padded[:, i : i + rows : strides[0], j : j + columns : strides[1]] for i, j in cells]


def _sum_of_shifts(padded: jax.Array, kernel: jax.Array, strides: Pair) -> jax.Array:
    weights = at_least_float32(kernel).reshape(-1, 1, 1, 1, kernel.shape[-1])
    moved = shifts(at_least_float32(padded), kernel.shape[:2], strides)
    products = [each * cell for each, cell in zip(moved, weights, strict=True)]
    return sum(products[1:], products[0]).astype(padded.dtype)


def _depthwise_image_gradient(
    grad: jax.Array, kernel: jax.Array, size: tuple[int, ...], strides: Pair
) -> jax.Array:
    """The gradient with respect to padded images of `size` pixels."""
    # Row i of the kernel multiplies row s o + i of the images for row o of the result. So the rows
    # s q + r of the gradient result from a convolution at stride 1 with the rows i = r, r + s, r +
    # 2 s … of the kernel, and likewise for columns; these convolutions are interleaved.
    needed = [-(-n // stride) for n, stride in zip(size, strides, strict=True)]
    before = [(k - 1) // stride for k, stride in zip(kernel.shape[:2], strides, strict=True)]
    after = [n - m for n, m in zip(needed, grad.shape[1:3], strict=True)]
    surrounded = pad(grad, list(zip(before, after, strict=True)))

    def part(r: int, c: int) -> jax.Array:
        cells = kernel[r :: strides[0], c :: strides[1]][::-1, ::-1]
        # Not all need b rows before.
        rows, columns = (b + 1 - k for b, k in zip(before, cells.shape[:2], strict=True))
        return _sum_of_shifts(surrounded[:, rows:, columns:], cells, (1, 1))

    parts = jnp.stack(
        [jnp.stack([part(r, c) for c in range(strides[1])], 3) for r in range(strides[0])], 2
    )
    # [B, rows, s, columns, s', C]
    return parts.reshape(len(grad), needed[0] * strides[0], needed[1] * strides[1], -1)[
        :, : size[0], : size[1]
    ]


def _depthwise_kernel_gradient(
    padded: jax.Array, kernel: jax.Array, grad: jax.Array, strides: Pair
) -> jax.Array:
    """The sums over all pixels of the products of the shifted images with the gradient of the
    result."""
    # One reduction with an accumulator per cell reads the images once. Its sums are of a few
    # neighbours, because XLA vectorises short sums; the rest is added afterwards.
    wide = at_least_float32(grad)
    few = max(n for n in range(1, 17) if grad.shape[2] % n == 0)
    moved = shifts(at_least_float32(padded), kernel.shape[:2], strides)
    products = tuple((each * wide).reshape(-1, few, grad.shape[3]) for each in moved)
    zeros = (np.zeros((), wide.dtype),) * len(products)
    sums = lax.reduce(products, zeros, lambda a, b: tuple(map(jnp.add, a, b)), (1,))
    return jnp.stack([each.sum(axis=0) for each in sums]).reshape(kernel.shape).astype(kernel.dtype)


depthwise.defvjp(_depthwise_forward, _depthwise_backward)
